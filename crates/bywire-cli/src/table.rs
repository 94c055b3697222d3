//! A cell in the form for readers: complete, or as one line of a growing table.

use bywire_measure::measure::PAIRS;
use bywire_results::breakdown::Account;
use bywire_results::cell::DISTURBED;
use bywire_results::cell::{Cacheline, Cell, CpuEnd, Unit};
use bywire_results::message_link::SECURITY;
use bywire_results::parameter::{Domain, Waiting};
use bywire_results::quantity;
use bywire_results::web;

use crate::breakdown;

/// A heading, a line for each figure with the result first, and explanations of the terms.
pub fn of_cell(cell: &Cell) -> String {
    let mut rows = vec![
        (result_name(cell).to_owned(), show(cell.value, cell.unit)),
        ("95 % interval".to_owned(), interval(cell)),
    ];
    rows.extend(distribution(cell));
    rows.extend(details(cell));
    rows.extend(cell.cacheline.map(|cacheline| ("cache line".to_owned(), machine(cacheline))));
    rows.push(("CPU, source".to_owned(), cpu(&cell.cpu.source)));
    rows.push(("CPU, target".to_owned(), cpu(&cell.cpu.target)));
    if let Some(carriers) = &cell.cpu.carriers {
        rows.push(("CPU, carriers".to_owned(), cpu(carriers)));
        rows.extend(all_demand(cell).map(|demand| ("CPU, all".to_owned(), demand)));
    }
    rows.push(("blocks".to_owned(), blocks(cell)));
    let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let rows = rows.iter().map(|(label, value)| format!("  {label:<width$}  {value}\n"));
    let account = Account::of(cell).map(|account| breakdown::text(&account, cell.value));
    let notes = notes(cell).into_iter().map(|note| format!("{note}\n"));
    std::iter::once(heading(cell) + "\n").chain(rows).chain(account).chain(notes).collect()
}

/// The heading above the lines of [`line`].
pub fn line_heading() -> String {
    format!("{:<7} {:<10} {:<30} {:>8} {:>10}   95 % interval", "level", "test", "way", "size", "median")
}

/// A cell in one line. A cell that was cut short states the number of its pairs.
pub fn line(cell: &Cell) -> String {
    let cut_short = (cell.pairs() < PAIRS as usize).then(|| format!(": {}", cell.pairs()));
    format!(
        "{:<7} {:<10} {:<30} {:>8} {:>10}   {}{}",
        cell.level,
        cell.test,
        way(cell),
        cell.size_bytes.map_or_else(String::new, quantity::size),
        quantity::value(cell.value, cell.unit),
        between(cell, quantity::value),
        cut_short.unwrap_or_default(),
    )
}

fn heading(cell: &Cell) -> String {
    let size = cell.size_bytes.map_or_else(String::new, |bytes| format!(", {}", count_of(bytes, "byte")));
    let link = cell.link.as_ref().map_or_else(String::new, |link| format!(" over {link}"));
    let between = match cell.between.as_str() {
        "" => String::new(),
        between => format!(", between {between}"),
    };
    let by = cell.parameters.text("mpi").map_or_else(String::new, |mpi| format!(" by {mpi}"));
    let manner: String = manner(cell).iter().map(|part| format!(", {part}")).collect();
    format!("{} {}{by}{link}{between}{size}{manner}", cell.level, cell.test)
}

