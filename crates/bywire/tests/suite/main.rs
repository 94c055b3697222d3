//! Ports in one process, between processes and between machines: the contract of messages, faults, kills, and hostile peers.

mod attacked;
mod bulk;
mod conformance;
mod descriptors;
mod edges;
mod fake_service;
mod faults;
mod fork;
mod fuse;
mod greed;
mod hostile;
// A store is watched by single steps, which a program of another processor cannot make by itself.
#[cfg(target_arch = "x86_64")]
mod kills;
mod large_window;
mod messages;
mod namespaces;
mod peers;
mod ports;
#[cfg(target_arch = "x86_64")]
mod step;
mod urgent;
mod users;
mod waits;
mod wire;

#[test]
#[ignore = "a role for the other tests of this program, which start it themselves"]
fn actor() {
    bywire_testing::actor::run_role(
        &[
            conformance::ROLES,
            edges::ROLES,
            faults::ROLES,
            fork::ROLES,
            hostile::ROLES,
            #[cfg(target_arch = "x86_64")]
            kills::ROLES,
            namespaces::ROLES,
            peers::ROLES,
            users::ROLES,
        ]
        .concat(),
    );
}
