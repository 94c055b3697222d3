//! Programs that do the same without the library and with it, and record what happens.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{TIMEOUT, TestService};

/// The output of the program, which must succeed in time.
pub fn transcript(pairing: &TestService, program: &Path, words: &[&str], calls: Option<u64>) -> String {
    run(pairing.command(program, calls), words)
}

pub fn run(mut command: Command, words: &[&str]) -> String {
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().expect("it starts");
    let started = std::time::Instant::now();
    while child.try_wait().expect("ours").is_none() {
        if started.elapsed() > 3 * TIMEOUT {
            // Its children are killed too, because they have its output as well.
            // SAFETY: a group that this test has made, and that is not waited for yet.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("ours");
    let (said, wrong) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{said}{wrong}");
    said.into_owned()
}

/// Actions of a C program, the same without the library and with it. Connections must be carried.
pub fn same(source: &str, things: &[&[&str]]) {
    same_beside(source, None, things);
}

/// The same with another C file loaded after the library, if the library is used.
pub fn same_beside(source: &str, beside: Option<&str>, things: &[&[&str]]) {
    let Some((pairing, program)) = TestService::with_program(source) else { return };
    let beside = beside.and_then(|source| pairing.compiled(source, "beside.so", &["-shared", "-fPIC"]));
    for words in things {
        compare(&pairing, &program, beside.as_deref(), words);
    }
}

/// Compares things that mostly wait. Each of them runs beside the others, with a service of its own.
pub fn same_at_once(source: &str, beside: Option<&str>, things: &[&[&str]]) {
    std::thread::scope(|scope| {
        for thing in things {
            scope.spawn(move || same_beside(source, beside, &[thing]));
        }
    });
}

/// Does one thing without the library and with it, both at once.
fn compare(pairing: &TestService, program: &Path, beside: Option<&Path>, words: &[&str]) {
    let before = pairing.status().carried_ever;
    let mut command = pairing.command(program, Some(4));
    if let Some(beside) = beside {
        command.env("LD_PRELOAD", format!("{} {}", TestService::library().display(), beside.display()));
    }
    let (carried, plain) = std::thread::scope(|scope| {
        let carried = scope.spawn(|| run(command, words));
        let plain = transcript(pairing, program, words, None);
        (carried.join(), plain)
    });
    let carried = carried.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert_eq!(carried, plain, "{words:?}: with the library, and without");
    assert!(!plain.is_empty(), "{words:?} says nothing");
    assert!(pairing.status().carried_ever > before, "{words:?}: {:?}", pairing.status());
}
