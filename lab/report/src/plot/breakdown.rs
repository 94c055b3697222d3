//! The parts of a message's time, as bars: by differences between variants, and by samples of both cores.

use bywire_results::breakdown::{Account, FAILED, KINDS, REST, Share};
use bywire_results::cell::Cell;
use bywire_results::quantity;

use crate::plot::data::{Axis, Look, Plot, Point, Quantity, Series};
use crate::way::Way;

/// Both plots. Without a breakdown they are empty.
pub fn plots(ways: &[Way]) -> [Plot; 2] {
    let of_way = |way: &Way| {
        let cells = way.by_size("breakdown").into_iter();
        cells.filter_map(|cell| Some((row_name(way, cell), Account::of(cell)?))).collect::<Vec<_>>()
    };
    let accounts: Vec<(String, Account)> = ways.iter().flat_map(of_way).collect();
    [by_differences(&accounts), by_samples(&accounts)]
}

fn row_name(way: &Way, cell: &Cell) -> String {
    let size = quantity::size(cell.size_bytes.unwrap_or(0));
    format!("{}, {size}: {}", way.label, quantity::duration(cell.value))
}

fn by_differences(accounts: &[(String, Account)]) -> Plot {
    let bar = |(name, account): &(String, Account)| match account.adds_up() {
        true => (name.clone(), account.parts.clone()),
        false => (format!("{name} – failed"), Vec::new()),
    };
    let bars = accounts.iter().map(bar).collect();
    let failed = accounts.iter().filter(|(_, account)| !account.adds_up());
    let failed = failed.map(|(name, _)| format!("{name}: {FAILED}"));
    let beside = accounts.iter().filter(|(_, account)| account.adds_up()).flat_map(|(name, account)| {
        let told = |share: &Share| {
            let (ns, interval) = (quantity::duration(share.ns), share.interval());
            format!("{name}: {} {ns} ({interval}), {}.", share.name, share.how)
        };
        account.beside.iter().map(told).collect::<Vec<_>>()
    });
    let mut notes: Vec<String> = accounts.iter().flat_map(|(_, account)| account.notes.clone()).collect();
    notes.sort();
    notes.dedup();
    let about = "Each part is what leaving it out saves, one after the other, in fresh pairs taken in turn; what is left \
                 over is shown as not explained. A part below nought cost less than leaving it out. The table says of \
                 each how it was found, with its 95 % interval.";
    Plot {
        remarks: failed.chain(beside).chain(notes).collect(),
        ..stacked(["breakdown", "Where a half-RTT goes, by differences"], about, bars)
    }
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
fn stacked(titles: [&'static str; 2], about: &str, bars: Vec<(String, Vec<Share>)>) -> Plot {
    let mut names: Vec<&str> = Vec::new();
    for share in bars.iter().flat_map(|(_, shares)| shares) {
        if !names.contains(&share.name.as_str()) {
            names.push(&share.name);
        }
    }
    // The kinds of samples have a fixed order. The parts of a ladder have the order in which they were left out.
    names.sort_by_key(|name| (*name == REST, KINDS.iter().position(|kind| kind == name)));
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
    let series = names.iter().enumerate().map(part).collect();
    let categories = bars.iter().map(|(name, _)| name.clone()).collect();
    let y = Axis::linear("share of a half-RTT", Quantity::Share);
    let x = Axis::linear("message", Quantity::Name);
    Plot { x, ..Plot::bars(titles, about, y, categories, series) }
}
