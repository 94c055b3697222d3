//! The machines: the figures that each document prints about its own, and what follows from them.

use crate::document::{Figure, figures};
use crate::pipeline::{Pipeline, Stage};

/// The fragment length of GM in bytes, as both of its texts state.
const GM_FRAGMENT_BYTES: f64 = 4096.0;

/// A message of GM that is long enough for its final rate.
const GM_LONG_BYTES: f64 = GM_FRAGMENT_BYTES * 1e6;

/// The clock rates of GM's cards in MHz, which their tables print beside the card.
const PCIXD_MHZ: f64 = 225.0;
const PCIXF_MHZ: f64 = 333.0;

/// "Short" messages have no length in GM's text.
const SHORT_BYTES: f64 = 8.0;

/// The payload of a TCP segment for an MTU, which is 40 bytes of headers and 12 of time stamps less.
const SEGMENT_OVERHEAD_BYTES: f64 = 52.0;

/// The bytes of an Ethernet frame on the link besides its MTU: header, check sequence, preamble and gap.
const FRAME_OVERHEAD_BYTES: f64 = 38.0;

/// The origin of a model's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model was fitted to it.
    Fitted,
    /// The model derives it from other figures.
    Predicted,
}

impl Kind {
    /// `fitted` or `predicted`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
        }
    }
}

/// A published point and the model's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// As printed.
    pub figure: &'static Figure,
    /// The origin of the model's value.
    pub kind: Kind,
    /// The model's value, in the unit of `figure.normalised`.
    pub modelled: f64,
    /// The equation or the constants that it follows from.
    pub from: &'static str,
}

impl Check {
    const fn fitted(figure: &'static Figure, modelled: f64, from: &'static str) -> Self {
        Self { figure, kind: Kind::Fitted, modelled, from }
    }

    const fn predicted(figure: &'static Figure, modelled: f64, from: &'static str) -> Self {
        Self { figure, kind: Kind::Predicted, modelled, from }
    }

    /// The model's deviation as a share of the printed value, positive if the model's value is larger.
    pub fn error(&self) -> f64 {
        self.modelled / self.figure.normalised.value - 1.0
    }
}

/// One machine, or one path through it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The document's short name.
    pub document: &'static str,
    /// Its name in a legend.
    pub name: &'static str,
    /// The model.
    pub pipeline: Pipeline,
    /// The published points.
    pub checks: Vec<Check>,
}

/// Every machine whose document prints enough.
pub fn machines() -> Vec<Machine> {
    [gm(), bip(), toe(), trapeze()].concat()
}

/// The only figure of that row with the quantity `what`, and with this size if one is given.
fn figure(row: &str, what: &str, size_bytes: Option<u64>) -> &'static Figure {
    let of_row = figures().map(|(_, figure)| figure).filter(|figure| figure.row == row);
    let mut found = of_row.filter(|figure| {
        figure.what.starts_with(what) && (size_bytes.is_none() || figure.size_bytes == size_bytes)
    });
    // The figures are part of the program, and a test requires all of these.
    found.next().unwrap_or_else(|| panic!("no figure {what} of {row}"))
}

/// A card of GM.
struct Card {
    name: &'static str,
    one_way: &'static Figure,
    two_way: &'static Figure,
    half_rtt: &'static Figure,
    half_length: &'static Figure,
    link: f64,
    bus: [Stage; 2],
}

impl Card {
    fn of(name: &'static str, version: &str, card: &str, shared: Option<f64>) -> Self {
        let of_card = |what: &str, test: &str| figure(&format!("gm/{version}/{card}/{test}"), what, None);
        let value =
            |row: &str, what: &str| figure(&format!("gm/{version}/{row}"), what, None).normalised.value;
        let (read, write) = (value("bus/read", "bus read"), value("bus/write", "bus write"));
        // If the document does not print both at once, each byte crosses as a read or as a write.
        let shared = Some(shared.unwrap_or(2.0 / (1.0 / read + 1.0 / write)));
        let links = if version == "2.1" { "dual links" } else { "a link" };
        Self {
            name,
            one_way: of_card("one-way rate", "one-way"),
            two_way: of_card("two-way rate", "two-way"),
            half_rtt: of_card("half-RTT", "latency"),
            half_length: of_card("N½", "n-half"),
            link: value("link", &format!("unidirectional rate of {links}")),
            bus: [("bus of the source", read), ("bus of the target", write)]
                .map(|(bus, rate)| Stage { shared_bytes_per_second: shared, ..Stage::moving(bus, rate) }),
        }
    }

