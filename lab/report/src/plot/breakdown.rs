//! The parts of a message's time, as bars: by differences between variants, and by samples of both cores.

use std::collections::BTreeSet;

use bywire_results::breakdown::{Account, FAILED, KINDS, REST, Share};
use bywire_results::cell::Cell;
use bywire_results::quantity;

use crate::plot::data::{Axis, Look, Name, Names, Plot, Point, Quantity, Series};
use crate::way::Way;

/// Both plots. Without a breakdown they are empty.
pub fn plots(ways: &[Way]) -> [Plot; 2] {
    let cells = ways.iter().flat_map(|way| way.by_size("breakdown").into_iter().map(move |cell| (way, cell)));
    let account = |(way, cell): (&Way, &Cell)| {
        let size = quantity::size(cell.size_bytes.unwrap_or(0));
        Some((format!("{}, {size}: {}", way.plain_label, quantity::duration(cell.value)), Account::of(cell)?))
    };
    let accounts: Vec<(String, Account)> = cells.filter_map(account).collect();
    [by_differences(&accounts), by_samples(&accounts)]
}

fn by_differences(accounts: &[(String, Account)]) -> Plot {
    let (mut bars, mut failed, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for (name, account) in accounts {
        if !account.adds_up() {
            failed.push(format!("{name}: {FAILED}"));
            bars.push((format!("{name} – failed"), Vec::new()));
            continue;
        }
        bars.push((name.clone(), account.parts.clone()));
        beside.extend(account.beside.iter().map(|share| {
            let (ns, interval) = (quantity::duration(share.ns), share.interval());
            format!("{name}: {} {ns} ({interval}), {}.", share.name, share.how)
        }));
    }
    let notes: BTreeSet<String> = accounts.iter().flat_map(|(_, account)| account.notes.clone()).collect();
    let about = "Each part is what leaving it out saves, one after the other, in fresh pairs taken in turn; what is left \
                 over is shown as not explained. A part below nought cost less than leaving it out. The table says of \
                 each how it was found, with its 95 % interval.";
    let remarks = failed.into_iter().chain(beside).chain(notes).collect();
    Plot { remarks, ..stacked(["breakdown", "Where a half-RTT goes, by differences"], about, bars) }
}

fn by_samples(accounts: &[(String, Account)]) -> Plot {
    let bars = accounts.iter().flat_map(|(name, account)| {
        let name = name.split(": ").next().unwrap_or(name);
        account.cores.iter().map(move |core| (format!("{name}, {}", core.end), core.parts.clone()))
    });
    let about = "What the core of each end was at while a half-RTT passed, as the kernel's clock found it every 0.1 ms. \
                 While one end works the other waits, so each core is idle or polls for much of the time.";
    let names = ["breakdown-samples", "Where both cores are during a half-RTT, by samples"];
    stacked(names, about, bars.collect())
}

/// One bar for each row. Its parts have the order in which they first occur, and the unexplained part is last.
fn stacked(names: Names, about: &str, bars: Vec<(String, Vec<Share>)>) -> Plot {
    let mut parts: Vec<&str> = Vec::new();
    for share in bars.iter().flat_map(|(_, shares)| shares) {
        if !parts.contains(&share.name.as_str()) {
            parts.push(&share.name);
        }
    }
    // The kinds of samples have a fixed order. The parts of a ladder have the order in which they were left out.
    parts.sort_by_key(|name| (*name == REST, KINDS.iter().position(|kind| kind == name)));
    let part = |(slot, name): (usize, &&str)| {
        let points = bars.iter().enumerate().filter_map(|(index, (_, shares))| {
            let share = shares.iter().find(|share| share.name == **name)?;
            let whole_ns: f64 = shares.iter().map(|share| share.ns).sum();
            let (ns, interval) = (quantity::duration(share.ns), share.interval());
            Some(Point {
                band: share.ci95_ns.map(|bounds| bounds.map(|ns| ns / whole_ns)),
                note: Some(format!("{ns} ({interval}); {}", share.how)),
                ..Point::new(index as f64, share.ns / whole_ns)
            })
        });
        Series::new(*name, Look::Part, slot, points)
    };
    let series = parts.iter().enumerate().map(part).collect();
    let categories = bars.iter().map(|(name, _)| Name::from(&**name)).collect();
    let y = Axis::linear("share of a half-RTT", Quantity::Share);
    let x = Axis::linear("message", Quantity::Name);
    Plot { x, ..Plot::bars(names, about, y, categories, series) }
}
