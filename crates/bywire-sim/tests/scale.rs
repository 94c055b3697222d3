//! Many nodes that send to one through a switch: what docs/scale.md says of it holds.

use bywire_sim::{FanIn, Outcome};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scale.md");
/// A row of the page may be off by so much: a change of congestion control shows, rounding does not.
const TOLERANCE: f64 = 0.2;

/// 10 Gb/s, a queue of 256 KiB, Ethernet's packets, 5 µs on each link.
fn plan(sources: usize) -> FanIn {
    FanIn {
        sources,
        bits_per_second: 10_000_000_000,
        queue_bytes: 256 * 1024,
        link_ns: 5_000,
        packet_bytes: 1472,
        window: 128 * 1024,
        warm_up_ns: 50_000_000,
        measured_ns: 200_000_000,
    }
}

fn row(sources: usize, outcome: &Outcome) -> String {
    let Outcome { goodput, jain, shares: [least, most], piece_us: [median, tail], dropped, memory_bytes } =
        outcome;
    let (dropped, memory) = (dropped * 100.0, memory_bytes / 1024);
    format!(
        "| {sources} | {goodput:.2} | {jain:.2} | {least:.2} to {most:.2} | {median} µs | {tail} µs | {dropped:.1} % | {memory} KiB |"
    )
}

fn numbers(row: &str) -> Vec<f64> {
    row.split(|sign: char| !sign.is_ascii_digit() && sign != '.')
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Does the page have this row, as nearly as anybody would notice?
fn is_in(page: &str, row: &str) -> bool {
    let head = &row[..row[2..].find('|').expect("a row has cells") + 3];
    page.lines().filter(|line| line.starts_with(head)).any(|line| {
        let (said, found) = (numbers(line), numbers(row));
        let is_near = |(said, found): (&f64, &f64)| (said - found).abs() <= TOLERANCE * found.max(0.5);
        said.len() == found.len() && said.iter().zip(&found).all(is_near)
    })
}

#[test]
fn many_senders_share_the_link_of_one_receiver() {
    let page = std::fs::read_to_string(PAGE).expect("docs/scale.md is there");
    let mut rows = Vec::new();
    for sources in [1, 10, 100] {
        let outcome = plan(sources).run(1);
        assert!(outcome.goodput >= 0.9, "{sources}: {outcome:?}");
        assert!(sources > FAIR_SOURCES_MAX || outcome.jain >= 0.95, "{sources}: {outcome:?}");
        rows.push(row(sources, &outcome));
        println!("{}", rows[rows.len() - 1]);
    }
    let missing: Vec<_> = rows.iter().filter(|row| !is_in(&page, row)).collect();
    assert!(missing.is_empty(), "docs/scale.md says otherwise; found was\n{missing:#?}");
}

/// Up to so many sources share a link evenly; docs/scale.md says why more do not.
const FAIR_SOURCES_MAX: usize = 10;
