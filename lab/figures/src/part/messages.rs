//! Messages of one machine, each beside what it is set against.

use crate::contestant::{Contest, Contestant};
use crate::page::Part;
use crate::process::Place;
use crate::rivals::ucx_latency;
use crate::{bare_copy, bare_ring, ports};

pub const PART: Part = Part { name: "messages", contestants, added: |_| String::new() };

/// A sweep takes this many times as long as another figure, which leaves each of its lengths a quarter.
const SWEEP_SHARE: f64 = 4.5;

/// The laboratory's contestants but for the floor.
const LABORATORY: [(&str, &str); 14] = [
    ("touched", "memory touched --size 1MiB"),
    ("futex", "memory futex"),
    ("latency", "msg latency --size 8"),
    ("latency polling", "msg latency --size 8 --spin"),
    ("latency sleeping", "msg latency --size 8 --no-spin"),
    ("latency checked", "msg latency --size 8 --integrity on --spin"),
    ("latency with idle peers", "msg latency --size 8 --nodes 1000 --spin"),
    ("interleaved", "msg interleave --size 8"),
    ("short", "msg stream --size 8"),
    ("overhead", "msg overhead --size 8"),
    ("long", "msg stream --size 1MiB"),
    ("lent", "msg stream --size 1MiB --lent"),
    ("long checked", "msg stream --size 1MiB --integrity on"),
    ("two-way", "msg bidir --size 1MiB"),
];

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    // As many lines as the default rings have slots.
    let floor = format!("memory cacheline --lines {}", bywire::Geometry::default().lanes[2].slots);
    for (name, words) in LABORATORY.into_iter().chain([("floor", floor.as_str())]) {
        contest.add(name, Contestant::laboratory(words, pair_seconds));
    }
    // A sweep shares its time among many streams.
    contest.add("N½", Contestant::laboratory("msg nhalf --spin", SWEEP_SHARE * pair_seconds));
    contest.add("ucx", ucx_latency(&Place::default(), 8, 1_000_000));
    contest.add("bare", Ok(bare_copy::contestant(pair_seconds)));
    contest.add("bare ring", Ok(bare_ring::contestant()));
    contest.add("notice waiting", Ok(ports::local_death(false)));
    contest.add("notice polling", Ok(ports::local_death(true)));
    contest.add("idle", Ok(ports::local_idle()));
    contest
}
