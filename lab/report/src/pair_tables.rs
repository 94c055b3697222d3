//! Tables of pairs of cells: packets between nodes of a fabric, plain and encrypted, and the connections of an
//! unmodified program, with and without `bywire run`.

use bywire_results::cell::{Cell, Unit};
use bywire_results::message_link::{SECURITY, Security};
use bywire_results::parameter::{DOMAIN, Domain, MACHINE, Waiting, parameter};
use bywire_results::{quantity, web};

use crate::comparison::{DISTURBED, QUESTIONS};
use crate::disturbed_cells::is_disturbed;
use crate::ethernet_table::{NAMING, row_of, text};
use crate::table::{Column, Row, Table};
use crate::way::is_no_way;

/// Parameters that do not distinguish ways, but in which both cells of a pair must agree.
const OF_THE_QUESTION: [&str; 2] = ["connections", "response-size"];

/// Parameters in which both cells may differ: how the ends wait, which the library itself chooses, and the domain, which a
/// cell of the kernel has as its level.
const OF_ONE_CELL: [&str; 3] = ["spin", "nodes", DOMAIN];

/// Parameters that a row of encrypted packets shows if they are set.
const SHOWN: [&str; 8] =
    [MACHINE, "protocol", "mtu", "segmentation", "coalesce", "socket-buffer", "connections", "nodes"];

/// The cost of encryption.
pub fn encryption(cells: &[Cell]) -> Table {
    let of = |security: Security| cells.iter().filter(move |cell| text(cell, SECURITY) == security.name());
    let question = |cell| (level_and_link(cell), question(cell, &[SECURITY]));
    let mut questions = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    // A repeated cell counts as last taken.
    for encrypted in of(Security::Encrypted).rev() {
        let asked = question(encrypted);
        if questions.contains(&asked) {
            continue;
        }
        if let Some(plain) = of(Security::Plain).rfind(|plain| question(plain) == asked) {
            rows.push(row(packets(plain), [plain, encrypted], quantity::percent));
        }
        questions.push(asked);
    }
    rows.reverse();
    Table {
        title: "Plain and encrypted packets between nodes".to_owned(),
        about: "The same measurement with packets that are only checked (plain), and with packets that are encrypted. Speed \
                kept: the encrypted rate divided by the plain one, or the plain time divided by the encrypted one. CPU: both \
                ends and the processes between them, for each transaction or each KB of 1,024 bytes.",
        columns: Column::named(
            NAMING,
            ["way", "test", "message", "plain", "encrypted", "speed kept", "CPU, plain", "CPU, encrypted"],
        ),
        rows,
    }
}

/// The gain of an unmodified program when its connections of one domain leave the kernel.
pub fn sockets(cells: &[Cell], domain: Domain) -> Table {
    let is_asked = |cell: &&Cell| is_carried(cell) && cell.parameters.domain() == domain;
    let mut carried: Vec<&Cell> = cells.iter().filter(is_asked).collect();
    carried.sort_by_cached_key(|cell| place(cell));
    let question = |cell| (is_web(cell), &cell.between, question(cell, &OF_ONE_CELL));
    let pairs = carried.into_iter().filter_map(|carried| {
        // A repeated cell counts as last taken.
        let is_plain = |cell: &Cell| plain_domain(cell) == Some(domain);
        let plain = cells.iter().rfind(|cell| is_plain(cell) && question(cell) == question(carried))?;
        let mut row = row(program(carried), [plain, carried], quantity::factor);
        if let (Some((plain, _)), Some((own, _)), false) = (demand(plain), demand(carried), row.is_disturbed)
        {
            row.entries[NAMING + 4].text += &format!(" ({})", quantity::percent(own / plain));
        }
        Some(row)
    });
    let (title, about, kernel) = match domain {
        Domain::Inet => (
            "Unmodified programs over the fabric",
            "The same program with the same calls, over the kernel's TCP on this machine and with its connections carried in \
             memory. Gain: how many times the rate, or how many times as fast. CPU: both ends together, for each \
             transaction or each KB of 1,024 bytes; in parentheses as a share of what TCP takes.",
            "TCP",
        ),
        Domain::Unix => (
            "Unmodified programs with Unix sockets over the fabric",
            "The same program with the same calls, over the kernel's Unix sockets and with its connections carried in memory. \
             Gain and CPU as for TCP; in parentheses as a share of what the kernel's Unix sockets take.",
            "Unix",
        ),
    };
    let cpu = format!("CPU, {kernel}");
    let columns = ["test", "message", "ends", kernel, "carried", "gain", &cpu, "CPU, carried"];
    Table { title: title.to_owned(), about, columns: Column::named(NAMING, columns), rows: pairs.collect() }
}

