//! The parts of a message's time, as text.

use bywire_results::breakdown::{Account, CoreAccount, FAILED, Share};
use bywire_results::quantity;

/// The longest line, in characters.
const WIDTH: usize = 100;

/// The note below a part that may be zero.
const SPANS: &str =
    "?: its interval includes 0, so that it may be nothing, or the reverse; a longer --time narrows it.";

/// Both accounts, one below the other. Each part has its share of the half-RTT, its interval, and its method.
pub fn text(account: &Account, half_rtt_ns: f64) -> String {
    let mut text = "\nParts of the half-RTT, by differences between variants\n".to_owned();
    let differences = if account.adds_up() { [&account.parts[..], &account.beside] } else { [&[][..]; 2] };
    text += &if account.adds_up() { table(&account.parts, half_rtt_ns) } else { wrapped(FAILED, 0) };
    if account.adds_up() && !account.beside.is_empty() {
        text += &format!("Beside it, no part of the sum\n{}", table(&account.beside, half_rtt_ns));
    }
    for core in &account.cores {
        text += &of_core(core);
    }
    let sampled = account.cores.iter().flat_map(|core| &core.parts);
    let all = differences.into_iter().flatten().chain(sampled);
    text += "\n";
    if all.clone().any(spans_zero) {
        text += &wrapped(SPANS, 0);
    }
    text += &explained(all);
    for note in &account.notes {
        text += &wrapped(note, 0);
    }
    text
}

fn of_core(core: &CoreAccount) -> String {
    let whole_ns: f64 = core.parts.iter().map(|part| part.ns).sum();
    let CoreAccount { end, core: number, samples, parts } = core;
    format!("\nThe {end}'s core {number} during a half-RTT, by {samples} samples\n{}", table(parts, whole_ns))
}

fn table(parts: &[Share], whole_ns: f64) -> String {
    let width = parts.iter().map(|part| part.name.chars().count()).max().unwrap_or(0);
    let row = |part: &Share| {
        let flag = if spans_zero(part) { " ?" } else { "" };
        format!(
            "  {:<width$} {:>10} {:>8}   {}{flag}\n",
            part.name,
            quantity::duration(part.ns),
            quantity::percent(part.ns / whole_ns),
            part.interval(),
        )
    };
    parts.iter().map(row).collect()
}

/// How each part was measured, each method once.
fn explained<'a>(parts: impl Iterator<Item = &'a Share>) -> String {
    let mut ways: Vec<(&str, Vec<&str>)> = Vec::new();
    for part in parts {
        match ways.iter_mut().find(|(how, _)| *how == part.how) {
            Some((_, names)) if names.contains(&&*part.name) => {}
            Some((_, names)) => names.push(&part.name),
            None => ways.push((&part.how, vec![&part.name])),
        }
    }
    ways.iter().map(|(how, names)| wrapped(&format!("{}: {how}", names.join("; ")), 2)).collect()
}

fn spans_zero(part: &Share) -> bool {
    part.ci95_ns.is_some_and(|[low, high]| low < 0.0 && high > 0.0)
}

/// Text in lines of at most [`WIDTH`], indented after the first.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(" ".repeat(indent) + word),
            None => lines.push(word.to_owned()),
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_shown_with_its_share_and_its_method() {
        let part = |name: &str, ns: f64| Share {
            name: name.to_owned(),
            ns,
            ci95_ns: Some([ns - 10.0, ns + 10.0]),
            how: format!("how {name}"),
        };
        let account = Account {
            parts: vec![part("waking", 1100.0), part("not explained", -100.0)],
            beside: vec![part("checksums would add", 50.0)],
            cores: vec![CoreAccount {
                end: "source".into(),
                core: 1,
                samples: 99,
                parts: vec![part("idle", 10.0)],
            }],
            notes: vec!["a note".to_owned()],
        };
        let text = text(&account, 1000.0);
        for expected in
            ["waking", "110 %", "how waking", "-100 ns", "core 1", "99 samples", "a note", "would add"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(!text.contains('?'), "no interval includes 0: {text}");
    }

    #[test]
    fn a_breakdown_whose_parts_do_not_add_up_is_reported_as_failed() {
        let part = |ns: f64| Share { name: "waking".to_owned(), ns, ci95_ns: None, how: "how".to_owned() };
        let account = Account { parts: vec![part(901_000.0), part(-900_000.0)], ..Account::default() };
        let text = text(&account, 1000.0);
        assert!(text.contains("the breakdown failed") && !text.contains('%'), "{text}");
    }

    #[test]
    fn parts_that_may_be_zero_are_marked_and_every_line_fits() {
        let part = |name: &str, interval: [f64; 2]| Share {
            name: name.to_owned(),
            ns: 5.0,
            ci95_ns: Some(interval),
            how: "word ".repeat(60),
        };
        let account = Account {
            parts: vec![part("touching", [-1.0, 9.0]), part("waking", [1.0, 9.0])],
            notes: vec!["note ".repeat(60)],
            ..Account::default()
        };
        let text = text(&account, 1000.0);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().any(|line| line.contains("touching") && line.ends_with("9.00 ns ?")), "{text}");
        assert!(lines.iter().any(|line| line.contains("waking") && line.ends_with("9.00 ns")), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("?: its interval includes 0")), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("touching; waking: word")), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