/// The machine's own state around the cell, in one line.
fn machine(cacheline: Cacheline) -> String {
    let [before, after] =
        [Some(cacheline.before_ns), cacheline.after_ns].map(|ns| ns.map(|ns| show(ns, Unit::Nanoseconds)));
    let spans = [before.map(|ns| format!("{ns} before")), after.map(|ns| format!("{ns} after"))];
    spans.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// If the half-RTT of a cache line differs by this factor between two measurements, the machine has changed its state.
const STATES_APART: f64 = 1.5;

/// The name of the cell's value, which is a median over pairs.
fn result_name(cell: &Cell) -> &'static str {
    match (cell.test.as_str(), cell.unit) {
        ("latency" | "breakdown" | "interleave" | "cacheline" | "futex" | "pipe", _) => "half-RTT, median",
        ("hotspot", _) => "half-RTT, mean of each client",
        ("streams" | "fanin" | "fanout", _) => "summed rate, median",
        ("overhead", _) => "CPU per message, median",
        ("bidir", _) => "two-way rate, median",
        ("alltoall" | "allreduce", _) => "time of one, mean",
        ("rr", _) => "transactions, median",
        ("web-file" | "web-zipf", _) => "peak, requests answered, median",
        ("nhalf", _) => "N½, median",
        (_, Unit::BytesPerSecond) => "rate, median",
        _ => "median",
    }
}

fn interval(cell: &Cell) -> String {
    between(cell, show)
}

fn between(cell: &Cell, told: fn(f64, Unit) -> String) -> String {
    match cell.ci95.map(|bounds| bounds.map(|bound| told(bound, cell.unit))) {
        Some([low, high]) => format!("{low} to {high}"),
        None => quantity::TOO_FEW_PAIRS.to_owned(),
    }
}

fn distribution(cell: &Cell) -> Vec<(String, String)> {
    let figures = [
        ("mean", cell.mean),
        ("p90", cell.above_median(|all| all.p90)),
        ("p99", cell.above_median(|all| all.p99)),
        ("p99.9", cell.above_median(|all| all.p999)),
    ];
    let known = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| (name.to_owned(), show(value, cell.unit))).collect()
}

/// Details by name, in the order in which they are read, with the label of each.
const DETAILS: [(&str, &str); 28] = [
    ("sent_bytes_per_second", "rate sent"),
    ("received_bytes_per_second", "rate received"),
    ("forward_bytes_per_second", "rate to the target"),
    ("back_bytes_per_second", "rate to the source"),
    ("long_transfer_bytes_per_second", "long transfer beside"),
    ("send_ns", "CPU to send"),
    ("receive_ns", "CPU to receive"),
    ("reference_bytes_per_second", "N½ is half of"),
    ("memcpy_bytes_per_second", "memcpy"),
    ("operation_p50_ns", "one, median"),
    ("operation_p99_ns", "one, p99"),
    ("round_trip_p50_ns", "round trip, median"),
    ("round_trip_p99_ns", "round trip, p99"),
    ("round_trip_p999_ns", "round trip, p99.9"),
    ("round_trips_lost", "round trips lost"),
    ("messages_per_second", "messages"),
    ("messages_sent", "messages sent"),
    ("messages_received", "messages received"),
    ("lost_share", "lost on the way"),
    ("send_errors", "send errors"),
    ("segments_sent", "TCP segments sent"),
    ("segments_sent_again", "TCP segments sent again"),
    ("fairness_jain", "fairness, Jain's index"),
    ("least_bytes_per_second", "slowest connection"),
    ("most_bytes_per_second", "fastest connection"),
    ("least_ns", "luckiest client"),
    ("most_ns", "unluckiest client"),
    ("summed_transactions_per_second", "transactions of all"),
];

/// The results among the details, then all others, such as granted buffers and the elapsed time.
fn details(cell: &Cell) -> Vec<(String, String)> {
    let value = |name: &str| cell.details.number(name);
    let results =
        DETAILS.iter().filter_map(|(name, label)| Some(((*label).to_owned(), detail(name, value(name)?).1)));
    let known = |name: &str| DETAILS.iter().any(|(known, _)| *known == name);
    let others = cell.details.keys().filter(|name| !known(name) && !name.starts_with("open_"));
    let others = others.filter_map(|name| Some(detail(name, value(name)?)));
    results.chain(open_loops(cell)).chain(others).chain(group(cell)).collect()
}

