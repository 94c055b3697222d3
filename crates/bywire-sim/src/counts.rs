//! The counts of a run: every fault, and every named transition of the connections.

use bywire_wire::connection;

use crate::tally::{Names, Tally};

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

/// What a simulation of two connections counts.
#[derive(Clone, Debug)]
struct Connections;

impl Names for Connections {
    fn names() -> Vec<&'static str> {
        let transitions = transitions(&connection::Counts::default());
        FAULTS.into_iter().chain(transitions.map(|(name, _)| name)).collect()
    }
}

/// The counts of a run, and its time.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    tally: Tally<Connections>,
    /// The largest share of the permitted time after faults had stopped, in thousandths, and its seed.
    slowest: (u64, u64),
}

impl Counts {
    /// Counts a fault.
    ///
    /// # Panics
    /// If it is not listed.
    pub fn add_fault(&mut self, name: &'static str, number: u64) {
        self.tally.add(name, number);
    }

    /// Adds the counts of one connection.
    pub fn add_connection(&mut self, counts: &connection::Counts) {
        self.tally.add_all(transitions(counts));
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.tally.merge(&other.tally);
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
        self.tally.iter()
    }
}

/// The transitions of one connection, by name.
fn transitions(counts: &connection::Counts) -> [(&'static str, u64); 25] {
    // They are named one by one, so that a new count does not compile without a line here.
    let connection::Counts {
        sent,
        taken,
        known,
        forged,
        // Only a hostile peer leaves too many gaps: crates/bywire-wire/tests/suite/lanes.rs has one.
        no_room: _,
        acks_alone,
        lost,
        probes,
        persistent,
        size_found,
        size_probes_lost,
        early_lost,
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
    [
        ("connection: packets sent", sent),
        ("connection: packets taken", taken),
        ("connection: packets known", known),
        ("connection: packets forged", forged),
        ("connection: acknowledgements alone", acks_alone),
        ("connection: packets lost", lost),
        ("connection: probes", probes),
        ("connection: persistent losses", persistent),
        ("connection: longer packets", size_found),
        ("connection: length probes lost", size_probes_lost),
        ("connection: lost before the peer was heard", early_lost),
        ("connection: black holes", black_holes),
        ("connection: key updates", key_updates),
        ("connection: key updates of the peer", peer_key_updates),
        ("connection: window full", window_full),
        ("connection: paced", paced),
        ("connection: out of credit", credit_out),
        ("connection: low behind high", low_held),
        ("connection: datagrams dropped", datagrams_dropped),
        ("connection: datagrams never whole", datagrams_lost),
        ("connection: numbers out", numbers_full),
        ("connection: packets beyond the window", beyond_window),
        ("connection: packets that nobody heard", unheard),
        ("connection: acknowledgements that ask for one", acks_asking),
        ("connection: closes repeated", close_repeats),
    ]
}
