//! The counts of a day.

use crate::tally::{Names, Tally};

/// The names that must be counted in some run.
const NAMES: [&str; 47] = [
    "calls: answered by another version",
    "calls: connections made",
    "calls: given up",
    "calls: no port",
    "calls: no resources",
    "calls: refused by the port",
    "calls: unknown node",
    "calls: unreachable",
    "channels: down, broken",
    "channels: down, closed",
    "channels: down, idle",
    "channels: down, removed",
    "channels: down, reset",
    "channels: down, restarted",
    "channels: down, unreachable",
    "channels: moved",
    "channels: nodes of another version",
    "channels: nodes reported as unreachable",
    "channels: up",
    "connections: closed by the peer",
    "connections: ended, node removed",
    "connections: ended, node restarted",
    "connections: ended, peer ended",
    "connections: ended, peer released",
    "connections: given up in silence",
    "connections: kept over a restart of the service",
    "connections: moved",
    "connections: never proved",
    "connections: peers vouched for",
    "faults: addresses changed",
    "faults: addresses changed in the file",
    "faults: bad times of the network",
    "faults: machines isolated",
    "faults: machines joined",
    "faults: machines joined again",
    "faults: machines removed",
    "faults: machines restarted",
    "faults: machines stalled",
    "faults: partitions of two machines",
    "faults: programs restarted",
    "faults: services ended",
    "faults: services killed",
    "files: adopted",
    "messages: received",
    "packets: for an address without a machine",
    "packets: lost between machines that cannot reach each other",
    "packets: sent",
];

/// What cannot happen between honest services of one version.
const NEVER: [&str; 5] = [
    "calls: answered by another version",
    "calls: no resources",
    "calls: refused by the port",
    "channels: down, broken",
    "channels: nodes of another version",
];

/// What a day of a fabric counts.
#[derive(Clone, Debug)]
pub struct Day;

/// The counts of a day.
pub type Counts = Tally<Day>;

impl Names for Day {
    fn names() -> Vec<&'static str> {
        NAMES.into()
    }
}

impl Counts {
    /// The names of what should have happened and has not, and of what has happened and never should.
    pub fn surprises(&self) -> Vec<&'static str> {
        let wrong = self.iter().filter(|(name, number)| (*number == 0) != NEVER.contains(name));
        wrong.map(|(name, _)| name).collect()
    }
}
