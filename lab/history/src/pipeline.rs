//! A message on its way through stages that work at the same time, each on a different packet.

/// One stage: a bus, a link, a protocol stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// The cost of each message, in seconds.
    pub message_seconds: f64,
    /// The cost of each packet, in seconds.
    pub packet_seconds: f64,
    /// The rate at which it moves payload.
    pub bytes_per_second: f64,
    /// The rate of both directions together, if they share it.
    pub shared_bytes_per_second: Option<f64>,
}

impl Stage {
    /// A stage that only moves bytes, with a separate rate for each direction.
    pub fn moving(name: &'static str, bytes_per_second: f64) -> Self {
        let (message_seconds, packet_seconds) = (0.0, 0.0);
        Self { name, message_seconds, packet_seconds, bytes_per_second, shared_bytes_per_second: None }
    }

    /// How long a message of this many bytes in this many packets occupies it.
    fn busy_seconds(&self, bytes: f64, packets: f64) -> f64 {
        self.message_seconds + packets * self.packet_seconds + bytes / self.bytes_per_second
    }

    /// Likewise for one message in each direction.
    fn busy_both_ways_seconds(&self, bytes: f64, packets: f64) -> f64 {
        let one = self.busy_seconds(bytes, packets);
        self.shared_bytes_per_second.map_or(one, |shared| one.max(2.0 * bytes / shared))
    }
}

/// The stages between two processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The part of the half-RTT that does not depend on the length.
    pub latency_seconds: f64,
    /// The most payload of a packet.
    pub packet_bytes: f64,
    /// The stages in the order of the path.
    pub stages: Vec<Stage>,
}

impl Pipeline {
    fn packets(&self, bytes: f64) -> f64 {
        (bytes / self.packet_bytes).ceil().max(1.0)
    }

    /// The rate of messages in a row, in bytes per second. The slowest stage is always busy.
    pub fn one_way(&self, bytes: f64) -> f64 {
        let packets = self.packets(bytes);
        bytes / self.slowest(|stage| stage.busy_seconds(bytes, packets))
    }

    /// The rate of both directions at once, added up.
    pub fn two_way(&self, bytes: f64) -> f64 {
        let packets = self.packets(bytes);
        2.0 * bytes / self.slowest(|stage| stage.busy_both_ways_seconds(bytes, packets))
    }

    /// The time of a single message, in seconds. Its first packet passes every stage, and the rest follows at the pace
    /// of the slowest.
    pub fn half_rtt(&self, bytes: f64) -> f64 {
        let first = bytes.min(self.packet_bytes);
        let through: f64 = self.stages.iter().map(|stage| first / stage.bytes_per_second).sum();
        let rest = self.packets(bytes) - 1.0;
        let behind =
            self.slowest(|stage| rest * stage.packet_seconds + (bytes - first) / stage.bytes_per_second);
        self.latency_seconds + through + behind
    }

    /// The length at half of the final rate of whole packets, in bytes.
    pub fn half_length(&self) -> f64 {
        let half = self.one_way(self.packet_bytes * 1e6) / 2.0;
        let (mut below, mut above) = (1.0, self.packet_bytes * 1e6);
        // The first crossing, because within a packet the rate only grows.
        while above - below > 0.01 {
            let middle = (below + above) / 2.0;
            if self.one_way(middle) < half { below = middle } else { above = middle }
        }
        above
    }

    fn slowest(&self, busy: impl Fn(&Stage) -> f64) -> f64 {
        self.stages.iter().map(busy).fold(f64::MIN_POSITIVE, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pipelines() -> impl Strategy<Value = Pipeline> {
        let stage = (0.0..1e-5, 0.0..1e-6, 1e7..1e10, prop::option::of(1e7..1e10)).prop_map(
            |(message_seconds, packet_seconds, bytes_per_second, shared_bytes_per_second)| Stage {
                name: "stage",
                message_seconds,
                packet_seconds,
                bytes_per_second,
                shared_bytes_per_second,
            },
        );
        (0.0..1e-4, 64.0f64..65_536.0, prop::collection::vec(stage, 1..5)).prop_map(
            |(latency_seconds, packet_bytes, stages)| Pipeline {
                latency_seconds,
                packet_bytes: packet_bytes.round(),
                stages,
            },
        )
    }

    proptest! {
        #[test]
        fn no_rate_is_above_the_slowest_stage(pipeline in pipelines(), bytes in 1.0..1e7) {
            let slowest = pipeline.stages.iter().map(|stage| stage.bytes_per_second).fold(f64::MAX, f64::min);
            let (one_way, two_way) = (pipeline.one_way(bytes), pipeline.two_way(bytes));
            prop_assert!(one_way <= slowest * (1.0 + 1e-9));
            prop_assert!(two_way <= 2.0 * slowest * (1.0 + 1e-9) && two_way <= 2.0 * one_way * (1.0 + 1e-9));
            let shared = pipeline.stages.iter().filter_map(|stage| stage.shared_bytes_per_second);
            prop_assert!(shared.into_iter().all(|shared| two_way <= shared * (1.0 + 1e-9)));
        }

        #[test]
        fn rates_grow_within_a_packet_and_by_whole_packets(pipeline in pipelines(), part in 0.01..0.99, whole in 1..200) {
            let packet = pipeline.packet_bytes;
            let one_way = |bytes| pipeline.one_way(bytes);
            let grows = |less, more| one_way(less) <= one_way(more) * (1.0 + 1e-9);
            prop_assert!(grows(packet * part, packet));
            prop_assert!(grows(packet * f64::from(whole), packet * f64::from(whole + 1)));
            // The first byte of another packet costs that packet. This causes the teeth of the graphs.
            let edge = packet * f64::from(whole);
            prop_assert!(one_way(edge + 1.0) <= one_way(edge) * (1.0 + 1.0 / edge));
        }

        #[test]
        fn a_longer_message_takes_longer(pipeline in pipelines(), bytes in 1.0..1e7, more in 1.0..1e6) {
            prop_assert!(pipeline.half_rtt(bytes + more) >= pipeline.half_rtt(bytes));
            prop_assert!(pipeline.half_rtt(bytes) >= pipeline.latency_seconds);
        }
    }

    #[test]
    fn the_half_length_is_where_the_cost_of_a_message_equals_its_bytes() {
        let link = Stage { message_seconds: 3e-6, ..Stage::moving("link", 5e8) };
        let pipeline = Pipeline { latency_seconds: 0.0, packet_bytes: 4096.0, stages: vec![link] };
        assert!((pipeline.half_length() - 1500.0).abs() < 1.0, "{}", pipeline.half_length());
    }
}