    /// The bytes of each packet that are not payload, on the link: what is missing of the link's rate.
    fn header_bytes(&self) -> f64 {
        GM_FRAGMENT_BYTES * (self.link / self.one_way.normalised.value - 1.0)
    }

    /// The card's cost of each message, from N½.
    fn message_seconds(&self) -> f64 {
        let (bytes, rate) = (self.half_length.normalised.value, self.one_way.normalised.value);
        2.0 * bytes / rate - (bytes + self.header_bytes()) / self.link
    }

    fn pipeline(&self, header_bytes: f64, message_seconds: f64) -> Pipeline {
        let [source, target] = self.bus.clone();
        let packet_seconds = header_bytes / self.link;
        let card = Stage { message_seconds, packet_seconds, ..Stage::moving("card and link", self.link) };
        let stages = vec![source, card, target];
        let mut pipeline = Pipeline { latency_seconds: 0.0, packet_bytes: GM_FRAGMENT_BYTES, stages };
        pipeline.latency_seconds = self.half_rtt.normalised.value * 1e-9 - pipeline.half_rtt(SHORT_BYTES);
        pipeline
    }

    fn machine(&self, checks: &[Check]) -> Machine {
        let pipeline = self.pipeline(self.header_bytes(), self.message_seconds());
        let half_rtt = pipeline.half_rtt(SHORT_BYTES) * 1e9;
        let both = "the slower of both links and the bus that both directions share";
        let own = [
            Check::fitted(self.one_way, pipeline.one_way(GM_LONG_BYTES), "the header of each packet"),
            Check::fitted(self.half_length, pipeline.half_length(), "the cost of each message"),
            Check::fitted(self.half_rtt, half_rtt, "the fixed part of the way"),
            Check::predicted(self.two_way, pipeline.two_way(GM_LONG_BYTES), both),
        ];
        Machine { document: "gm", name: self.name, pipeline, checks: [&own[..], checks].concat() }
    }

    /// The figures of a card with a faster clock that follow from the packets and the cost of a message of the PCIXD.
    fn by_sibling(&self, slow: &Self, packets: &'static str) -> [Check; 2] {
        let sibling = self.pipeline(slow.header_bytes(), slow.message_seconds() * PCIXD_MHZ / PCIXF_MHZ);
        let clock = "the PCIXD's cost of a message, by the clock";
        [
            Check::predicted(self.one_way, sibling.one_way(GM_LONG_BYTES), packets),
            Check::predicted(self.half_length, sibling.half_length(), clock),
        ]
    }
}

/// GM's three cards. The two of GM 2.0 differ only by their clocks, which shows the part of the cost that depends on
/// the clock.
fn gm() -> Vec<Machine> {
    let readwrite = figure("gm/2.1/bus/readwrite", "bus read+write", None).normalised.value;
    let slow = Card::of("GM 2.0, PCIXD", "2.0", "pcixd", None);
    let fast = Card::of("GM 2.0, PCIXF", "2.0", "pcixf", None);
    let dual = Card::of("GM 2.1, PCIXE", "2.1", "pcixe", Some(readwrite));
    let of_fast = fast.by_sibling(&slow, "the PCIXD's packets");
    let [one_way, half_length] = dual.by_sibling(&slow, "the PCIXD's packets on two links");
    // The clock and the path are those of the PCIXF. Only the link differs.
    let same = fast.half_rtt.normalised.value;
    let half_rtt = Check::predicted(dual.half_rtt, same, "the PCIXF's, whose clock is the same");
    vec![slow.machine(&[]), fast.machine(&of_fast), dual.machine(&[one_way, half_length, half_rtt])]
}

