//! The tables of the level `eth`, in the form of the source documents' tables: a row for each link, with the CPU and
//! the service demand of both ends and of the carrying processes.

use std::collections::BTreeMap;

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::ethernet::{self, Link};
use bywire_results::message_link::SECURITY;
use bywire_results::parameter::MACHINE;
use bywire_results::quantity;

use crate::disturbed_cells::is_disturbed;
use crate::table::{Column, Row, Table};

/// Columns of lengths in one table, so that it fits a terminal.
const LENGTHS_MAX: usize = 8;

/// A row with figures of these cells.
pub fn row_of(cells: &[&Cell], entries: Vec<String>) -> Row {
    Row { is_disturbed: cells.iter().any(|cell| is_disturbed(cell)), ..Row::of(entries) }
}

/// The number of columns that name a row.
pub const NAMING: usize = 3;

pub fn tables(cells: &[Cell]) -> Vec<Table> {
    let of = |test: &str| -> Vec<&Cell> {
        let cells = cells.iter().filter(|cell| cell.level == ethernet::LEVEL && cell.test == test);
        // A repeated cell is shown as last taken.
        cells.map(|cell| (place(cell), cell)).collect::<BTreeMap<_, _>>().into_values().collect()
    };
    let streams = Table {
        title: "Streams over Ethernet".to_owned(),
        about: "Received and sent: 10⁶ bits per second over all blocks together, as netperf counts them. CPU: the share of a \
                core that the threads of each end took, and the processes that carry the frames. Demand: that CPU time for \
                each KB of 1,024 bytes, sent at the source, received at the target.",
        columns: columns_of_cpu(["message", "received", "sent"], "µs/KB"),
        rows: of("stream").into_iter().map(stream).collect(),
    };
    let transactions = Table {
        title: "Transactions over Ethernet".to_owned(),
        about: "One request and its response at a time. Half-RTT: half a second divided by the transactions per second, as in \
                the GM document. Demand: CPU time for each transaction.",
        columns: columns_of_cpu(["request", "per second", "half-RTT"], "µs"),
        rows: of("rr").into_iter().map(transaction).collect(),
    };
    [vec![streams, transactions], half_rtts(&of("latency"))].concat()
}

/// The order of cells: by protocol, length and MTU, then by link. The usual settings come first.
fn place(cell: &Cell) -> (String, Option<u64>, u64, usize, Vec<String>) {
    let link = Link::ALL.iter().position(|link| cell.link.as_deref() == Some(link.name()));
    let (protocol, mtu_bytes) = (text(cell, "protocol"), number(cell, "mtu"));
    (protocol, cell.size_bytes, mtu_bytes, link.unwrap_or(usize::MAX), manner(cell))
}

/// A cell's unusual settings, in words. Cells that differ in them have rows of their own.
fn manner(cell: &Cell) -> Vec<String> {
    let off = |name: &str, words: &str| cell.parameters.is_off(name).then(|| words.to_owned());
    let buffer = number(cell, "socket-buffer");
    let (machine, security) = (text(cell, MACHINE), text(cell, SECURITY));
    [
        (!security.is_empty()).then_some(security),
        off("coalesce", "one frame a wake"),
        off("segmentation", "not segmented by the interfaces"),
        (buffer > 0).then(|| format!("{} of socket buffers", quantity::size(buffer))),
        cell.parameters.is_on("untouched").then(|| "untouched".to_owned()),
        cell.parameters.is_on("spin").then(|| "polling".to_owned()),
        (!machine.is_empty()).then_some(machine),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A parameter that is text, or an empty text.
pub fn text(cell: &Cell, name: &str) -> String {
    cell.parameters.text(name).unwrap_or_default().to_owned()
}

fn number(cell: &Cell, name: &str) -> u64 {
    cell.parameters.number(name).unwrap_or(0)
}

/// The link and its settings: the first columns of each table.
fn naming(cell: &Cell) -> [String; NAMING] {
    let link = match cell.link.as_deref() {
        Some("one-process") => "Ethernet, one process",
        Some("two-processes") => "Ethernet, two processes",
        Some("udp") => "Ethernet between nodes",
        Some("veth") => "veth, the kernel's own",
        other => other.unwrap_or_default(),
    };
    let words = [vec![link.to_owned()], manner(cell)].concat();
    [words.join(", "), text(cell, "protocol").to_uppercase(), number(cell, "mtu").to_string()]
}

fn columns(own: impl IntoIterator<Item = String>) -> Vec<Column> {
    let naming: [String; NAMING] = ["carried by", "protocol", "MTU"].map(str::to_owned);
    Column::named(NAMING, naming.into_iter().chain(own))
}

fn columns_of_cpu(own: [&str; 3], demand: &str) -> Vec<Column> {
    let ends = ["source", "target", "carriers"];
    let (cpu, demand) = (ends.map(|end| format!("CPU {end}")), ends.map(|end| format!("{demand} {end}")));
    columns(own.map(str::to_owned).into_iter().chain(cpu).chain(demand))
}

fn stream(cell: &Cell) -> Row {
    let megabits =
        |name: &str| cell.details.number(name).map(|rate| format!("{:.0}", rate * 8e-6)).unwrap_or_default();
    let rates = [megabits("received_bytes_per_second"), megabits("sent_bytes_per_second")];
    row(cell, rates, |end| end.service_demand_us_per_kb)
}

fn transaction(cell: &Cell) -> Row {
    let own = [format!("{:.0}", cell.value), quantity::duration(0.5e9 / cell.value)];
    row(cell, own, |end| end.service_demand_us_per_transaction)
}

fn row(cell: &Cell, own: [String; 2], demand: fn(&CpuEnd) -> Option<f64>) -> Row {
    let ends = [Some(&cell.cpu.source), Some(&cell.cpu.target), cell.cpu.carriers.as_ref()];
    let shares =
        ends.map(|end| end.and_then(|end| end.attributed).map(quantity::percent).unwrap_or_default());
    let demands = ends.map(|end| end.and_then(demand).map(quantity::digits).unwrap_or_default());
    let size = cell.size_bytes.map(quantity::size).unwrap_or_default();
    let naming = naming(cell).into_iter().chain([size]).chain(own);
    row_of(&[cell], naming.chain(shares).chain(demands).collect())
}

/// A row for each link and a column for each length, as in Duke's and Lyon's tables.
fn half_rtts(cells: &[&Cell]) -> Vec<Table> {
    let mut lengths: Vec<u64> = cells.iter().filter_map(|cell| cell.size_bytes).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let table = |lengths: &[u64]| {
        let mut ways = BTreeMap::<_, Row>::new();
        for cell in cells {
            let (protocol, _, mtu_bytes, link, manner) = place(cell);
            let key = (protocol, mtu_bytes, link, manner);
            let row = ways.entry(key).or_insert_with(|| {
                Row::of(naming(cell).into_iter().chain(lengths.iter().map(|_| String::new())))
            });
            row.is_disturbed |= is_disturbed(cell);
            let column = lengths.iter().position(|length| cell.size_bytes == Some(*length));
            if let Some(entry) = column.and_then(|column| row.entries.get_mut(NAMING + column)) {
                *entry = quantity::duration(cell.value).into();
            }
        }
        Table {
            title: "Half-RTT over Ethernet, by length".to_owned(),
            about: "Medians of single round trips, halved.",
            columns: columns(lengths.iter().map(|length| quantity::size(*length))),
            rows: ways.into_values().collect(),
        }
    };
    lengths.chunks(LENGTHS_MAX).map(table).collect()
}
