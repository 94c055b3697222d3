//! The parts of a report as files: each plot as SVG and CSV, each table as CSV.

use bywire_results::cell::Session;
use bywire_results::csv;

use crate::ceiling::Ceilings;
use crate::digest::Digest;
use crate::history::comparisons;
use crate::level_tables::chapters;
use crate::page::render_presets;
use crate::plot::data::Plot;
use crate::plot::drawing;
use crate::way::{Way, ways};
use crate::{model, picture, plot, summary};

/// A file's name and content.
pub type File = (String, String);

/// The page of a session and the files to share, by file extension.
pub fn files(session: &Session) -> Vec<File> {
    files_of_presets(std::slice::from_ref(session), session)
}

/// Like [`files`], for several sessions of one preset each. `whole` is all of them together.
pub fn files_of_presets(presets: &[Session], whole: &Session) -> Vec<File> {
    let texts = [render_presets(presets), picture::svg(whole), summary::markdown(whole)];
    ["html", "svg", "md"].map(str::to_owned).into_iter().zip(texts).collect()
}

/// Every plot as SVG, in the order of the page, including those of the source documents.
pub fn drawings(session: &Session) -> Vec<File> {
    let drawn = all_plots(session).into_iter().filter(Plot::has_marks);
    drawn.map(|plot| (format!("{}.svg", plot.id), drawing::svg(&plot))).collect()
}

fn all_plots(session: &Session) -> Vec<Plot> {
    let ways = ways(&session.cells);
    let digest = Digest::of(session, &ways);
    [digest.plots(), plot::then_and_now(&ways, &digest.ceilings), model::plots()].concat()
}

/// Every table as CSV: the figures of each way, the ceilings, the historic comparison, every cell, and the points of
/// each plot.
pub fn tables(session: &Session) -> Vec<File> {
    let ways = ways(&session.cells);
    let ceilings = Ceilings::of(&session.cells);
    let mut files = vec![
        ("cells.csv".to_owned(), csv::from_cells(&session.cells)),
        ("ways.csv".to_owned(), figures(&ways)),
        ("ceilings.csv".to_owned(), ceiling_table(&ceilings)),
    ];
    for comparison in comparisons(&ways, &ceilings) {
        let rows = comparison.rows.iter().map(|row| {
            let size = csv::optional(row.figure.size_bytes);
            let printed = format!("{} {}", row.figure.printed, row.figure.unit);
            let (what, hardware) = (row.figure.what.clone(), row.figure.hardware.clone());
            vec![what, size, hardware, printed, row.today.clone(), row.whose.clone(), row.gain.to_string()]
        });
        let heading = ["then", "size_bytes", "hardware", "printed", "today", "by", "better_by_factor"];
        files.push((format!("past-{}.csv", comparison.document.document), csv::table(&heading, rows)));
    }
    for ([_, _, name], tables) in chapters(&session.cells) {
        let numbered = (1..).zip(&tables);
        files.extend(numbered.map(|(number, table)| (format!("{name}-{number}.csv"), table.csv())));
    }
    files.extend(all_plots(session).iter().map(|plot| (format!("plot-{}.csv", plot.id), points(plot))));
    files
}

/// A column of the table of ways: its name and its value.
type WayColumn = (&'static str, fn(&Way) -> Option<f64>);

/// The columns of each way's figures after its name.
const WAY_COLUMNS: [WayColumn; 8] = [
    ("half_rtt_ns", |way| Some(way.short("latency")?.value)),
    ("one_way_bytes_per_second", |way| Some(way.highest("stream")?.value)),
    ("n_half_bytes", |way| Some(way.n_half()?.bytes)),
    ("two_way_bytes_per_second", |way| Some(way.highest("bidir")?.value)),
    ("transactions_per_second", |way| Some(way.short("rr")?.value)),
    ("cpu_ns_per_message", |way| Some(way.short("overhead")?.value)),
    ("cpu_us_per_kb", |way| way.cpu_us_per_kb()),
    ("cpu_us_per_transaction", |way| way.cpu_us_per_transaction()),
];

fn figures(ways: &[Way]) -> String {
    let rows = ways.iter().map(|way| {
        let figures = WAY_COLUMNS.iter().map(|(_, figure)| csv::optional(figure(way)));
        std::iter::once(way.label.clone()).chain(figures).collect()
    });
    let names = WAY_COLUMNS.map(|(name, _)| name);
    csv::table(&[&["way"][..], &names].concat(), rows)
}

fn ceiling_table(ceilings: &Ceilings) -> String {
    let rows = ceilings.rows.iter().map(|ceiling| {
        let (first, last) = (ceiling.first, ceiling.last.value.to_string());
        let [low, high] = first.ci95.map(|bounds| bounds.map(|bound| bound.to_string())).unwrap_or_default();
        vec![ceiling.name(), first.unit.to_string(), first.value.to_string(), low, high, last]
    });
    csv::table(&["memory_test", "unit", "first", "ci95_low", "ci95_high", "last"], rows)
}

fn points(plot: &Plot) -> String {
    let rows = plot.points().map(|(series, point)| {
        let x = plot.x_in_file(point);
        let [low, high] = point.band.map(|band| band.map(|bound| bound.to_string())).unwrap_or_default();
        let note = point.note.clone().unwrap_or_default();
        vec![series.name.in_file().to_owned(), x, point.y.to_string(), low, high, note]
    });
    csv::table(&["series", plot.x.name, plot.y.name, "low", "high", "note"], rows)
}
