//! A way to carry messages: a level, its link, and its other varied parameters. Cells of one way form one curve.

use std::collections::{BTreeMap, BTreeSet};

use bywire_results::cell::Cell;
use bywire_results::level::{FIGURE, MEMORY};
use bywire_results::parameter::{DOMAIN, HOW_LONG, MACHINE, MPI, Waiting, parameter};
use bywire_results::web;
use serde_json::Value;

/// The order of levels, nearest to memory first. Other levels come last, in the order taken.
const LEVELS: [&str; 8] = ["msg", "sock", "eth", "unix", "tcp", "udp", "mpi", "web"];

/// The order of links within a level.
const LINKS: [&str; 9] =
    ["shm", "unix", "loopback", "tcp", "one-process", "two-processes", "udp", "eth", "veth"];

/// Parameters that do not distinguish ways, besides those of the measuring time.
const NOT_A_WAY: [&str; 4] = ["connections", "response-size", "response_size", "verify"];

/// True for parameters that state how long or how carefully a cell was measured.
pub fn is_no_way(parameter: &str) -> bool {
    NOT_A_WAY.contains(&parameter) || HOW_LONG.contains(&parameter)
}

/// The parameters that state how an end waits, which [`Waiting`] reads. They always distinguish ways.
const SPIN: &str = "spin";

/// Parameters that are part of a label even if all cells of their level agree in them.
const ALWAYS_SHOWN: [&str; 3] = [MACHINE, MPI, DOMAIN];

/// One way, with its cells in the order taken.
#[derive(Clone, Debug)]
pub struct Way<'a> {
    /// Its label in the laboratory's terms: `msg · shm · polling`, `tcp · veth · MTU 9000`.
    pub label: String,
    /// Its label without the way of waiting.
    pub name: String,
    /// Its label in plain words: `messages in shared memory · polling`.
    pub plain_label: String,
    /// Its name in plain words: `the kernel's TCP over veth · MTU 9000`.
    pub plain_name: String,
    pub level: &'a str,
    pub waiting: Waiting,
    key: Key<'a>,
    pub cells: Vec<&'a Cell>,
}

/// Distinguishes ways that wait alike: level, link, placement, and other varied parameters.
type Key<'a> = (&'a str, Option<&'a str>, &'a str, Vec<(&'a str, String)>);

/// The ways of every level that carries messages, nearest to memory first.
pub fn ways(cells: &[Cell]) -> Vec<Way<'_>> {
    let varied = varied_parameters(cells);
    let waitings = |level: &str| {
        let cells = cells.iter().filter(|cell| cell.level == level);
        cells.map(Cell::waiting).collect::<BTreeSet<_>>().len()
    };
    let mut ways: Vec<Way> = Vec::new();
    for cell in cells.iter().filter(|cell| ![FIGURE, MEMORY, web::LEVEL].contains(&&*cell.level)) {
        let (key, waiting) = (key(cell, &varied), cell.waiting());
        match ways.iter_mut().find(|way| (&way.key, way.waiting) == (&key, waiting)) {
            Some(way) => way.cells.push(cell),
            None => {
                let name = name(&key);
                // The label states how a way waits if its level has several ways of waiting.
                let several = waitings(&cell.level) > 1;
                let labelled = |name: &str| {
                    if several { format!("{name} · {}", waiting.name()) } else { name.to_owned() }
                };
                let (label, plain_name) = (labelled(&name), plain_name(&key));
                let plain_label = labelled(&plain_name);
                let (level, cells) = (&*cell.level, vec![cell]);
                ways.push(Way { label, name, plain_label, plain_name, level, waiting, key, cells });
            }
        }
    }
    ways.sort_by_key(Way::rank);
    ways
}

impl<'a> Way<'a> {
    fn rank(&self) -> (usize, usize, Waiting) {
        let level = LEVELS.iter().position(|level| *level == self.level).unwrap_or(LEVELS.len());
        let link = LINKS.iter().position(|link| self.key.1 == Some(link)).unwrap_or(LINKS.len());
        (level, link, self.waiting)
    }

