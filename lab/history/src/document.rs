//! Every figure of the five source documents, as printed and in today's units.
//!
//! The figures are data (`data/*.json`), not code. Contradictions inside the documents are kept as printed, with a
//! note. `docs/sources.md` says which command gives today's counterpart of each row.

use std::sync::LazyLock;

use serde::Deserialize;

/// One source document.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Short name, also the first part of its figures' rows: `gm-ethernet`, `trapeze`, `gm`, `bip`, `toe`.
    pub document: String,
    /// A short text for a legend, with the year of the hardware or of the page.
    pub short: String,
    /// Its title.
    pub title: String,
    /// Its date, as far as it is printed.
    pub date: String,
    /// One line: the quantities and the machines.
    pub summary: String,
    /// Its figures, in the order of the document.
    pub figures: Vec<Figure>,
}

/// One printed figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The row of `docs/sources.md` that it belongs to.
    pub row: String,
    /// The machines and cards.
    pub hardware: String,
    /// The levels that it may be compared with, the closest first.
    pub levels: Vec<String>,
    /// The test that it corresponds to.
    pub test: String,
    /// Message length. Absent if the document gives none ("large messages").
    pub size_bytes: Option<u64>,
    /// The quantity: `rate`, `half-RTT`, `sender CPU`, …
    pub what: String,
    /// The figure as printed.
    pub printed: String,
    /// Its unit as printed.
    pub unit: String,
    /// The figure in today's units.
    pub normalised: Normalised,
    /// A remark that is necessary to read it, for instance on a contradiction.
    pub note: Option<String>,
}

/// A figure in today's units.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalised {
    /// Its value, in `unit`.
    pub value: f64,
    /// The units of cells (`ns`, `bytes`, `bytes_per_second`, `transactions_per_second`), and `share`, `us_per_kb`,
    /// `us_per_transaction`, `seconds`, `count`, `ratio` and `switch` for figures that are not values of cells.
    pub unit: String,
}

/// The five documents, in the order of `docs/sources.md`.
pub fn documents() -> &'static [Document] {
    static DOCUMENTS: LazyLock<Vec<Document>> = LazyLock::new(|| {
        SOURCES
            .iter()
            // The files are part of the program; a test parses them.
            .map(|text| serde_json::from_str(text).expect("a data file of the program parses"))
            .collect()
    });
    &DOCUMENTS
}

/// Every figure with its document.
pub fn figures() -> impl Iterator<Item = (&'static Document, &'static Figure)> {
    documents().iter().flat_map(|document| document.figures.iter().map(move |figure| (document, figure)))
}

const SOURCES: [&str; 5] = [
    include_str!("../data/gm-ethernet.json"),
    include_str!("../data/trapeze.json"),
    include_str!("../data/gm.json"),
    include_str!("../data/bip.json"),
    include_str!("../data/toe.json"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_parses_and_its_rows_have_its_name() {
        assert!(documents().iter().all(|document| !document.figures.is_empty()));
        for (document, figure) in figures() {
            assert!(figure.row.starts_with(&format!("{}/", document.document)), "{figure:?}");
            assert!(figure.normalised.value.is_finite() && !figure.levels.is_empty(), "{figure:?}");
        }
    }

    #[test]
    fn normalised_rates_follow_from_printed_figures() {
        let mut checked = 0;
        for (_, figure) in figures() {
            let factor = match figure.unit.as_str() {
                "Mb/s" | "10^6bits/s" | "10^6bits/sec" | "Mbits/sec" => 1e6 / 8.0,
                "Gbps" => 1e9 / 8.0,
                "MB/s" | "MByte/s" | "Mbytes/s" => 1e6,
                "GB/s" => 1e9,
                "us" | "µs" => 1e3,
                "ns" | "transactions/s" | "us/KB" | "us/Tr" | "s" => 1.0,
                "%" if figure.normalised.unit == "share" => 0.01,
                _ => continue,
            };
            let sum: f64 = figure.printed.split('+').map(|part| leading_number(part).unwrap()).sum();
            let off = (sum * factor / figure.normalised.value - 1.0).abs();
            assert!(off < 1e-6, "{figure:?}");
            checked += 1;
        }
        assert!(checked > 120, "{checked}");
    }

    /// The number in a text such as `about 8.6`, `less than 0.5` or `42.4%`.
    fn leading_number(printed: &str) -> Option<f64> {
        printed.split(' ').find_map(|word| word.trim_end_matches('%').parse().ok())
    }
}
