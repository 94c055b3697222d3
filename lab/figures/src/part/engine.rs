//! Streams that an engine relays, each figure beside plain TCP between the same two namespaces.

use crate::contestant::{Contest, Contestant};
use crate::page::Part;

pub const PART: Part = Part { name: "engine", contestants, added: |_| ENDS.to_owned() };

/// The text between the requirements and the contestants.
const ENDS: &str = "\nThe source and the target have a core each. The engine runs on either.\n";

const LABORATORY: [(&str, &str); 8] = [
    ("tcp 64", "tcp stream --between namespaces --nagle on --size 64"),
    ("relay 64", "sock stream --link relay --nagle on --size 64"),
    ("tcp 1K", "tcp stream --between namespaces --nagle on --size 1KiB"),
    ("relay 1K", "sock stream --link relay --nagle on --size 1KiB"),
    ("tcp 16K", "tcp stream --between namespaces --nagle on --size 16KiB"),
    ("relay 16K", "sock stream --link relay --nagle on --size 16KiB"),
    ("rr tcp", "tcp rr --between namespaces --size 32 --response-size 128"),
    ("rr relay", "sock rr --link relay --size 32 --response-size 128"),
];

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for (name, words) in LABORATORY {
        contest.add(name, Contestant::laboratory(words, pair_seconds));
    }
    contest
}
