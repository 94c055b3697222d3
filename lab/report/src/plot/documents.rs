//! Plots of this session with the printed figures of the source documents.

use crate::plot::by_size::extent;
use crate::plot::data::{Look, Plot, Point, Series};

/// The plots of measured figures beside which printed ones are shown: the name of each plot, and the name, the title, the
/// test and the unit of that with both.
const PRINTED: [(&str, &str, &str, &str, &str); 4] = [
    ("half-rtt", "then-half-rtt", "Half-RTT, then and now", "latency", "ns"),
    ("one-way", "then-one-way", "One-way rate, then and now", "stream", "bytes_per_second"),
    ("two-way", "then-two-way", "Two-way rate, then and now", "bidir", "bytes_per_second"),
    ("transactions", "then-transactions", "Transactions, then and now", "rr", "transactions_per_second"),
];

/// The measured plots for which a document prints figures, together with those figures. They have names of their own,
/// because the figures were not measured here.
pub fn with_printed(measured: &[Plot]) -> Vec<Plot> {
    let both = measured.iter().filter_map(|plot| {
        let &(_, id, title, test, unit) = PRINTED.iter().find(|row| row.0 == plot.id)?;
        // Half-RTTs and transactions of long messages are left out: the documents print no length.
        let sizes = extent(plot.of_look(Look::Measured)).filter(|_| unit == "bytes_per_second");
        let printed = printed(test, unit, sizes);
        // It shows one way of each level. The plot of measured figures shows all.
        let shown = plot.series.iter().enumerate().filter(|(number, _)| plot.starts_with(*number));
        let series = shown.map(|(_, series)| series.clone()).chain(printed).collect();
        let about =
            format!("{} Hollow grey symbols are printed figures of the source documents.", plot.about);
        Some(Plot { id, title, about, series, ..plot.clone() })
    });
    both.filter(Plot::has_printed).collect()
}

/// Historic figures of one test that have a length. With `sizes`, "large messages" get the longest of today's lengths.
fn printed(test: &str, unit: &str, sizes: Option<[f64; 2]>) -> Vec<Series> {
    let mut by_document: Vec<Series> = Vec::new();
    for (document, figure) in bywire_history::figures() {
        let n_half = test == "stream" && figure.test == "nhalf";
        let asked = figure.normalised.unit == unit && figure.test == test;
        let (value, printed) = (figure.normalised.value, format!("{} {}", figure.printed, figure.unit));
        let (x, y, printed) = match (figure.size_bytes, sizes) {
            _ if n_half => {
                let mut others = bywire_history::figures().map(|entry| entry.1);
                let plateau =
                    others.find(|other| other.hardware == figure.hardware && other.test == "stream");
                let Some(plateau) = plateau else { continue };
                (value, plateau.normalised.value / 2.0, format!("N½ {printed}"))
            }
            (Some(size), _) if asked => (size as f64, value, printed),
            (None, Some([_, longest])) if asked && document.document == "gm" => {
                (longest, value, format!("{printed}, large messages"))
            }
            _ => continue,
        };
        let protocol = match figure.levels.last().map(String::as_str) {
            Some("tcp") => ", TCP",
            Some("udp") => ", UDP",
            _ => "",
        };
        let note = Some(format!("{printed}; {}{protocol}", figure.hardware));
        let point = Point { note, ..Point::new(x, y) };
        match by_document.iter_mut().find(|series| series.name.plain == document.short) {
            Some(series) => series.points.push(point),
            None => {
                let slot =
                    bywire_history::documents().iter().position(|other| other == document).unwrap_or(0);
                by_document.push(Series::new(&*document.short, Look::Historic, slot, [point]));
            }
        }
    }
    by_document
}
