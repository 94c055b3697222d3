//! The `bywire` command as its users run it, and programs of other projects under it.

mod breakdown;
mod command;
mod compare;
mod diagnosis;
mod documents;
mod entry;
mod eth;
mod eth_fabric;
mod eth_faults;
mod laboratory;
mod measure;
mod monitoring;
mod mpi;
mod mpi_programs;
mod multi_connection;
mod name_server;
mod node;
mod operations;
mod packages;
mod packaging;
mod processes;
mod programs;
mod provider;
mod segment;
mod session;
mod sockets;
mod tutorial;
mod units;
mod up;
mod web;

#[test]
#[ignore = "a role for the other tests of this program, which start it themselves"]
fn actor() {
    bywire_testing::actor::run_role(operations::ROLES);
}
