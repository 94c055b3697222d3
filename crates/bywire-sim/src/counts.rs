//! What has happened in a run: every fault, and every transition of the connections that has a name.

use std::collections::BTreeMap;

use bywire_wire::connection;

/// What has to happen in some run.
const FAULTS: [&str; 13] = [
    "network: packets damaged",
    "network: packets doubled",
    "network: packets dropped by a full buffer",
    "network: packets dropped by a full queue",
    "network: packets lost",
    "network: packets lost in a burst",
    "network: packets lost in a partition",
    "network: packets lost while one end closes",
    "network: packets overtaken",
    "network: packets too long for the path",
    "world: a low lane that stands",
    "world: an end that stalls",
    "world: datagrams that never came",
];

/// Numbers by name.
#[derive(Clone, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Default for Counts {
    fn default() -> Self {
        let mut counts = Self(FAULTS.map(|name| (name, 0)).into());
        counts.add_connection(&connection::Counts::default());
        counts
    }
}

impl Counts {
    /// Counts a fault.
    ///
    /// # Panics
    /// On one that is not listed: nobody would notice if it never happened.
    pub fn add_fault(&mut self, name: &'static str, number: u64) {
        assert!(FAULTS.contains(&name), "{name}");
        self.add(name, number);
    }

    fn add(&mut self, name: &'static str, number: u64) {
        *self.0.entry(name).or_default() += number;
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: &Self) {
        for (name, number) in &other.0 {
            self.add(name, *number);
        }
    }

    /// Everything that was counted, by name; 0 where it did not happen.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, number)| (*name, *number))
    }

    /// Adds what one connection has counted.
    pub fn add_connection(&mut self, counts: &connection::Counts) {
        // Named one by one, so that a new count does not compile without a line here.
        let connection::Counts {
            sent,
            taken,
            known,
            forged,
            // Only a hostile peer leaves so many gaps: crates/bywire-wire/tests/lanes.rs has one.
            no_room: _,
            acks_alone,
            lost,
            probes,
            persistent,
            size_found,
            size_probes_lost,
            black_holes,
            key_updates,
            peer_key_updates,
            window_full,
            paced,
            credit_out,
            low_held,
            datagrams_dropped,
        } = *counts;
        self.add("connection: packets sent", sent);
        self.add("connection: packets taken", taken);
        self.add("connection: packets known", known);
        self.add("connection: packets forged", forged);
        self.add("connection: acknowledgements alone", acks_alone);
        self.add("connection: packets lost", lost);
        self.add("connection: probes", probes);
        self.add("connection: persistent losses", persistent);
        self.add("connection: longer packets", size_found);
        self.add("connection: length probes lost", size_probes_lost);
        self.add("connection: black holes", black_holes);
        self.add("connection: key updates", key_updates);
        self.add("connection: key updates of the peer", peer_key_updates);
        self.add("connection: window full", window_full);
        self.add("connection: paced", paced);
        self.add("connection: out of credit", credit_out);
        self.add("connection: low behind high", low_held);
        self.add("connection: datagrams dropped", datagrams_dropped);
    }
}