/// One line for each open loop: the requested and the answered rate, and the latency from when each request was due.
fn open_loops(cell: &Cell) -> Vec<(String, String)> {
    let row = |open: &web::OpenLoop| {
        let share = 100.0 * open.share;
        let of = |name: &str| cell.details.number(&format!("open_{share:.0}_{name}"));
        let time = |name: &str| Some(show(of(name)?, Unit::Nanoseconds));
        let spread = || Some(format!(", {} to {} by pair", time("p99_least_ns")?, time("p99_most_ns")?));
        // A quantile with too few requests beyond it is absent.
        let latency = [
            time("p50_ns").map(|p50| format!("p50 {p50}")),
            time("p99_ns").zip(time("from_send_p99_ns")).map(|(p99, sent)| {
                format!("p99 {p99} ({sent} from the send itself{})", spread().unwrap_or_default())
            }),
            time("p999_ns").map(|p999| format!("p99.9 {p999}")),
        ];
        let latency: Vec<String> = latency.into_iter().flatten().collect();
        let latency =
            if latency.is_empty() { "too few for a quantile".to_owned() } else { latency.join(", ") };
        let unanswered = of("unanswered").filter(|count| *count > 0.0);
        let text = format!(
            "{:.0}/s of {:.0}/s{}; {latency}; server {:.1} µs each{}",
            of("answered_per_second")?,
            of("intended_per_second")?,
            if open.is_sustained() { "" } else { ", not sustained" },
            of("server_cpu_us_per_request")?,
            unanswered.map_or_else(String::new, |count| format!("; {count} unanswered")),
        );
        Some((format!("at {share:.0} % of the peak"), text))
    };
    cell.details.open_loops().iter().filter_map(row).collect()
}

/// The most connections that are listed one by one. The JSON has all.
const CONNECTIONS_SHOWN: usize = 12;

/// The result of each of several connections, and what limited all of them.
fn group(cell: &Cell) -> Vec<(String, String)> {
    let lists =
        [("connections_ns", Unit::Nanoseconds), ("connections_bytes_per_second", Unit::BytesPerSecond)];
    let mut rows = Vec::new();
    for (name, unit) in lists {
        let each = cell.details.numbers(name);
        if each.is_empty() {
            continue;
        }
        let shown: Vec<String> =
            each.iter().take(CONNECTIONS_SHOWN).map(|value| show(*value, unit)).collect();
        let more = match each.len().saturating_sub(CONNECTIONS_SHOWN) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        rows.push(("each".to_owned(), shown.join(", ") + &more));
    }
    let version = cell.details.text("server_version");
    rows.extend(version.map(|version| ("server".to_owned(), version.to_owned())));
    let limit = cell.details.limited_by();
    rows.extend(limit.map(|limit| ("limit".to_owned(), limit.to_owned())));
    rows
}

/// The label of a detail, and its value in the unit that its name ends with.
fn detail(name: &str, value: f64) -> (String, String) {
    let units = [
        ("_bytes_per_second", Some(Unit::BytesPerSecond)),
        ("transactions_per_second", Some(Unit::TransactionsPerSecond)),
        ("messages_per_second", Some(Unit::MessagesPerSecond)),
        ("_bytes", Some(Unit::Bytes)),
        ("_ns", Some(Unit::Nanoseconds)),
        ("_seconds", None),
    ];
    let found = units.iter().find_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, *unit)));
    let (stem, shown) = match found {
        Some((stem, Some(unit))) => (stem, show(value, unit)),
        Some((stem, None)) => (stem, format!("{value:.3} s")),
        None if name.ends_with("_share") => (name, quantity::percent(value)),
        None => (name, rounded(value)),
    };
    if let Some(buffer) = stem.strip_suffix("_socket") {
        return (socket_buffer(buffer), shown);
    }
    let words = stem.replace('_', " ");
    let label = words.strip_prefix("target ").map_or(words.clone(), |what| format!("{what}, target"));
    (label, shown)
}

/// A whole number as it is, any other with three decimals.
fn rounded(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.3}") }
}

