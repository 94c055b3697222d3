//! Programs of two machines, each way beside the others: in clear, by the engines, and by other encryption.

use crate::contestant::Contest;
use crate::figures::{Figures, Metric, by};
use crate::page::{self, Part};
use crate::way::{crowd, nginx, redis, redis_anew, stream, ways};

pub const PART: Part = Part { name: "engine-between", contestants, added };

/// The columns of each way, and the beginning of their contestants' names.
const COLUMNS: [(&str, &str); 6] = [
    ("Redis GET, 50 connections", "redis 50"),
    ("Redis GET, 1 connection", "redis 1"),
    ("Redis GET, each by a new connection", "redis anew"),
    ("nginx 1 KB, 16 connections", "nginx"),
    ("stream, 1 KiB sends", "stream 1K"),
    ("stream, 64 KiB sends", "stream 64K"),
];

/// Idle connections beside busy ones.
const IDLE: [usize; 2] = [0, 5000];

fn contestants(_pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for (name, open) in ways() {
        contest.add(format!("redis 50 {name}"), Ok(redis(open.clone(), 50, 100_000)));
        contest.add(format!("redis 1 {name}"), Ok(redis(open.clone(), 1, 10_000)));
        contest.add(format!("redis anew {name}"), Ok(redis_anew(open.clone(), 500)));
        if ["clear", "engine"].contains(&name) {
            for idle in IDLE {
                contest.add(format!("crowd {idle} {name}"), Ok(crowd(open.clone(), idle)));
            }
        }
        contest.add(format!("nginx {name}"), Ok(nginx(open.clone())));
        contest.add(format!("stream 1K {name}"), Ok(stream(open.clone(), 1 << 10)));
        contest.add(format!("stream 64K {name}"), Ok(stream(open, 64 << 10)));
    }
    contest
}

fn added(figures: &Figures) -> String {
    let titles = std::iter::once("carried by").chain(COLUMNS.map(|(title, _)| title));
    let rows = ways().into_iter().map(|(name, _)| {
        let told = |(_, what)| page::told(figures, by(&format!("{what} {name}"), Metric::Value));
        std::iter::once(name.to_owned()).chain(COLUMNS.map(told)).collect()
    });
    format!(
        "\nTwo namespaces on a veth pair of MTU 1500. `clear` is the kernel's TCP, `engine` has both programs under \
         `bywire run --engine require`, `ethernet` is `bywire eth` between encrypted nodes. Client and server have a core each, \
         which they share with whatever carries their bytes.\n\nEverybody:\n\n{}",
        page::table(1, titles, rows)
    )
}