/// BIP's ping-pong: two streams give the cost of a call and of a byte, and request/response gives the rest.
fn bip() -> Vec<Machine> {
    let short = figure("bip/stream/tcp-stream-7872-ppro", "rate", None);
    let long = figure("bip/stream/tcp-stream-16384-ppro", "rate", None);
    let datagrams = figure("bip/stream/udp-stream-7872-ppro", "rate", None);
    let [tcp, udp] = ["tcp", "udp"].map(|name| figure(&format!("bip/rr/{name}-ppro"), "rate", None));
    let [few, many] = [7872.0, 16_384.0];
    let took = |bytes: f64, figure: &Figure| bytes / figure.normalised.value;
    let bytes_per_second = (many - few) / (took(many, long) - took(few, short));
    let message_seconds = took(few, short) - few / bytes_per_second;
    let pipeline = |rr: &Figure, message_seconds: f64| {
        let stage = Stage { message_seconds, ..Stage::moving("stack, card and link", bytes_per_second) };
        let half_rtt = 0.5 / rr.normalised.value;
        let latency_seconds = half_rtt - 1.0 / bytes_per_second;
        // Its packets are unknown, because neither MTU is printed.
        Pipeline { latency_seconds, packet_bytes: 1e12, stages: vec![stage] }
    };
    let transactions = |pipeline: &Pipeline| 0.5 / pipeline.half_rtt(1.0);
    let stream = pipeline(tcp, message_seconds);
    // The cost of a UDP call is less by as much as its round trip is.
    let datagram = pipeline(udp, message_seconds * tcp.normalised.value / udp.normalised.value);
    let (calls, fixed) = ("the cost of a call and of a byte", "the fixed part of the way");
    let by_tcp = "TCP's bytes, and its calls by the ratio of round trips";
    let of_stream = vec![
        Check::fitted(short, stream.one_way(few), calls),
        Check::fitted(long, stream.one_way(many), calls),
        Check::fitted(tcp, transactions(&stream), fixed),
    ];
    let of_datagram = vec![
        Check::fitted(udp, transactions(&datagram), fixed),
        Check::predicted(datagrams, datagram.one_way(few), by_tcp),
    ];
    vec![
        Machine { document: "bip", name: "BIP-IP, TCP", pipeline: stream, checks: of_stream },
        Machine { document: "bip", name: "BIP-IP, UDP", pipeline: datagram, checks: of_datagram },
    ]
}

/// Host TCP/IP at two MTUs gives the cost of a packet and of a byte. Offload pays only for frames on the link.
fn toe() -> Vec<Machine> {
    let host_jumbo = figure("toe/mtu-9000/rate-host", "rate", None);
    let host_standard = figure("toe/mtu-1500/rate-host", "rate", None);
    let offload_jumbo = figure("toe/mtu-9000/rate-toe", "rate", None);
    let gain = figure("toe/mtu-1500/gain", "TOE over host", None);
    let [host, offload] =
        ["host", "toe"].map(|end| figure(&format!("toe/mtu-9000/latency-{end}"), "half-RTT", None));
    let [jumbo, standard] = [9000.0, 1500.0].map(|mtu_bytes| mtu_bytes - SEGMENT_OVERHEAD_BYTES);
    let took = |bytes: f64, figure: &Figure| bytes / figure.normalised.value;
    let bytes_per_second = (jumbo - standard) / (took(jumbo, host_jumbo) - took(standard, host_standard));
    let packet_seconds = took(standard, host_standard) - standard / bytes_per_second;
    // The share of payload in a frame on the link.
    let share = |payload: f64| payload / (payload + SEGMENT_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES);
    let offload_standard = offload_jumbo.normalised.value * share(standard) / share(jumbo);
    let pipeline = |half_rtt: &Figure, stage: Stage, packet_bytes| {
        let latency_seconds = half_rtt.normalised.value * 1e-9 - 1.0 / stage.bytes_per_second;
        Pipeline { latency_seconds, packet_bytes, stages: vec![stage] }
    };
    let stack = Stage { packet_seconds, ..Stage::moving("stack", bytes_per_second) };
    let by_host = pipeline(host, stack.clone(), jumbo);
    let by_host_standard = pipeline(host, stack, standard);
    let by_card = pipeline(offload, Stage::moving("card", offload_jumbo.normalised.value), jumbo);
    let long = 1e9;
    let (packets, fixed) = ("the cost of a packet and of a byte", "the fixed part of the way");
    let predicted = offload_standard / by_host_standard.one_way(standard * long);
    let of_host = vec![
        Check::fitted(host_jumbo, by_host.one_way(jumbo * long), packets),
        Check::fitted(host_standard, by_host_standard.one_way(standard * long), packets),
        Check::fitted(host, by_host.half_rtt(1.0) * 1e9, fixed),
    ];
    let of_card = vec![
        Check::fitted(offload_jumbo, by_card.one_way(jumbo * long), "the cost of a byte"),
        Check::fitted(offload, by_card.half_rtt(1.0) * 1e9, fixed),
        Check::predicted(gain, predicted, "the rate at MTU 9000, less what shorter frames take of the link"),
    ];
    vec![
        Machine { document: "toe", name: "host TCP/IP", pipeline: by_host, checks: of_host },
        Machine { document: "toe", name: "TOE", pipeline: by_card, checks: of_card },
    ]
}