/// The values that the kernel granted, by end and direction.
fn socket_buffer(name: &str) -> String {
    let (end, direction) = match name.split_once('_') {
        Some((end, direction)) => (end, direction),
        None => ("source", name),
    };
    format!("{direction} socket buffer, {end}")
}

fn cpu(end: &CpuEnd) -> String {
    let percent = |share: Option<f64>| share.map(|share| format!("{:.1} %", 100.0 * share.max(0.0)));
    let parts = [
        end.core.map(|core| format!("core {core}")),
        percent(end.machine_busy).map(|share| format!("busy {share}")),
        percent(end.attributed).map(|share| format!("own threads {share}")),
        end.service_demand_us_per_kb.map(|demand| format!("{demand:.3} µs/KB")),
        end.service_demand_us_per_transaction.map(|demand| format!("{demand:.3} µs/transaction")),
    ];
    let known: Vec<String> = parts.into_iter().flatten().collect();
    if known.is_empty() { "not measured by this test".to_owned() } else { known.join(", ") }
}

/// Service demand of both ends and of the carrying processes.
fn all_demand(cell: &Cell) -> Option<String> {
    let lossy = cell.details.lost_share().is_some();
    let kb = if lossy { "KB that arrived" } else { "KB" };
    let per_kb = cell.service_demand_us_per_kb().map(|demand| format!("{demand:.3} µs/{kb}"));
    let transaction = || Some(format!("{:.3} µs/transaction", cell.cpu.service_demand_us_per_transaction()?));
    per_kb.or_else(transaction)
}

fn blocks(cell: &Cell) -> String {
    let pairs = count_of(cell.pairs() as u64, "pair");
    let outliers = count_of(cell.outlier_blocks() as u64, "outlier");
    format!("{} in {pairs}; {} disturbed, {outliers}", cell.blocks.len(), cell.disturbed_blocks())
}

/// Explanations of the terms that were used.
fn notes(cell: &Cell) -> Vec<&'static str> {
    let transactions = cell.cpu.source.service_demand_us_per_transaction.is_some();
    let per_kb = cell.cpu.source.service_demand_us_per_kb.is_some();
    let apart = |cacheline: Cacheline| {
        let ratio = cacheline.after_ns.map_or(1.0, |after| after / cacheline.before_ns);
        !(1.0 / STATES_APART..=STATES_APART).contains(&ratio)
    };
    let notes = [
        (
            result_name(cell).starts_with("half-RTT"),
            "Half-RTT is half of a round trip, what the field calls one-way latency.",
        ),
        (
            cell.details.contains_key(web::LOADS),
            "At a share of the peak, requests are due at random times that are drawn beforehand. Each is timed from when it was due, so \
             waiting behind a slow one counts. If a rate is not sustained, the queue grows as long as the loop runs. \"From the send \
             itself\" is what a client sees that waits for each answer before its next request (coordinated omission).",
        ),
        (transactions, "A transaction is one request and its response, a whole round trip."),
        (per_kb, "1 KB of service demand is 1,024 bytes."),
        (
            per_kb && cell.details.lost_share().is_some(),
            "Where messages may be lost, the source's µs/KB is per KB sent, and that of all ends is per KB received.",
        ),
        (
            cell.cacheline.is_some(),
            "Cache line: its half-RTT between the same cores just before and after. On a virtual machine it may change three-fold \
             within a second, and results with it: compare runs in the same state.",
        ),
        (
            cell.cacheline.is_some_and(apart),
            "The machine changed its state during this cell: its blocks belong to both.",
        ),
        (cell.disturbed_blocks() > 0, DISTURBED),
    ];
    notes.into_iter().filter(|(used, _)| *used).map(|(_, note)| note).collect()
}

/// The parameters that distinguish cells of one level, test and size.
fn way(cell: &Cell) -> String {
    let link = cell.link.clone().filter(|link| *link != cell.level);
    let mpi = cell.parameters.text("mpi").map(str::to_owned);
    link.into_iter().chain(mpi).chain(manner(cell)).collect::<Vec<_>>().join(" ")
}

