//! The tables of the level `web`: the peak by file and by trace, and the latency below it.

use std::cmp::Ordering;

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::parameter::MACHINE;
use bywire_results::quantity;
use bywire_results::web::{self, SHARES};

use crate::ethernet_table::{NAMING, row_of, text};
use crate::table::{Column, Row, Table};

pub fn tables(cells: &[Cell]) -> Vec<Table> {
    let rows = |test: web::Test| -> Vec<Row> {
        let own = cells.iter().filter(|cell| cell.level == web::LEVEL && cell.test == test.name());
        let mut own: Vec<&Cell> = own.collect();
        own.sort_by(|one, other| place(one).partial_cmp(&place(other)).unwrap_or(Ordering::Equal));
        own.into_iter().map(|cell| row_of(&[cell], row(cell, test))).collect()
    };
    let table = |title: &str, what: &str, test| Table {
        title: title.to_owned(),
        about: "Peak: requests answered per second in a closed loop. p99: the 99th percentile of latency at shares of that peak. \
                Each request is timed from the moment when it was due, so waiting behind a slow one counts. In parentheses: \
                the least and the most of the pairs. Empty: fewer than ten requests were slower. Not sustained: answers came \
                slower than requests were due, so the queue, and with it the percentile, grows with time. µs: CPU time of \
                each end's own threads for each request, in the closed loop.",
        columns: columns(what),
        rows: rows(test),
    };
    vec![
        table("Web servers: one file", "file", web::Test::File),
        table("Web servers: Zipf traces", "trace", web::Test::Zipf),
    ]
}

/// By server and link, then by length or by α.
fn place(cell: &Cell) -> (String, Option<String>, Option<u64>, f64, String) {
    (text(cell, "server"), cell.link.clone(), cell.size_bytes, alpha(cell), text(cell, "rank"))
}

fn alpha(cell: &Cell) -> f64 {
    cell.parameters.real("alpha").unwrap_or(0.0)
}

fn columns(what: &str) -> Vec<Column> {
    let naming = ["server", "link", what].map(str::to_owned);
    let shares = SHARES.map(|share| format!("p99 at {:.0} %", 100.0 * share));
    let own = ["peak", "rate"].map(str::to_owned);
    let ends = ["µs client", "µs server", "µs carriers", "CPU server"].map(str::to_owned);
    Column::named(NAMING, naming.into_iter().chain(own).chain(shares).chain(ends))
}

fn row(cell: &Cell, test: web::Test) -> Vec<String> {
    let server = web::Server::ALL.iter().find(|server| server.name() == text(cell, "server"));
    let what = match test {
        web::Test::File => cell.size_bytes.map(quantity::size).unwrap_or_default(),
        web::Test::Zipf => format!("α {}, {}", alpha(cell), text(cell, "rank")),
    };
    let naming = [server.map_or("", |server| server.title()).to_owned(), way(cell), what];
    let own = [
        quantity::of_cell(cell),
        cell.details.number("received_bytes_per_second").map(quantity::rate).unwrap_or_default(),
    ];
    let loops = cell.details.open_loops();
    let shares = SHARES.map(|share| {
        let detail = |name| cell.details.number(&format!("open_{:.0}_{name}_ns", 100.0 * share));
        let [p99, least, most] =
            ["p99", "p99_least", "p99_most"].map(|name| detail(name).map(quantity::duration));
        let spread = least.zip(most).map(|(least, most)| format!(" ({least} to {most})"));
        let told = p99.map(|p99| p99 + &spread.unwrap_or_default()).unwrap_or_default();
        let missed = loops.iter().any(|open| open.share == share && !open.is_sustained());
        if missed { format!("{told} not sustained").trim_start().to_owned() } else { told }
    });
    let demand =
        |end: &CpuEnd| end.service_demand_us_per_transaction.map(quantity::digits).unwrap_or_default();
    let ends = [
        demand(&cell.cpu.source),
        demand(&cell.cpu.target),
        cell.cpu.carriers.as_ref().map(demand).unwrap_or_default(),
        cell.cpu.target.attributed.map(quantity::percent).unwrap_or_default(),
    ];
    naming.into_iter().chain(own).chain(shares).chain(ends).collect()
}

fn way(cell: &Cell) -> String {
    let mtu = cell.parameters.number("mtu").map(|mtu| format!("MTU {mtu}"));
    let machine = Some(text(cell, MACHINE)).filter(|machine| !machine.is_empty());
    [cell.link.clone(), mtu, machine].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
