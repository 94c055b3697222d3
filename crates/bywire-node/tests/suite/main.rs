//! Services of machines in namespaces of their own: connections between their ports, faults, and attacks.

mod callers;
mod faults;
mod hostile;
mod keeper;
mod ports;
mod services;

#[test]
#[ignore = "a role for the other tests of this program, which start it themselves"]
fn actor() {
    bywire_testing::actor::run_role(&[faults::ROLES, hostile::ROLES, ports::ROLES, services::ROLES].concat());
}
