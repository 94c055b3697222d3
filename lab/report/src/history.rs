//! The section of the source documents: their printed figures beside the nearest results of this session, and models of
//! their machines.

use bywire_history::{Document, Figure};
use bywire_results::cell::{Cell, Unit};
use bywire_results::ethernet::Protocol;
use bywire_results::level::MEMORY;
use bywire_results::quantity;
use maud::{Markup, html};

use crate::ceiling::Ceilings;
use crate::model;
use crate::plot::{self, section};
use crate::table::{self, Column, Entry, Table};
use crate::way::Way;

/// The section. `name` makes the identifiers of its parts.
pub fn section(ways: &[Way], ceilings: &Ceilings, name: &dyn Fn(&str) -> String) -> Markup {
    html! {
        (past(&comparisons(ways, ceilings), &name("past")))
        @for plot in plot::then_and_now(ways, ceilings) { (section::of_plot(&plot, &name(plot.id))) }
        (model::section(&model::plots()))
    }
}

fn past(comparisons: &[Comparison], place: &str) -> Markup {
    html! {
        section.card id=(place) {
            h3 { "Then and now" }
            p.about { "The figures of the five source documents, as printed, beside the nearest result of this session. The machines are decades apart, and today both ends share one: the table shows what a program gets, then and now." }
            @for comparison in comparisons {
                details {
                    summary {
                        (comparison.document.title) " (" (comparison.document.date) "): "
                        (comparison.rows.len()) " figures beside today's, " (comparison.without) " without a counterpart in this session"
                    }
                    @if !comparison.rows.is_empty() { (past_table(comparison)) }
                }
            }
        }
    }
}

fn past_table(comparison: &Comparison) -> Markup {
    let columns = Column::aligned("lrrlrl", ["then", "printed", "today", "by", "better by", "note"]);
    let rows = comparison.rows.iter().map(|row| {
        let figure = row.figure;
        let length = match figure.size_bytes {
            Some(size) => quantity::size(size),
            None if figure.test == "nhalf" => "all lengths".into(),
            None => "no length printed".into(),
        };
        let then = Entry::from(format!("{}, {length}", figure.what));
        table::Row::of([
            then.note(Some(figure.hardware.clone())),
            format!("{} {}", figure.printed, figure.unit).into(),
            row.today.clone().into(),
            row.whose.clone().into(),
            quantity::factor(row.gain).into(),
            figure.note.clone().into(),
        ])
    });
    Table::new(comparison.document.title.clone(), columns, rows.collect()).html()
}

/// The figures of one document that have a counterpart in this session.
pub struct Comparison {
    pub document: &'static Document,
    pub rows: Vec<Row>,
    /// The number of its figures without a counterpart in this session.
    pub without: usize,
}

pub struct Row {
    pub figure: &'static Figure,
    /// Today's, with its unit.
    pub today: String,
    /// The way that it belongs to.
    pub whose: String,
    /// How many times better today's figure is. Below 1 it is worse.
    pub gain: f64,
}

/// Every document's figures compared with this session.
pub fn comparisons(ways: &[Way], ceilings: &Ceilings) -> Vec<Comparison> {
    let comparison = |document: &'static Document| {
        let rows: Vec<Row> =
            document.figures.iter().filter_map(|figure| row(figure, ways, ceilings)).collect();
        let without = document.figures.len() - rows.len();
        Comparison { document, rows, without }
    };
    bywire_history::documents().iter().map(comparison).collect()
}

fn row(figure: &'static Figure, ways: &[Way], ceilings: &Ceilings) -> Option<Row> {
    let unit = match figure.normalised.unit.as_str() {
        "ns" => Unit::Nanoseconds,
        "bytes_per_second" => Unit::BytesPerSecond,
        "transactions_per_second" => Unit::TransactionsPerSecond,
        "bytes" if figure.test == "nhalf" => Unit::Bytes,
        _ => return None,
    };
    let spoken = spoken(figure);
    let of_level = |level: &String| match level.as_str() {
        MEMORY => ceiling(figure, unit, ceilings),
        _ => nearest(figure, unit, ways.iter().filter(|way| way.level == level && way.speaks(spoken))),
    };
    let (whose, cell) = figure.levels.iter().find_map(of_level)?;
    let ratio = cell.value / figure.normalised.value;
    Some(Row {
        figure,
        today: quantity::value(cell.value, unit),
        whose,
        gain: if unit.less_is_better() { 1.0 / ratio } else { ratio },
    })
}

