//! The graphs of the source documents, redrawn by models of their machines.

use bywire_history::{Kind, Machine, Pipeline, machines};
use bywire_results::quantity;
use maud::{Markup, html};

use crate::plot::data::{Axis, Look, Plot, Point, Series};
use crate::plot::section;
use crate::table::{self, Column, Table};

/// Points of a curve for each doubling of the length.
const POINTS_PER_DOUBLING: u32 = 4;

/// The number of packet boundaries whose two sides are among the points.
const EDGES: u32 = 8;

/// A graph of a document.
struct Graph {
    id: &'static str,
    document: &'static str,
    title: &'static str,
    /// The test whose printed figures belong on it.
    test: &'static str,
    to_bytes: f64,
    axis: Axis,
    value: fn(&Pipeline, f64) -> f64,
}

const GRAPHS: [Graph; 6] = [
    Graph {
        id: "model-gm-one-way",
        document: "gm",
        title: "GM, 2005, as a model: one-way rate",
        test: "stream",
        to_bytes: 1048576.0,
        axis: Axis::RATE,
        value: Pipeline::one_way,
    },
    Graph {
        id: "model-gm-two-way",
        document: "gm",
        title: "GM, 2005, as a model: two-way rate",
        test: "bidir",
        to_bytes: 1048576.0,
        axis: Axis::RATE,
        value: Pipeline::two_way,
    },
    Graph {
        id: "model-gm-half-rtt",
        document: "gm",
        title: "GM, 2005, as a model: half-RTT",
        test: "latency",
        to_bytes: 16384.0,
        axis: Axis::HALF_RTT,
        value: |pipeline, bytes| pipeline.half_rtt(bytes) * 1e9,
    },
    Graph {
        id: "model-bip-ping-pong",
        document: "bip",
        title: "BIP-IP, 1997, as a model: rate of a ping-pong",
        test: "ping-pong",
        to_bytes: 1048576.0,
        axis: Axis::RATE,
        value: |pipeline, bytes| bytes / pipeline.half_rtt(bytes),
    },
    Graph {
        id: "model-toe-half-rtt",
        document: "toe",
        title: "10-Gigabit TOE, 2005, as a model: half-RTT at MTU 9000",
        test: "latency",
        to_bytes: 16384.0,
        axis: Axis::HALF_RTT,
        value: |pipeline, bytes| pipeline.half_rtt(bytes) * 1e9,
    },
    Graph {
        id: "model-trapeze-half-rtt",
        document: "trapeze",
        title: "Trapeze, 1998, as a model: half-RTT",
        test: "latency",
        to_bytes: 16384.0,
        axis: Axis::HALF_RTT,
        value: |pipeline, bytes| pipeline.half_rtt(bytes) * 1e9,
    },
];

/// Every graph.
pub fn plots() -> Vec<Plot> {
    let machines = machines();
    GRAPHS.iter().map(|graph| graph.plot(&machines)).collect()
}

impl Graph {
    fn plot(&self, machines: &[Machine]) -> Plot {
        let machines = || machines.iter().filter(|machine| machine.document == self.document).enumerate();
        let mut series: Vec<Series> = machines()
            .map(|(slot, machine)| Series {
                name: machine.name.to_owned(),
                look: Look::Model,
                slot,
                points: self
                    .lengths(&machine.pipeline)
                    .into_iter()
                    .map(|bytes| Point::new(bytes, (self.value)(&machine.pipeline, bytes)))
                    .collect(),
            })
            .collect();
        series.extend(machines().filter_map(|(slot, machine)| self.published(slot, machine)));
        Plot {
            id: self.id,
            title: self.title,
            about: "Lines are the model's, drawn from the document's own printed figures; symbols are what it prints. \
                    Nothing here was measured."
                .into(),
            x: Axis::SIZE,
            y: self.axis,
            series,
            ..Plot::CURVES
        }
    }

    /// The lengths at which a curve is drawn.
    fn lengths(&self, pipeline: &Pipeline) -> Vec<f64> {
        let count = (self.to_bytes.log2() * f64::from(POINTS_PER_DOUBLING)) as u32;
        let spread =
            (0..=count).map(|point| (f64::from(point) / f64::from(POINTS_PER_DOUBLING)).exp2().round());
        let edges = (1..=EDGES).map(|edge| f64::from(edge) * pipeline.packet_bytes);
        let mut lengths: Vec<f64> = spread.chain(edges.flat_map(|edge| [edge, edge + 1.0])).collect();
        lengths.retain(|length| *length <= self.to_bytes);
        lengths.sort_by(f64::total_cmp);
        lengths.dedup();
        lengths
    }

