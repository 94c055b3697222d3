//! The table of what encryption costs: the same cells between nodes of a fabric, plain and encrypted.

use bywire_results::cell::{Cell, Unit};
use bywire_results::message_link::{SECURITY, Security};
use bywire_results::parameter::{MACHINE, parameter};
use bywire_results::quantity;

use crate::comparison::DISTURBED;
use crate::disturbed_cells::is_disturbed;
use crate::ethernet_table::{NAMING, row_of, text};
use crate::table::{Column, Row, Table};
use crate::way::{Waiting, is_no_way};

/// Parameters that do not distinguish ways, but in which both cells of a pair must agree.
const OF_THE_QUESTION: [&str; 2] = ["connections", "response-size"];

/// Parameters that a row shows if they are set.
const SHOWN: [&str; 8] =
    [MACHINE, "protocol", "mtu", "segmentation", "coalesce", "socket-buffer", "connections", "nodes"];

/// The table of a session's pairs, if it has any.
pub fn tables(cells: &[Cell]) -> Vec<Table> {
    let of = |security: Security| cells.iter().filter(move |cell| text(cell, SECURITY) == security.name());
    let mut rows: Vec<Row> = Vec::new();
    let mut questions = Vec::new();
    // A repeated cell counts as last taken.
    for encrypted in of(Security::Encrypted).rev() {
        let question = question(encrypted);
        if questions.contains(&question) {
            continue;
        }
        if let Some(plain) = of(Security::Plain).rfind(|plain| self::question(plain) == question) {
            rows.push(row(plain, encrypted));
        }
        questions.push(question);
    }
    rows.reverse();
    let table = Table {
        title: "Plain and encrypted packets between nodes".to_owned(),
        about: "The same measurement with packets that are only checked (plain), and with packets that are encrypted. Speed \
                kept: the encrypted rate divided by the plain one, or the plain time divided by the encrypted one. CPU: both \
                ends and the processes between them, for each transaction or each KB of 1,024 bytes.",
        columns: Column::named(
            NAMING,
            ["way", "test", "message", "plain", "encrypted", "speed kept", "CPU, plain", "CPU, encrypted"],
        ),
        rows,
    };
    if table.rows.is_empty() { Vec::new() } else { vec![table] }
}

/// The level, the link, the test, the length, and the parameters.
type Question<'a> = (&'a str, Option<&'a str>, &'a str, Option<u64>, Vec<(&'a str, String)>);

/// The question that a cell answers, apart from its security.
fn question(cell: &Cell) -> Question<'_> {
    let matters = |name: &str| name != SECURITY && (!is_no_way(name) || OF_THE_QUESTION.contains(&name));
    let parameters = cell.parameters.iter().filter(|(name, _)| matters(name));
    let parameters = parameters.map(|(name, value)| (name.as_str(), value.to_string())).collect();
    (&cell.level, cell.link.as_deref(), &cell.test, cell.size_bytes, parameters)
}

fn row(plain: &Cell, encrypted: &Cell) -> Row {
    let kept = match plain.unit {
        Unit::Nanoseconds | Unit::Bytes => plain.value / encrypted.value,
        _ => encrypted.value / plain.value,
    };
    let comparable = ![plain, encrypted].into_iter().any(is_disturbed);
    let demand = |cell: &Cell| match cell.unit {
        Unit::BytesPerSecond => {
            cell.service_demand_us_per_kb().map(|us| quantity::duration(us * 1e3) + "/KB")
        }
        _ => cell.cpu.service_demand_us_per_transaction().map(|us| quantity::duration(us * 1e3)),
    };
    let level = [Some(plain.level.as_str()), plain.link.as_deref()].into_iter().flatten().map(str::to_owned);
    let shown = SHOWN.iter().filter_map(|name| Some(parameter(name, plain.parameters.get(*name)?)));
    let polls = (Waiting::of(plain) == Waiting::Polling).then(|| Waiting::Polling.name().to_owned());
    let entries = vec![
        level.chain(shown).chain(polls).collect::<Vec<_>>().join(" · "),
        plain.test.clone(),
        plain.size_bytes.map(quantity::size).unwrap_or_default(),
        quantity::value(plain.value, plain.unit),
        quantity::value(encrypted.value, encrypted.unit),
        if comparable { quantity::percent(kept) } else { DISTURBED.to_owned() },
        demand(plain).unwrap_or_default(),
        demand(encrypted).unwrap_or_default(),
    ];
    row_of(&[plain, encrypted], entries)
}
