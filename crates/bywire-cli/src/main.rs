//! The `bywire` command.
fn main() {}