/// The protocol of a figure, if its levels show it. TCP is not compared with UDP.
fn spoken(figure: &Figure) -> Option<&'static str> {
    let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(Protocol::name);
    match [tcp, udp].map(|level| figure.levels.iter().any(|name| name == level)) {
        [true, false] => Some(tcp),
        [false, true] => Some(udp),
        _ => None,
    }
}

/// The way that today's figure belongs to, and its cell.
type Today<'a> = (String, &'a Cell);

/// The best way's cell at the figure's length, or within a factor of two of it.
fn nearest<'a>(figure: &Figure, unit: Unit, ways: impl Iterator<Item = &'a Way<'a>>) -> Option<Today<'a>> {
    let distance = |cell: &Cell| match (figure.size_bytes, cell.size_bytes) {
        (Some(then), Some(now)) => (now.max(1) as f64 / then.max(1) as f64).log2().abs(),
        _ => 0.0,
    };
    let cells = ways.filter_map(|way| {
        let cells = way.by_size(&figure.test);
        let cell = match figure.size_bytes {
            None => way.highest(&figure.test)?,
            // Short messages of 1 and 8 bytes are comparable.
            Some(size) if size <= 8 => way.short(&figure.test)?,
            Some(_) => cells
                .into_iter()
                .filter(|cell| distance(cell) <= 1.0)
                .min_by(|a, b| distance(a).total_cmp(&distance(b)))?,
        };
        (cell.unit == unit).then(|| (at_length(&way.label, cell), cell))
    });
    cells.reduce(|a, b| if (a.1.value <= b.1.value) == unit.less_is_better() { a } else { b })
}

fn ceiling<'a>(figure: &Figure, unit: Unit, ceilings: &Ceilings<'a>) -> Option<Today<'a>> {
    let cells = ceilings.rows.iter().map(|row| row.first);
    let asked = cells.filter(|cell| cell.test == figure.test && cell.unit == unit);
    let cell = asked.max_by(|a, b| a.value.total_cmp(&b.value))?;
    Some((at_length(&format!("memory {}", cell.test), cell), cell))
}

fn at_length(name: &str, cell: &Cell) -> String {
    name.to_owned() + &quantity::size_after(", ", cell.size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::way::ways;
    use serde_json::json;

    fn stream(level: &str, protocol: Option<&str>, value: f64) -> Cell {
        let parameters = protocol.map_or(json!({}), |protocol| json!({ "protocol": protocol }));
        serde_json::from_value(json!({
            "schema": "bywire-cell/1", "level": level, "test": "stream", "link": "one-process", "between": "namespaces",
            "size_bytes": 32768, "value": value, "unit": "bytes_per_second", "ci95": [value, value], "blocks": [],
            "parameters": parameters, "cpu": { "source": {}, "target": {}, "same_machine": true }, "details": {},
            "environment": {},
        }))
        .unwrap()
    }

    /// The way of today's figure in that row of a document.
    fn beside(row: &str, cells: &[Cell]) -> Option<String> {
        let ways = ways(cells);
        let all = comparisons(&ways, &Ceilings::of(&[]));
        let row = all.iter().flat_map(|comparison| &comparison.rows).find(|found| found.figure.row == row);
        row.map(|row| row.whose.clone())
    }

    #[test]
    fn historic_tcp_is_compared_with_tcp_and_udp_with_udp() {
        let both = [stream("eth", Some("udp"), 9e9), stream("eth", Some("tcp"), 1e9)];
        let tcp = beside("trapeze/bandwidth/732-tcp", &both).unwrap();
        assert!(tcp.contains("TCP") && tcp.ends_with(", 32 KiB"), "{tcp}");
        let udp = beside("trapeze/bandwidth/644-udp", &[both[1].clone(), both[0].clone()]).unwrap();
        assert!(udp.contains("UDP"), "{udp}");
        assert_eq!(beside("trapeze/bandwidth/732-tcp", &both[..1]), None, "there is no TCP to be set beside");
        assert!(beside("trapeze/bandwidth/732-tcp", &[stream("tcp", None, 1e9)]).is_some());
    }
}
