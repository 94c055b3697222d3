//! The graphs of the source documents, redrawn by models of their machines.

use bywire_history::{Check, Kind, Machine, Pipeline, machines};
use bywire_results::quantity;
use maud::{Markup, html};

use crate::plot::data::{Axis, Look, Plot, Point, Series};
use crate::plot::section;
use crate::table::{self, Column, Table};

/// Points of a curve for each doubling of the length.
const POINTS_PER_DOUBLING: f64 = 4.0;

/// The number of packet boundaries whose two sides are among the points.
const EDGES: u32 = 8;

/// A graph of a document: its name, whose second word is the document, its title, the test whose printed figures belong on
/// it, and the value of its curves in the unit of that test.
struct Graph(&'static str, &'static str, &'static str, fn(&Pipeline, f64) -> f64);

const GRAPHS: [Graph; 6] = [
    Graph("model-gm-one-way", "GM, 2005, as a model: one-way rate", "stream", Pipeline::one_way),
    Graph("model-gm-two-way", "GM, 2005, as a model: two-way rate", "bidir", Pipeline::two_way),
    Graph("model-gm-half-rtt", "GM, 2005, as a model: half-RTT", LATENCY, half_rtt_ns),
    Graph(
        "model-bip-ping-pong",
        "BIP-IP, 1997, as a model: rate of a ping-pong",
        "ping-pong",
        |pipeline, bytes| bytes / pipeline.half_rtt(bytes),
    ),
    Graph(
        "model-toe-half-rtt",
        "10-Gigabit TOE, 2005, as a model: half-RTT at MTU 9000",
        LATENCY,
        half_rtt_ns,
    ),
    Graph("model-trapeze-half-rtt", "Trapeze, 1998, as a model: half-RTT", LATENCY, half_rtt_ns),
];

const LATENCY: &str = "latency";

fn half_rtt_ns(pipeline: &Pipeline, bytes: f64) -> f64 {
    pipeline.half_rtt(bytes) * 1e9
}

pub fn plots() -> Vec<Plot> {
    let machines = machines();
    GRAPHS.iter().map(|graph| graph.plot(&machines)).collect()
}

impl Graph {
    fn plot(&self, machines: &[Machine]) -> Plot {
        let Self(id, title, test, value) = *self;
        let machines =
            || machines.iter().filter(|machine| Some(machine.document) == self.document()).enumerate();
        let curve = |(slot, machine): (usize, &Machine)| {
            let point = |bytes| Point::new(bytes, value(&machine.pipeline, bytes));
            let lengths = self.lengths(&machine.pipeline).into_iter();
            Series::new(machine.name, Look::Model, slot, lengths.map(point))
        };
        let printed = machines().filter_map(|(slot, machine)| self.published(slot, machine));
        let about = "Lines are the model's, drawn from the document's own printed figures; symbols are what it prints. \
                     Nothing here was measured.";
        let y = if test == LATENCY { Axis::HALF_RTT } else { Axis::RATE };
        Plot::curves([id, title], about, [Axis::SIZE, y], machines().map(curve).chain(printed).collect())
    }

    fn document(&self) -> Option<&'static str> {
        self.0.split('-').nth(1)
    }

    /// The longest message.
    fn to_bytes(&self) -> f64 {
        if self.2 == LATENCY { 16384.0 } else { 1048576.0 }
    }

    /// The lengths at which a curve is drawn.
    fn lengths(&self, pipeline: &Pipeline) -> Vec<f64> {
        let count = (self.to_bytes().log2() * POINTS_PER_DOUBLING) as u32;
        let spread = (0..=count).map(|point| (f64::from(point) / POINTS_PER_DOUBLING).exp2().round());
        let edges = (1..=EDGES).map(|edge| f64::from(edge) * pipeline.packet_bytes);
        let mut lengths: Vec<f64> = spread.chain(edges.flat_map(|edge| [edge, edge + 1.0])).collect();
        lengths.retain(|length| *length <= self.to_bytes());
        lengths.sort_by(f64::total_cmp);
        lengths.dedup();
        lengths
    }

    /// The printed points of a machine that belong on a graph. A rate of long messages is drawn at the right.
    fn published(&self, slot: usize, machine: &Machine) -> Option<Series> {
        let figures = machine.checks.iter().map(|check| check.figure).filter(|figure| figure.test == self.2);
        let mut points: Vec<Point> = Vec::new();
        for figure in figures.filter(|figure| ["ns", "bytes_per_second"].contains(&&*figure.normalised.unit))
        {
            let x = figure.size_bytes.map_or(self.to_bytes(), |size| size as f64);
            let note = Some(format!("{} {}", figure.printed, figure.unit));
            points.retain(|point| (point.x, &point.note) != (x, &note));
            points.push(Point { note, ..Point::new(x, figure.normalised.value) });
        }
        let series = Series::new(format!("{}, as printed", machine.name), Look::Historic, slot, points);
        Some(series).filter(|series| !series.points.is_empty())
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
    let columns = Column::aligned("llrrrl", ["machine", "figure", "printed", "model", "error", "by"]);
    let rows = rows().into_iter().map(|row| {
        let by = format!("{}: {}", row.kind.name(), row.from);
        table::Row::of([row.machine.to_owned(), row.figure, row.printed, row.modelled, row.error, by])
    });
    Table::new("Models and printed figures", columns, rows.collect()).html()
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
    checks.map(|(machine, check)| row(machine, check)).collect()
}

fn row(machine: &Machine, check: &Check) -> Row {
    let figure = check.figure;
    let size = quantity::size_after(", ", figure.size_bytes);
    // The MTU, if the figure's row states one. One machine has figures at several.
    let mtu = figure.row.split('/').find_map(|part| part.strip_prefix("mtu-"));
    let mtu = mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
    let modelled = match figure.normalised.unit.as_str() {
        "ns" => quantity::duration(check.modelled),
        "bytes_per_second" => quantity::rate(check.modelled),
        "bytes" => format!("{:.0} B", check.modelled),
        "transactions_per_second" => quantity::per_second(check.modelled),
        _ => quantity::factor(check.modelled),
    };
    Row {
        machine: machine.name,
        figure: format!("{}{size}{mtu}", figure.what),
        printed: format!("{} {}", figure.printed, figure.unit),
        modelled,
        error: format!("{:+.1} %", check.error() * 100.0),
        kind: check.kind,
        from: check.from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_graph_has_its_curves_and_every_document_its_points() {
        let plots = plots();
        for (plot, graph) in plots.iter().zip(&GRAPHS) {
            assert!(plot.of_look(Look::Model).count() >= 2, "{}", plot.id);
            for line in plot.of_look(Look::Model) {
                let is_drawn = |point: &Point| point.y.is_finite() && point.y > 0.0;
                assert!(line.points.iter().all(is_drawn), "{}", line.name.plain);
            }
            // BIP prints no points of its ping-pong except those of request/response.
            assert_eq!(plot.has_printed(), graph.document() != Some("bip"), "{}", plot.id);
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
