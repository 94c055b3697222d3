//! The counts of a run: every fault, and every named transition of the connections.

use std::collections::BTreeMap;

use bywire_wire::connection;

/// The names that must be counted in some run.
const FAULTS: [&str; 18] = [
    "network: packets damaged",
    "network: packets doubled",
    "network: packets dropped by a full buffer",
    "network: packets dropped by a full queue",
    "network: packets lost",
    "network: packets lost in a burst",
    "network: packets lost in a partition",
    "network: packets lost while one end closes",
    "network: packets overtaken",
    "network: packets that met no socket",
    "network: packets too long for the path",
    "network: paths that become narrower",
    "simulation: a low lane that stands",
    "simulation: an end that crashes",
    "simulation: an end that stalls",
    "simulation: datagrams that never came",
    "simulation: high bytes while the low lane stands full",
    "simulation: packets of an earlier life",
];

/// Counts by name.
#[derive(Clone, Debug)]
pub struct Counts {
    numbers: BTreeMap<&'static str, u64>,
    /// The largest share of the permitted time after faults had stopped, in thousandths, and its seed.
    slowest: (u64, u64),
}

impl Default for Counts {
    fn default() -> Self {
        let mut counts = Self { numbers: FAULTS.map(|name| (name, 0)).into(), slowest: (0, 0) };
        counts.add_connection(&connection::Counts::default());
        counts
    }
}

impl Counts {
    /// Counts a fault.
    ///
    /// # Panics
    /// If it is not listed, because its absence would not be noticed.
    pub fn add_fault(&mut self, name: &'static str, number: u64) {
        assert!(FAULTS.contains(&name), "{name}");
        self.add(name, number);
    }

    fn add(&mut self, name: &'static str, number: u64) {
        *self.numbers.entry(name).or_default() += number;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        for (name, number) in &other.numbers {
            self.add(name, *number);
        }
        self.slowest = self.slowest.max(other.slowest);
    }

    /// Notes the time that a run took after faults had stopped, in thousandths of the permitted time.
    pub fn note_time(&mut self, thousandths: u64, seed: u64) {
        self.slowest = self.slowest.max((thousandths, seed));
    }

    /// The largest such time, in thousandths, and its seed.
    pub fn slowest(&self) -> (u64, u64) {
        self.slowest
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.numbers.iter().map(|(name, number)| (*name, *number))
    }

    /// Adds the counts of one connection.
    pub fn add_connection(&mut self, counts: &connection::Counts) {
        // They are named one by one, so that a new count does not compile without a line here.
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
            datagrams_lost,
            numbers_full,
            beyond_window,
            unheard,
            acks_asking,
            close_repeats,
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
        self.add("connection: datagrams never whole", datagrams_lost);
        self.add("connection: numbers out", numbers_full);
        self.add("connection: packets beyond the window", beyond_window);
        self.add("connection: packets that nobody heard", unheard);
        self.add("connection: acknowledgements that ask for one", acks_asking);
        self.add("connection: closes repeated", close_repeats);
    }
}
