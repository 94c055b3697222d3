//! Where the time of a message goes, as text.

use bywire_lab::breakdown::{Account, CoreAccount, Share};
use bywire_lab::report::quantity;

/// Both accounts below each other, each part with its share of the half-RTT, its interval, and how it was found.
pub fn text(account: &Account, half_rtt_ns: f64) -> String {
    let mut text = format!(
        "\nParts of the half-RTT, by differences between variants\n{}",
        table(&account.parts, half_rtt_ns)
    );
    if !account.beside.is_empty() {
        text += &format!("Beside it, no part of the sum\n{}", table(&account.beside, half_rtt_ns));
    }
    for core in &account.cores {
        text += &of_core(core);
    }
    text += "\n";
    for note in &account.notes {
        text += &format!("{note}\n");
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
        let [low, high] = part.ci95_ns.map(quantity::duration);
        let interval = format!("{low} to {high}");
        format!(
            "  {:<width$} {:>10} {:>8}   {interval:<24} {}\n",
            part.name,
            quantity::duration(part.ns),
            quantity::percent(part.ns / whole_ns),
            part.how,
        )
    };
    parts.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_stands_with_its_share_and_how_it_was_found() {
        let part = |name: &str, ns: f64| Share {
            name: name.to_owned(),
            ns,
            ci95_ns: [ns - 10.0, ns + 10.0],
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
    }
}