/// Duke's table of half-RTT: 1 KB and 8 KB give the fixed part and the cost of a byte, which predict the lengths
/// between.
fn trapeze() -> Vec<Machine> {
    let machine = |protocol: &str, name| {
        let at = |bytes| figure(&format!("trapeze/latency/{protocol}"), "latency", Some(bytes));
        let (short, long) = (at(1024), at(8192));
        let seconds = |figure: &Figure| figure.normalised.value * 1e-9;
        let bytes_per_second = (8192.0 - 1024.0) / (seconds(long) - seconds(short));
        let stage = Stage::moving("stack, card and link", bytes_per_second);
        let latency_seconds = seconds(short) - 1024.0 / bytes_per_second;
        let pipeline = Pipeline { latency_seconds, packet_bytes: 1e12, stages: vec![stage] };
        let checks = [1, 64, 1024, 2048, 4096, 8192].map(|bytes: u64| {
            let kind = if [1024, 8192].contains(&bytes) { Kind::Fitted } else { Kind::Predicted };
            let from = match bytes {
                1 | 64 => "1 KB and 8 KB; short ones went another way",
                _ => "1 KB and 8 KB",
            };
            Check { figure: at(bytes), kind, modelled: pipeline.half_rtt(bytes as f64) * 1e9, from }
        });
        Machine { document: "trapeze", name, pipeline, checks: checks.to_vec() }
    };
    vec![machine("udp", "Trapeze, UDP"), machine("tcp", "Trapeze, TCP")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(kind: Kind) -> Vec<(&'static str, Check)> {
        let named = |machine: Machine| machine.checks.into_iter().map(move |check| (machine.name, check));
        machines().into_iter().flat_map(named).filter(|(_, check)| check.kind == kind).collect()
    }

    #[test]
    fn the_models_meet_the_fitted_figures() {
        let fitted = checks(Kind::Fitted);
        assert!(fitted.len() >= 20, "{}", fitted.len());
        for (name, check) in fitted {
            assert!(check.error().abs() < 0.005, "{name}, {}: {}", check.figure.row, check.error());
        }
    }

    #[test]
    fn prediction_errors_match_the_page() {
        // In percent. A change of any of these is a change of the model, which the page's readers must learn of.
        let expected = [
            ("GM 2.0, PCIXD", "gm/2.0/pcixd/two-way", 1.4),
            ("GM 2.0, PCIXF", "gm/2.0/pcixf/two-way", 1.4),
            ("GM 2.0, PCIXF", "gm/2.0/pcixf/one-way", 0.0),
            ("GM 2.0, PCIXF", "gm/2.0/pcixf/n-half", -4.8),
            ("GM 2.1, PCIXE", "gm/2.1/pcixe/two-way", 7.3),
            ("GM 2.1, PCIXE", "gm/2.1/pcixe/one-way", 0.2),
            ("GM 2.1, PCIXE", "gm/2.1/pcixe/n-half", -18.9),
            ("GM 2.1, PCIXE", "gm/2.1/pcixe/latency", -10.9),
            ("BIP-IP, UDP", "bip/stream/udp-stream-7872-ppro", -8.6),
            ("TOE", "toe/mtu-1500/gain", -10.6),
            ("Trapeze, UDP", "trapeze/latency/udp", 49.7),
            ("Trapeze, UDP", "trapeze/latency/udp", 49.8),
            ("Trapeze, UDP", "trapeze/latency/udp", -1.5),
            ("Trapeze, UDP", "trapeze/latency/udp", -1.4),
            ("Trapeze, TCP", "trapeze/latency/tcp", 59.6),
            ("Trapeze, TCP", "trapeze/latency/tcp", 54.6),
            ("Trapeze, TCP", "trapeze/latency/tcp", 0.2),
            ("Trapeze, TCP", "trapeze/latency/tcp", -0.6),
        ];
        let found = checks(Kind::Predicted);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((name, check), expected) in found.iter().zip(expected) {
            assert_eq!((*name, check.figure.row.as_str()), (expected.0, expected.1));
            let error = (check.error() * 1000.0).round() / 10.0;
            assert!((error - expected.2).abs() < 0.15, "{name}: {error}, not {expected:?}");
        }
    }

    #[test]
    fn fragmentation_makes_a_sawtooth_and_long_messages_approach_the_link_rate() {
        for machine in machines().iter().filter(|machine| machine.document == "gm") {
            let pipeline = &machine.pipeline;
            let edge = GM_FRAGMENT_BYTES * 2.0;
            assert!(pipeline.one_way(edge + 1.0) < pipeline.one_way(edge), "{}", machine.name);
            let asymptote = machine.checks[0].figure.normalised.value;
            assert!((pipeline.one_way(1e6) / asymptote - 1.0).abs() < 0.01, "{}", machine.name);
        }
    }
}