    /// What carries its messages, in plain words: `the kernel's TCP over veth`.
    pub fn medium(&self) -> String {
        medium(&self.key)
    }

    /// True if both are one way, apart from how their ends wait.
    pub fn is_same_place(&self, other: &Way) -> bool {
        self.key == other.key
    }

    /// True if its messages cross from one host to another, over a wire that the kernel's TCP crosses too.
    pub fn joins_hosts(&self) -> bool {
        ["msg", "tcp", "udp"].contains(&self.level) && !["processes", "threads", ""].contains(&self.key.2)
    }

    /// The machine that it was measured on, if there are several.
    pub fn machine(&self) -> Option<&'a str> {
        self.cells.first().and_then(|cell| cell.parameters.text(MACHINE))
    }

    /// True if its ends speak `protocol`, or the way has no choice of protocol.
    pub fn speaks(&self, protocol: Option<&str>) -> bool {
        let own = self.cells.first().and_then(|cell| cell.parameters.text("protocol"));
        own.zip(protocol).is_none_or(|(own, wanted)| own == wanted)
    }

    /// Its cells of one test, by size; a repeated cell is shown as last taken.
    pub fn by_size(&self, test: &str) -> Vec<&'a Cell> {
        let cells = self.cells.iter().filter(|cell| cell.test == test);
        cells.map(|cell| (cell.size_bytes, *cell)).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// The cell of `test` with the highest value.
    pub fn highest(&self, test: &str) -> Option<&'a Cell> {
        self.by_size(test).into_iter().max_by(|a, b| a.value.total_cmp(&b.value))
    }

    /// The cell of `test` that represents short messages: 8 bytes, or else the shortest up to 64.
    pub fn short(&self, test: &str) -> Option<&'a Cell> {
        let cells = self.by_size(test);
        let eight = cells.iter().find(|cell| cell.size_bytes == Some(8));
        let shortest = cells.iter().find(|cell| cell.size_bytes.is_none_or(|size| size <= 64));
        eight.or(shortest).copied()
    }

    /// N½ of its own test. Without that test, N½ read off the curve, relative to its highest rate.
    pub fn n_half(&self) -> Option<NHalf> {
        if let Some(cell) = self.by_size("nhalf").last() {
            return Some(NHalf { bytes: cell.value, swept: true });
        }
        let cells = self.by_size("stream");
        let points: Vec<(u64, f64)> =
            cells.iter().filter_map(|cell| Some((cell.size_bytes?, cell.value))).collect();
        let plateau = points.iter().map(|point| point.1).reduce(f64::max)?;
        let bytes = bywire_analysis::statistics::n_half(&points, plateau)?;
        Some(NHalf { bytes, swept: false })
    }

    /// CPU of both ends and of the carrying processes at the highest one-way rate, in µs per KB.
    pub fn cpu_us_per_kb(&self) -> Option<f64> {
        self.highest("stream")?.service_demand_us_per_kb()
    }

    /// CPU of short transactions, in µs for each.
    pub fn cpu_us_per_transaction(&self) -> Option<f64> {
        self.short("rr")?.cpu.service_demand_us_per_transaction()
    }
}

/// N½, and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NHalf {
    pub bytes: f64,
    /// True if a sweep measured it, false if it is read off the curve of one-way rates.
    pub swept: bool,
}

/// For each level, the parameters in which its cells differ at the same test and size.
fn varied_parameters(cells: &[Cell]) -> BTreeMap<&str, BTreeSet<&str>> {
    type Point<'a> = (&'a str, &'a str, Option<&'a str>, &'a str, Option<u64>);
    let mut seen: BTreeMap<(Point, &str), BTreeSet<String>> = BTreeMap::new();
    let names = cells.iter().flat_map(|cell| cell.parameters.keys()).map(String::as_str);
    let names: BTreeSet<&str> = names.filter(|name| !is_no_way(name) && *name != SPIN).collect();
    for cell in cells {
        let link = cell.link.as_deref();
        let point = (cell.level.as_str(), cell.test.as_str(), link, cell.between.as_str(), cell.size_bytes);
        for &name in &names {
            // Beside UDP, which has no Nagle's algorithm, it counts as off.
            let value = cell.parameters.get(name).filter(|value| name != "nagle" || *value != "off");
            let value = value.map(Value::to_string).unwrap_or_default();
            seen.entry((point, name)).or_default().insert(value);
        }
    }
    let mut varied = BTreeMap::<&str, BTreeSet<&str>>::new();
    for ((point, name), _) in seen.into_iter().filter(|(_, values)| values.len() > 1) {
        varied.entry(point.0).or_default().insert(name);
    }
    varied
}

