//! The counts of a run.

use crate::tally::{Names, Tally};

/// The names that must be counted in some run.
const NAMES: [&str; 24] = [
    "buffers posted late",
    "buffers posted too small",
    "connections ended by a death",
    "connections ended by a leave",
    "connections ended when all was done",
    "datagrams received",
    "datagrams that never came",
    "gets answered",
    "gets refused",
    "large windows",
    "messages copied: long",
    "messages copied: short",
    "messages delivered: long",
    "messages delivered: short",
    "messages sent at once",
    "messages that a death has lost",
    "notes received",
    "puts answered: long",
    "puts answered: short",
    "puts refused",
    "regions revoked",
    "sends that found no room",
    "transfers failed by the end",
    "transfers that found no token",
];

/// What an exchange counts.
#[derive(Clone, Debug)]
pub struct Exchange;

/// The counts of a run.
pub type Counts = Tally<Exchange>;

impl Names for Exchange {
    fn names() -> Vec<&'static str> {
        NAMES.into()
    }
}
