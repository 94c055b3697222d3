//! Sockets over the fabric, each figure beside plain TCP, and beside Unix sockets where they are the usual way.

use crate::application::{Mode, crowd, nginx, php, postgresql, redis, resident};
use crate::contestant::{Contest, Contestant};
use crate::page::Part;

pub const PART: Part = Part { name: "sockets", contestants, added: |_| CORES.to_owned() };

/// The text between the requirements and the contestants.
const CORES: &str = "\nClient and server have a core each, unless their row says otherwise.\n";

const LABORATORY: [(&str, &str); 16] = [
    ("rr unix", "unix rr --size 1"),
    ("stream unix 64K", "unix stream --size 64KiB"),
    ("stream unix 1K", "unix stream --size 1KiB"),
    ("rr tcp", "tcp rr --size 1"),
    ("rr tcp epoll", "tcp rr --size 1 --epoll"),
    ("stream tcp 64K", "tcp stream --size 64KiB"),
    ("stream tcp 1K", "tcp stream --size 1KiB"),
    ("rr sock", "sock rr --size 1"),
    ("rr sock epoll", "sock rr --size 1 --epoll"),
    ("stream sock 64K", "sock stream --size 64KiB"),
    ("stream sock 1K", "sock stream --size 1KiB"),
    ("rr sock asleep", "sock rr --size 1 --no-spin"),
    ("rr sock unix", "sock rr --domain unix --size 1"),
    ("stream sock unix 64K", "sock stream --domain unix --size 64KiB"),
    ("stream sock unix 1K", "sock stream --domain unix --size 1KiB"),
    ("rr sock unix asleep", "sock rr --domain unix --size 1 --no-spin"),
];

/// Idle connections beside busy ones.
const IDLE: [usize; 3] = [0, 1000, 5000];

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for (name, words) in LABORATORY {
        contest.add(name, Contestant::laboratory(words, pair_seconds));
    }
    for (mode, name) in [(Mode::Plain, "plain"), (Mode::Carried, "carried")] {
        contest.add(format!("redis {name}"), Ok(redis(mode, 1, 50)));
        for idle in IDLE {
            contest.add(format!("crowd {idle} {name}"), Ok(crowd(mode, idle)));
        }
        contest.add(format!("nginx {name}"), Ok(nginx(mode, true)));
        contest.add(format!("one request {name}"), Ok(nginx(mode, false)));
        contest.add(format!("postgresql {name}"), Ok(postgresql(mode, 4)));
        contest.add(format!("four clients {name}"), Ok(redis(mode, 4, 1)));
    }
    for (mode, name) in [(Mode::Unix, "unix"), (Mode::CarriedUnix, "unix carried")] {
        contest.add(format!("redis {name}"), Ok(redis(mode, 1, 50)));
        contest.add(format!("postgresql {name}"), Ok(postgresql(mode, 4)));
        contest.add(format!("postgresql 16 {name}"), Ok(postgresql(mode, 16)));
        contest.add(format!("php {name}"), Ok(php(mode)));
    }
    contest.add("four clients unix", Ok(redis(Mode::Unix, 4, 1)));
    for (mode, name) in [(Mode::Asleep, "asleep"), (Mode::AsleepUnix, "unix asleep")] {
        contest.add(format!("redis {name}"), Ok(redis(mode, 1, 50)));
        contest.add(format!("postgresql {name}"), Ok(postgresql(mode, 4)));
    }
    contest.add("redis half", Ok(redis(Mode::Half, 1, 50)));
    contest.add("resident", Ok(resident()));
    contest
}
