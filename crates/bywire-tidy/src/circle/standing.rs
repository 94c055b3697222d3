//! Circles that still stand. This list only shrinks.

/// The files of each.
pub const STANDING: &[&[&str]] = &[&[
    "crates/bywire-sockets/src/account.rs",
    "crates/bywire-sockets/src/arena.rs",
    "crates/bywire-sockets/src/back.rs",
    "crates/bywire-sockets/src/bell.rs",
    "crates/bywire-sockets/src/carry.rs",
    "crates/bywire-sockets/src/epoll.rs",
    "crates/bywire-sockets/src/items.rs",
    "crates/bywire-sockets/src/kernel.rs",
    "crates/bywire-sockets/src/life.rs",
    "crates/bywire-sockets/src/lock.rs",
    "crates/bywire-sockets/src/log.rs",
    "crates/bywire-sockets/src/nested.rs",
    "crates/bywire-sockets/src/offer.rs",
    "crates/bywire-sockets/src/process.rs",
    "crates/bywire-sockets/src/reach.rs",
    "crates/bywire-sockets/src/ready.rs",
    "crates/bywire-sockets/src/rings.rs",
    "crates/bywire-sockets/src/sandbox.rs",
    "crates/bywire-sockets/src/signals.rs",
    "crates/bywire-sockets/src/spin.rs",
    "crates/bywire-sockets/src/table.rs",
]];