/// The same without the link and the implementation of MPI.
fn manner(cell: &Cell) -> Vec<String> {
    let chosen = &cell.parameters;
    let parts = [
        chosen.text(SECURITY).map(str::to_owned),
        chosen.text("protocol").map(str::to_uppercase),
        (chosen.domain() == Domain::Unix).then(|| "Unix".to_owned()),
        chosen.number("mtu").map(|mtu| format!("MTU {mtu}")),
        chosen.is_off("segmentation").then(|| "not segmented".to_owned()),
        chosen.real("loss").map(|percent| format!("{percent} % lost")),
        chosen.number("rate").map(|rate| format!("{rate} Mb/s")),
        chosen.text("server").map(str::to_owned),
        chosen.get("alpha").map(|alpha| format!("α {alpha}")),
        chosen.number("connections").map(|connections| count_of(connections, "connection")),
        chosen.is_on("epoll").then(|| "epoll".to_owned()),
        // Other sockets always sleep unless they poll.
        (["msg", "sock"].contains(&&*cell.level) && chosen.waiting() == Some(Waiting::Sleeping))
            .then(|| "sleeping".to_owned()),
        (chosen.waiting() == Some(Waiting::Polling)).then(|| "polling".to_owned()),
        chosen.is_on("nagle").then(|| "Nagle".to_owned()),
        chosen.text("congestion").map(str::to_owned),
        chosen.is_off("coalesce").then(|| "not coalesced".to_owned()),
        chosen.is_on("both-cores").then(|| "both cores".to_owned()),
    ];
    parts.into_iter().flatten().collect()
}

fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds if value >= 1e6 => format!("{:.3} ms", value / 1e6),
        Unit::Nanoseconds if value >= 1e4 => format!("{:.2} µs", value / 1e3),
        Unit::Nanoseconds if value >= 1e3 => format!("{:.3} µs", value / 1e3),
        Unit::Nanoseconds => format!("{value:.1} ns"),
        Unit::Bytes => count_of(value.round() as u64, "byte"),
        Unit::BytesPerSecond if value >= 1e9 => format!("{:.3} GB/s", value / 1e9),
        Unit::BytesPerSecond => format!("{:.2} MB/s", value / 1e6),
        Unit::MessagesPerSecond => format!("{value:.0} messages/s"),
        Unit::TransactionsPerSecond => format!("{value:.0} transactions/s"),
        unit => quantity::value(value, unit),
    }
}

