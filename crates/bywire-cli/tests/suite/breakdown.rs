//! `bywire measure … breakdown` from outside: the parts of a breakdown add up to the whole, each says how it was found,
//! and nothing is clipped.

use bywire_results::breakdown::{Account, REST};
use bywire_results::cell::Cell;
use bywire_testing::eventually;

use crate::processes::{bywire, nothing_is_left};

/// The cell and its account.
fn broken_down(arguments: &[&str]) -> (Cell, Account) {
    let directory = tempfile::tempdir().unwrap();
    let all = [&["measure"], arguments, &["--time", "0.2", "--json"]].concat();
    let output = bywire(directory.path(), &all).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    nothing_is_left(directory.path());
    let cell: Cell = serde_json::from_slice(&output.stdout).unwrap();
    let account = Account::of(&cell).expect("an account");
    (cell, account)
}

fn names(account: &Account) -> Vec<&str> {
    account.parts.iter().map(|part| part.name.as_str()).collect()
}

#[test]
fn parts_add_up_to_the_whole_at_every_level() {
    let two_cores = {
        let (source, target) = bywire_measure::pin::two_cores();
        source != target
    };
    for level in ["msg", "unix", "tcp", "udp"] {
        let (cell, account) = broken_down(&[level, "breakdown", "--size", "8192"]);
        assert_eq!((cell.test.as_str(), cell.size_bytes), ("breakdown", Some(8192)));
        let sum: f64 = account.parts.iter().map(|part| part.ns).sum();
        // The cell's own value is a median of blocks by pair, the account's a median of all blocks of a pair.
        assert!((sum / cell.value - 1.0).abs() < 0.01, "{level}: {sum} of {}", cell.value);
        let names = names(&account);
        assert_eq!(names.last(), Some(&REST), "{level}: {names:?}");
        assert_eq!(names.contains(&"TCP and IP"), level == "tcp", "{names:?}");
        assert_eq!(names.contains(&"UDP and IP"), level == "udp", "{names:?}");
        assert_eq!(names.contains(&"system calls, empty"), level != "msg", "{names:?}");
        assert_eq!(names.contains(&"a cache line to the other core"), two_cores, "{names:?}");
        for part in account.parts.iter().chain(&account.beside) {
            let [low, high] = part.ci95_ns.expect("five pairs");
            assert!(!part.how.is_empty() && low <= high, "{level}: {part:?}");
            assert!([part.ns, low, high].iter().all(|ns| ns.is_finite()), "{part:?}");
        }
        assert!(!account.notes.is_empty());
        for core in &account.cores {
            assert!(core.samples > 0 && !core.parts.is_empty(), "{level}: {core:?}");
        }
        let sampled =
            account.notes.iter().find(|note| note.starts_with("samples:")).expect("a word on samples");
        if account.cores.is_empty() {
            println!("not run: {sampled}");
        }
    }
}

#[test]
fn short_messages_and_pollers_have_fewer_parts() {
    let (_, account) = broken_down(&["tcp", "breakdown", "--size", "8", "--spin"]);
    assert_eq!(names(&account)[0], "TCP and IP");
    assert!(!names(&account).contains(&"sleeping and waking"));
    assert!(account.notes.iter().any(|note| note.starts_with("system calls: not counted")));
    let (_, lent) = broken_down(&["msg", "breakdown", "--size", "4096", "--lent"]);
    assert!(lent.beside.iter().all(|share| share.name != "lending saves"));
}

#[test]
fn tests_without_a_breakdown_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        &["tcp", "breakdown", "--between", "127.0.0.1"][..],
        &["tcp", "breakdown", "--untouched"],
        &["memory", "breakdown"],
    ] {
        let output = bywire(directory.path(), &[&["measure"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
    }
}

#[test]
fn the_text_has_the_method_of_each_part() {
    let directory = tempfile::tempdir().unwrap();
    // On a busy machine a breakdown may fail, and says so.
    let text = eventually("a breakdown holds", || {
        let words = ["measure", "unix", "breakdown", "--time", "0.1"];
        let output = bywire(directory.path(), &words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (!text.contains("the breakdown failed")).then_some(text)
    });
    for part in ["Parts of the half-RTT", "sleeping and waking", "with ends that poll", REST] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