    /// The printed points of a machine that belong on a graph. A rate of long messages is drawn at the right.
    fn published(&self, slot: usize, machine: &Machine) -> Option<Series> {
        let of_test = machine.checks.iter().filter(|check| check.figure.test == self.test);
        let mut points: Vec<Point> = Vec::new();
        for check in of_test
            .filter(|check| ["ns", "bytes_per_second"].contains(&check.figure.normalised.unit.as_str()))
        {
            let x = check.figure.size_bytes.map_or(self.to_bytes, |size| size as f64);
            let note = format!("{} {}", check.figure.printed, check.figure.unit);
            points.retain(|point| (point.x, point.note.as_ref()) != (x, Some(&note)));
            points.push(Point { note: Some(note), ..Point::new(x, check.figure.normalised.value) });
        }
        let name = format!("{}, as printed", machine.name);
        (!points.is_empty()).then_some(Series { name, look: Look::Historic, slot, points })
    }
}

/// The section with the graphs and with the model's value for each printed figure.
pub fn section(plots: &[Plot]) -> Markup {
    html! {
        h2 #models { "The documents' machines, as models" }
        p.about { "The graphs of the source documents are lost; their printed figures are not. A pipeline of few stages, made of those figures alone, draws the graphs again. What was fitted is met by construction; what was predicted tells how good the model is." }
        section.card {
            h3 { "What the models say of what was printed" }
            details {
                summary { "Table: models and printed figures" }
                (self::table())
            }
        }
        @for plot in plots { (section::of_plot(plot, plot.id)) }
    }
}

fn table() -> Markup {
    let columns = [
        Column::words("machine"),
        Column::words("figure"),
        Column::figures("printed"),
        Column::figures("model"),
        Column::figures("error"),
        Column::words("by"),
    ];
    let rows = rows().into_iter().map(|row| {
        let by = format!("{}: {}", row.kind.name(), row.from);
        table::Row::of([row.machine.to_owned(), row.figure, row.printed, row.modelled, row.error, by])
    });
    Table::new("Models and printed figures", columns.to_vec(), rows.collect()).html()
}

/// A printed figure and the model's value for it, as text.
pub struct Row {
    /// The machine.
    pub machine: &'static str,
    /// The quantity.
    pub figure: String,
    /// As printed.
    pub printed: String,
    /// The model's value, in today's units.
    pub modelled: String,
    /// The deviation, signed, in percent.
    pub error: String,
    /// Fitted or predicted.
    pub kind: Kind,
    /// The equation or the constants that it follows from.
    pub from: &'static str,
}

/// All rows, in the order of the machines.
pub fn rows() -> Vec<Row> {
    let machines = machines();
    let checks = machines.iter().flat_map(|machine| machine.checks.iter().map(move |check| (machine, check)));
    checks
        .map(|(machine, check)| {
            let figure = check.figure;
            let size =
                figure.size_bytes.map(|size| format!(", {}", quantity::size(size))).unwrap_or_default();
            let modelled = match figure.normalised.unit.as_str() {
                "ns" => quantity::duration(check.modelled),
                "bytes_per_second" => quantity::rate(check.modelled),
                "bytes" => format!("{:.0} B", check.modelled),
                "transactions_per_second" => quantity::per_second(check.modelled),
                _ => quantity::factor(check.modelled),
            };
            Row {
                machine: machine.name,
                figure: format!("{}{size}{}", figure.what, mtu_told(&figure.row)),
                printed: format!("{} {}", figure.printed, figure.unit),
                modelled,
                error: format!("{:+.1} %", check.error() * 100.0),
                kind: check.kind,
                from: check.from,
            }
        })
        .collect()
}

/// The MTU of a figure, if its row states one. One machine has figures at several.
fn mtu_told(row: &str) -> String {
    let mtu = row.split('/').find_map(|part| part.strip_prefix("mtu-"));
    mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_graph_has_its_curves_and_every_document_its_points() {
        let plots = plots();
        for (plot, graph) in plots.iter().zip(&GRAPHS) {
            let lines = plot.series.iter().filter(|series| series.look == Look::Model);
            assert!(lines.clone().count() >= 2, "{}", plot.id);
            for line in lines {
                assert!(
                    line.points.iter().all(|point| point.y.is_finite() && point.y > 0.0),
                    "{}",
                    line.name
                );
            }
            let printed = plot.series.iter().any(|series| series.look == Look::Historic);
            // BIP prints no points of its ping-pong except those of request/response.
            assert_eq!(printed, graph.document != "bip", "{}", plot.id);
        }
    }

    #[test]
    fn a_figure_is_shown_only_with_its_own_mtu() {
        let rows: Vec<(&str, String)> = rows().into_iter().map(|row| (row.machine, row.figure)).collect();
        assert!(rows.contains(&("TOE", "TOE over host, MTU 1500".to_owned())), "{rows:?}");
        assert!(rows.contains(&("host TCP/IP", "rate, MTU 9000".to_owned())), "{rows:?}");
        assert!(rows.contains(&("host TCP/IP", "rate, MTU 1500".to_owned())), "{rows:?}");
    }

    #[test]
    fn the_table_has_the_prediction_error_of_each_figure() {
        let text = table().into_string();
        for part in ["predicted: ", "fitted: ", "+7.3 %", "GM 2.1, PCIXE", "838 MByte/s"] {
            assert!(text.contains(part), "{part} is missing");
        }
    }
}
