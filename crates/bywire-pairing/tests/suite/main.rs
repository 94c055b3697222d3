//! How two programs learn that they are the ends of one connection, and what others can do about it.

mod descriptors;
mod hostile;
mod pairing;

#[test]
#[ignore = "a role for the other tests of this program, which start it themselves"]
fn actor() {
    bywire_testing::actor::run_role(hostile::ROLES);
}