fn count_of(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cell(test: &str, unit: &str, details: serde_json::Value) -> Cell {
        let end = json!({ "core": 0, "attributed": 0.5, "service_demand_us_per_transaction": 21.0 });
        let block = |pair: u32| {
            let disturbed = if pair == 0 { json!(["steal"]) } else { json!([]) };
            json!({ "pair": pair, "value": 1.0, "seconds": 0.02, "operations": 9, "disturbed": disturbed })
        };
        serde_json::from_value(json!({
            "schema": "bywire-cell/1", "level": "tcp", "test": test, "link": "loopback", "between": "processes",
            "size_bytes": 1, "value": 18_255.0, "unit": unit, "ci95": [17_000.0, 18_500.0], "details": details,
            "percentiles": { "p5": 18e3, "p50": 18e3, "p90": 19e3, "p95": 19e3, "p99": 20e3, "p999": 21287.5 },
            "blocks": [block(0), block(1)], "cpu": { "source": end, "target": {}, "same_machine": true },
            "environment": {},
        }))
        .unwrap()
    }

    #[test]
    fn results_come_first_in_order_and_are_aligned() {
        let details = json!({
            "elapsed_seconds": 1.0, "round_trip_p50_ns": 55_740.0, "round_trip_p99_ns": 83_450.0,
            "round_trip_p999_ns": 145_020.0, "target_send_socket_bytes": 4096, "send_socket_bytes": 4096,
        });
        let text = of_cell(&cell("rr", "transactions_per_second", details));
        let labels: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line.strip_prefix("  ")?.split("  ").next()).collect();
        let expected = [
            "transactions, median",
            "95 % interval",
            "p90",
            "p99",
            "p99.9",
            "round trip, median",
            "round trip, p99",
            "round trip, p99.9",
            "elapsed",
            "send socket buffer, source",
            "send socket buffer, target",
            "CPU, source",
            "CPU, target",
            "blocks",
        ];
        assert_eq!(labels, expected, "{text}");
        let columns: std::collections::BTreeSet<usize> = text
            .lines()
            .filter_map(|line| {
                let label = line.strip_prefix("  ")?.find("  ")?;
                Some(2 + label + line[2 + label..].find(|letter| letter != ' ')?)
            })
            .collect();
        assert_eq!(columns.len(), 1, "{text}");
        assert!(text.starts_with("tcp rr over loopback, between processes, 1 byte\n"), "{text}");
        assert!(text.contains("2 in 2 pairs; 1 disturbed, 0 outliers\n"), "{text}");
        assert!(text.contains("A transaction is one request and its response"), "{text}");
        assert!(text.ends_with(&format!("{DISTURBED}\n")), "{text}");
    }

    #[test]
    fn a_latency_is_labelled_as_half_of_a_round_trip() {
        let text = of_cell(&cell("latency", "ns", json!({})));
        assert!(text.contains("  half-RTT, median") && text.contains("Half-RTT is half of a round trip"));
        assert!(text.contains("18.25 µs") && text.contains("21.29 µs") && !text.contains("p50"), "{text}");
    }

    #[test]
    fn cells_that_differ_in_how_they_were_measured_have_different_labels() {
        let way_of = |level: &str, name: &str, value: serde_json::Value| {
            let mut cell = cell("rr", "transactions_per_second", json!({}));
            (cell.level, cell.link) = (level.to_owned(), None);
            cell.parameters.insert(name.to_owned(), value);
            way(&cell)
        };
        assert_eq!(way_of("sock", "spin", json!("adaptive")), "");
        assert_eq!(way_of("sock", "spin", json!(false)), "sleeping");
        assert_eq!(way_of("sock", "domain", json!("unix")), "Unix");
        assert_eq!(way_of("tcp", "spin", json!(false)), "");
        assert_eq!(way_of("tcp", "spin", json!(true)), "polling");
        assert_eq!(way_of("tcp", "epoll", json!(true)), "epoll");
        for security in ["encrypted", "plain"] {
            assert_eq!(way_of("msg", "security", json!(security)), security);
        }
        assert_eq!(way_of("tcp", "connections", json!(16)), "16 connections");
        assert_eq!(way_of("tcp", "nagle", json!("on")), "Nagle");
        assert_eq!(way_of("tcp", "nagle", json!("off")), "");
        assert_eq!(way_of("tcp", "congestion", json!("reno")), "reno");
    }

    #[test]
    fn the_heading_says_how_a_cell_was_measured() {
        let mut cell = cell("latency", "ns", json!({}));
        (cell.level, cell.link, cell.between) =
            ("msg".to_owned(), Some("udp".to_owned()), "namespaces".to_owned());
        cell.parameters.insert("security".to_owned(), json!("plain"));
        cell.parameters.insert("mtu".to_owned(), json!(9000));
        cell.parameters.insert("spin".to_owned(), json!(true));
        let expected = "msg latency over udp, between namespaces, 1 byte, plain, MTU 9000, polling\n";
        assert!(of_cell(&cell).starts_with(expected), "{}", of_cell(&cell));
    }

    #[test]
    fn lines_are_aligned_with_their_heading() {
        let line = line(&cell("rr", "transactions_per_second", json!({})));
        let ends = |text: &str, word: &str| text.find(word).map(|at| at + word.len());
        assert_eq!(ends(&line_heading(), "median"), ends(&line, "18.3 k/s"), "{line}");
        assert_eq!(ends(&line_heading(), "size"), ends(&line, "1 B"), "{line}");
    }
}
