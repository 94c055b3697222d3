//! The table of what an unmodified program gains when its connections leave the kernel: the same TCP cells with and
//! without `bywire run`.

use bywire_results::cell::{Cell, Unit};
use bywire_results::parameter::MACHINE;
use bywire_results::quantity;
use bywire_results::web;

use crate::comparison::{DISTURBED, QUESTIONS};
use crate::disturbed_cells::is_disturbed;
use crate::ethernet_table::{NAMING, row_of, text};
use crate::table::{Column, Row, Table};
use crate::way::{Waiting, is_no_way};

/// Parameters that do not distinguish ways, but in which both cells of a pair must agree.
const OF_THE_QUESTION: [&str; 2] = ["connections", "response-size"];

/// Parameters in which both cells of a pair may differ, because the library itself chooses how the ends wait.
const MAY_DIFFER: [&str; 2] = ["spin", "nodes"];

/// The table of a session's pairs, if it has any.
pub fn tables(cells: &[Cell]) -> Vec<Table> {
    let mut carried: Vec<&Cell> = cells.iter().filter(|cell| is_carried(cell)).collect();
    carried.sort_by_cached_key(|cell| place(cell));
    let pairs = carried.into_iter().filter_map(|carried| {
        // A repeated cell counts as last taken.
        let plain = cells.iter().rfind(|cell| is_plain(cell) && question(cell) == question(carried))?;
        Some(row(plain, carried))
    });
    let rows: Vec<Row> = pairs.collect();
    let table = Table {
        title: "Unmodified programs over the fabric".to_owned(),
        about: "The same program with the same calls, over the kernel's TCP on this machine and with its connections carried in \
                memory. Gain: how many times the rate, or how many times as fast. CPU: both ends together, for each \
                transaction or each KB of 1,024 bytes; in parentheses as a share of what TCP takes.",
        columns: Column::named(
            NAMING,
            ["test", "message", "ends", "TCP", "carried", "gain", "CPU, TCP", "CPU, carried"],
        ),
        rows,
    };
    if table.rows.is_empty() { Vec::new() } else { vec![table] }
}

fn is_carried(cell: &Cell) -> bool {
    cell.level == "sock" || (cell.level == web::LEVEL && cell.link.as_deref() == Some(web::Link::Sock.name()))
}

/// The order of rows: by test as elsewhere in the report, then by length and by what the ends do.
fn place(cell: &Cell) -> (bool, usize, Option<u64>, String) {
    let test = QUESTIONS.iter().position(|question| question.test == cell.test);
    (cell.level == web::LEVEL, test.unwrap_or(QUESTIONS.len()), cell.size_bytes, ends(cell))
}

/// TCP over the loopback interface, with ends that sleep in the kernel, as ordinary programs do.
fn is_plain(cell: &Cell) -> bool {
    let of_level = cell.level == "tcp" && cell.link.as_deref() == Some("loopback");
    let of_web = cell.level == web::LEVEL && cell.link.as_deref() == Some(web::Link::Tcp.name());
    of_web || (of_level && Waiting::of(cell) == Waiting::Sleeping)
}

/// True for web servers, then the test, the length, the placement, and the parameters.
type Question<'a> = (bool, &'a str, Option<u64>, &'a str, Vec<(&'a str, String)>);

/// The question that a cell answers, apart from its way.
fn question(cell: &Cell) -> Question<'_> {
    let matters = |name: &&String| {
        let name = name.as_str();
        !MAY_DIFFER.contains(&name) && (!is_no_way(name) || OF_THE_QUESTION.contains(&name))
    };
    let parameters = cell.parameters.iter().filter(|(name, _)| matters(name));
    let parameters = parameters.map(|(name, value)| (name.as_str(), value.to_string())).collect();
    (cell.level == web::LEVEL, &cell.test, cell.size_bytes, &cell.between, parameters)
}

fn row(plain: &Cell, carried: &Cell) -> Row {
    let comparable = ![plain, carried].into_iter().any(is_disturbed);
    let gain = match carried.unit {
        Unit::Nanoseconds | Unit::Bytes => plain.value / carried.value,
        _ => carried.value / plain.value,
    };
    let demand = |cell: &Cell| match cell.unit {
        Unit::BytesPerSecond => cell.service_demand_us_per_kb().map(|us| (us, "/KB")),
        _ => cell.cpu.service_demand_us_per_transaction().map(|us| (us, "")),
    };
    let shown = |(us, per): (f64, &str)| quantity::duration(us * 1e3) + per;
    let share = demand(plain).zip(demand(carried)).filter(|_| comparable);
    let share = share.map(|((plain, _), (own, _))| format!(" ({})", quantity::percent(own / plain)));
    let entries = vec![
        [carried.test.clone(), text(carried, "server"), text(carried, MACHINE)]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", "),
        carried.size_bytes.map(quantity::size).unwrap_or_default(),
        ends(carried),
        quantity::value(plain.value, plain.unit),
        quantity::value(carried.value, carried.unit),
        if comparable { quantity::factor(gain) } else { DISTURBED.to_owned() },
        demand(plain).map(shown).unwrap_or_default(),
        demand(carried).map(shown).unwrap_or_default() + &share.unwrap_or_default(),
    ];
    row_of(&[plain, carried], entries)
}

/// The number of connections and how the ends wait.
fn ends(cell: &Cell) -> String {
    let spins = match Waiting::of(cell) {
        _ if cell.level == web::LEVEL => "may spin",
        Waiting::Sleeping => "spinning forbidden",
        _ => "may spin",
    };
    let epoll = cell.parameters.contains_key("epoll").then(|| "epoll".to_owned());
    let connections = cell.parameters.number("connections").map(|count| format!("{count} connections"));
    [connections, epoll, Some(spins.to_owned())].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