fn key<'a>(cell: &'a Cell, varied: &BTreeMap<&str, BTreeSet<&'a str>>) -> Key<'a> {
    let names = varied.get(cell.level.as_str()).into_iter().flatten();
    // The machine, the MPI implementation and the domain are always part of a label.
    let names = names.filter(|name| !ALWAYS_SHOWN.contains(*name)).chain(&ALWAYS_SHOWN);
    let parameters =
        names.filter_map(|&name| Some((name, parameter(name, cell.parameters.get(name)?)))).collect();
    (&cell.level, cell.link.as_deref(), &cell.between, parameters)
}

fn name(key: &Key) -> String {
    let (level, link, ..) = *key;
    let link = link.filter(|link| *link != level);
    std::iter::once(level).chain(link).chain(rest_of_name(key, &[])).collect::<Vec<_>>().join(" · ")
}

fn plain_name(key: &Key) -> String {
    let medium = medium(key);
    // The medium has the domain.
    let rest = rest_of_name(key, &[DOMAIN]);
    std::iter::once(&*medium).chain(rest).collect::<Vec<_>>().join(" · ")
}

/// The parts of a name after level and link, without the parameters that have been `told`.
fn rest_of_name<'k>(
    (_, link, between, parameters): &'k Key,
    told: &'k [&str],
) -> impl Iterator<Item = &'k str> {
    // The link veth implies namespaces.
    let said = ["processes", ""].contains(between) || (*between == "namespaces" && link.is_some());
    let parameters = parameters.iter().filter(|(name, _)| !told.contains(name));
    (!said).then_some(*between).into_iter().chain(parameters.map(|(_, text)| text.as_str()))
}

/// What carries the messages of a way, in words of somebody who does not know the laboratory.
fn medium((level, link, _, parameters): &Key) -> String {
    let is_unix = parameters.iter().any(|(name, _)| *name == DOMAIN);
    let plain = match (*level, link.unwrap_or_default()) {
        ("sock", "" | "shm") if is_unix => "sockets under bywire run, Unix",
        ("msg", "shm") => "messages in shared memory",
        ("msg", "udp") => "messages between machines",
        ("sock", "" | "shm") => "sockets under bywire run",
        ("eth", "one-process") => "Ethernet in user space, one process",
        ("eth", "two-processes") => "Ethernet in user space, two processes",
        ("eth", "udp") => "Ethernet between machines",
        ("eth", "veth") => "the kernel's veth",
        ("unix", "" | "unix") => "Unix sockets",
        ("tcp", "" | "loopback") => "the kernel's TCP",
        ("tcp", "eth") => "TCP over Ethernet in user space",
        ("udp", "" | "loopback") => "the kernel's UDP",
        ("udp", "eth") => "UDP over Ethernet in user space",
        ("mpi", "shm") => "MPI in shared memory",
        ("mpi", "bywire") => "MPI over Bywire",
        ("mpi", "eth") => "MPI over Ethernet in user space",
        (level, link) => return format!("{}{}", of_level(level), words_of_link(link)),
    };
    plain.to_owned()
}

fn of_level(level: &str) -> &str {
    match level {
        "msg" => "messages",
        "sock" => "sockets under bywire run",
        "eth" => "Ethernet in user space",
        "unix" => "Unix sockets",
        "tcp" => "the kernel's TCP",
        "udp" => "the kernel's UDP",
        "mpi" => "MPI",
        other => other,
    }
}

fn words_of_link(link: &str) -> String {
    if link.is_empty() { String::new() } else { format!(" over {link}") }
}