/// The test, the length, and the parameters.
type Question<'a> = (&'a str, Option<u64>, Vec<(&'a str, String)>);

/// The question that a cell answers, apart from some of its parameters.
fn question<'a>(cell: &'a Cell, ignored: &[&str]) -> Question<'a> {
    let matters =
        |name: &str| !ignored.contains(&name) && (!is_no_way(name) || OF_THE_QUESTION.contains(&name));
    let parameters = cell.parameters.iter().filter(|(name, _)| matters(name));
    (
        &cell.test,
        cell.size_bytes,
        parameters.map(|(name, value)| (name.as_str(), value.to_string())).collect(),
    )
}

/// A row: the pair, its values, how many times as fast the second one is, and the CPU of both.
fn row(naming: [String; NAMING], pair: [&Cell; 2], ratio: fn(f64) -> String) -> Row {
    let [before, after] = pair.map(|cell| cell.value);
    let times = match pair[0].unit {
        Unit::Nanoseconds | Unit::Bytes => before / after,
        _ => after / before,
    };
    let times = if pair.into_iter().any(is_disturbed) { DISTURBED.to_owned() } else { ratio(times) };
    let values = pair.map(quantity::of_cell);
    let demand = |(us, per): (f64, &str)| quantity::duration(us * 1e3) + per;
    let demands = pair.map(|cell| self::demand(cell).map(demand).unwrap_or_default());
    row_of(&pair, naming.into_iter().chain(values).chain([times]).chain(demands).collect())
}

/// The CPU of both ends in µs, and the unit of work.
fn demand(cell: &Cell) -> Option<(f64, &'static str)> {
    match cell.unit {
        Unit::BytesPerSecond => cell.service_demand_us_per_kb().map(|us| (us, "/KB")),
        _ => cell.cpu.service_demand_us_per_transaction().map(|us| (us, "")),
    }
}

fn level_and_link(cell: &Cell) -> (&str, Option<&str>) {
    (&cell.level, cell.link.as_deref())
}

/// The way, the test and the length of a cell whose packets are plain.
fn packets(plain: &Cell) -> [String; NAMING] {
    let (level, link) = level_and_link(plain);
    let shown = SHOWN.iter().filter_map(|name| Some(parameter(name, plain.parameters.get(*name)?)));
    let polls = (plain.waiting() == Waiting::Polling).then(|| Waiting::Polling.name().to_owned());
    let way = [Some(level), link].into_iter().flatten().map(str::to_owned).chain(shown).chain(polls);
    let size = plain.size_bytes.map(quantity::size).unwrap_or_default();
    [way.collect::<Vec<_>>().join(" · "), plain.test.clone(), size]
}

fn is_web(cell: &Cell) -> bool {
    cell.level == web::LEVEL
}

fn is_carried(cell: &Cell) -> bool {
    // An engine's link has its own peers, which are not carried.
    (cell.level == "sock" && cell.link.as_deref() != Some("relay"))
        || (is_web(cell) && cell.link.as_deref() == Some(web::Link::Sock.name()))
}

/// The domain of the kernel's own sockets on this machine, if the ends sleep in the kernel, as those of ordinary programs.
fn plain_domain(cell: &Cell) -> Option<Domain> {
    match level_and_link(cell) {
        ("tcp", Some("loopback")) => Some(Domain::Inet).filter(|_| cell.waiting() == Waiting::Sleeping),
        ("unix", _) => Some(Domain::Unix).filter(|_| cell.waiting() == Waiting::Sleeping),
        (web::LEVEL, link) => Some(Domain::Inet).filter(|_| link == Some(web::Link::Tcp.name())),
        _ => None,
    }
}

/// The order of rows: by test as elsewhere in the report, then by length and by what the ends do.
fn place(cell: &Cell) -> (bool, usize, Option<u64>, String) {
    let test = QUESTIONS.iter().position(|question| question.test == cell.test);
    (is_web(cell), test.unwrap_or(QUESTIONS.len()), cell.size_bytes, ends(cell))
}

/// The test, the length and the ends of a cell whose connections are carried.
fn program(carried: &Cell) -> [String; NAMING] {
    let mut test = vec![carried.test.clone(), text(carried, "server"), text(carried, MACHINE)];
    test.retain(|part| !part.is_empty());
    [test.join(", "), carried.size_bytes.map(quantity::size).unwrap_or_default(), ends(carried)]
}

/// The number of connections and how the ends wait.
fn ends(cell: &Cell) -> String {
    let forbidden = !is_web(cell) && cell.waiting() == Waiting::Sleeping;
    let spins = if forbidden { "spinning forbidden" } else { "may spin" };
    let epoll = cell.parameters.contains_key("epoll").then(|| "epoll".to_owned());
    let connections = cell.parameters.number("connections").map(|count| format!("{count} connections"));
    [connections, epoll, Some(spins.to_owned())].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
