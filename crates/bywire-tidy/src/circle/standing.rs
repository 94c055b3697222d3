//! Circles that still stand. This list only shrinks.

/// The files of each.
pub const STANDING: &[&[&str]] = &[&[
    "crates/bywire-sockets/src/connection/outcome.rs",
    "crates/bywire-sockets/src/memory/arena.rs",
    "crates/bywire-sockets/src/connection/fallback.rs",
    "crates/bywire-sockets/src/wakeup/doorbell.rs",
    "crates/bywire-sockets/src/connection/carried.rs",
    "crates/bywire-sockets/src/epoll/control.rs",
    "crates/bywire-sockets/src/epoll/registrations.rs",
    "crates/bywire-sockets/src/os/kernel.rs",
    "crates/bywire-sockets/src/process/lifecycle.rs",
    "crates/bywire-sockets/src/memory/lock.rs",
    "crates/bywire-sockets/src/connection/log.rs",
    "crates/bywire-sockets/src/epoll/nested.rs",
    "crates/bywire-sockets/src/pairing/proposal.rs",
    "crates/bywire-sockets/src/os/pid.rs",
    "crates/bywire-sockets/src/os/user_access.rs",
    "crates/bywire-sockets/src/connection/readiness.rs",
    "crates/bywire-sockets/src/process/io_uring.rs",
    "crates/bywire-sockets/src/process/sandbox.rs",
    "crates/bywire-sockets/src/process/signals.rs",
    "crates/bywire-sockets/src/wakeup/spin.rs",
    "crates/bywire-sockets/src/connection/table.rs",
]];
