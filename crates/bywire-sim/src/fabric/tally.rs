//! The counts of a day.

use std::collections::BTreeMap;

/// The names that must be counted in some run.
const NAMES: [&str; 46] = [
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
];

/// What cannot happen between honest services of one version.
const NEVER: [&str; 5] = [
    "calls: answered by another version",
    "calls: no resources",
    "calls: refused by the port",
    "channels: down, broken",
    "channels: nodes of another version",
];

/// Counts by name, or 0.
#[derive(Clone, Debug)]
pub struct Counts {
    numbers: BTreeMap<&'static str, u64>,
    packets: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self { numbers: NAMES.map(|name| (name, 0)).into(), packets: 0 }
    }
}

impl Counts {
    /// Counts a name.
    ///
    /// # Panics
    /// If the name is not listed, because its absence would not be noticed.
    pub(super) fn add(&mut self, name: &'static str) {
        *self.numbers.get_mut(name).unwrap_or_else(|| panic!("{name}")) += 1;
    }

    /// Counts a packet.
    pub(super) fn add_packet(&mut self) {
        self.packets += 1;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        for (name, number) in &other.numbers {
            *self.numbers.entry(name).or_default() += number;
        }
        self.packets += other.packets;
    }

    /// Packets that were sent.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.numbers.iter().map(|(name, number)| (*name, *number))
    }

    /// The names of what should have happened and has not, and of what has happened and never should.
    pub fn surprises(&self) -> Vec<&'static str> {
        let wrong = self.iter().filter(|(name, number)| (*number == 0) != NEVER.contains(name));
        wrong.map(|(name, _)| name).collect()
    }
}
