//! The parts of a report as files: each plot as SVG and CSV, each table as CSV.

use bywire_results::cell::Session;
use bywire_results::csv;

use crate::ceiling::Ceilings;
use crate::comparison;
use crate::encryption_table;
use crate::ethernet_table;
use crate::historic_figures::comparisons;
use crate::model;
use crate::page::render_presets;
use crate::picture;
use crate::plot;
use crate::plot::data::{Kind, Plot};
use crate::plot::drawing;
use crate::sockets_table;
use crate::summary;
use crate::way::ways;
use crate::way_figures::WayFigures;
use crate::web_table;

/// A file's name and content.
pub type File = (String, String);

/// The page of a session and the files to share, by file extension.
pub fn files(session: &Session) -> Vec<File> {
    files_of_presets(std::slice::from_ref(session), session)
}

/// The same for several sessions of one preset each. `whole` is all of them together.
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
    let ceilings = Ceilings::of(&session.cells);
    let measured = plot::plots(&ways, &ceilings, &comparison::comparisons(&ways));
    [measured, plot::then_and_now(&ways, &ceilings), model::plots()].concat()
}

/// Every table as CSV: the figures of each way, the ceilings, the historic comparison, every cell, and the points of
/// each plot.
pub fn tables(session: &Session) -> Vec<File> {
    let ways = ways(&session.cells);
    let ceilings = Ceilings::of(&session.cells);
    let mut files = vec![
        ("cells.csv".to_owned(), csv::from_cells(&session.cells)),
        ("ways.csv".to_owned(), figures(&WayFigures::of(&ways))),
        ("ceilings.csv".to_owned(), ceiling_table(&ceilings)),
    ];
    for comparison in comparisons(&ways, &ceilings) {
        let rows = comparison.rows.iter().map(|row| {
            let size = row.figure.size_bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
            let printed = format!("{} {}", row.figure.printed, row.figure.unit);
            let (what, hardware) = (row.figure.what.clone(), row.figure.hardware.clone());
            vec![what, size, hardware, printed, row.today.clone(), row.whose.clone(), row.gain.to_string()]
        });
        let heading = ["then", "size_bytes", "hardware", "printed", "today", "by", "better_by_factor"];
        files.push((format!("past-{}.csv", comparison.document.document), csv::table(&heading, rows)));
    }
    for (name, tables) in [
        ("ethernet", ethernet_table::tables(&session.cells)),
        ("encryption", encryption_table::tables(&session.cells)),
        ("sockets", sockets_table::tables(&session.cells)),
        ("web", web_table::tables(&session.cells)),
    ] {
        let numbered = tables.iter().enumerate();
        files.extend(numbered.map(|(number, table)| (format!("{name}-{}.csv", number + 1), table.csv())));
    }
    files.extend(all_plots(session).iter().map(|plot| (format!("plot-{}.csv", plot.id), points(plot))));
    files
}

fn figures(figures: &[WayFigures]) -> String {
    let value = |cell: Option<&bywire_results::cell::Cell>| number(cell.map(|cell| cell.value));
    let rows = figures.iter().map(|row| {
        vec![
            row.way.label.clone(),
            value(row.half_rtt),
            value(row.one_way),
            number(row.n_half.map(|n_half| n_half.bytes)),
            value(row.two_way),
            value(row.transactions),
            value(row.overhead),
            number(row.cpu_us_per_kb()),
            number(row.cpu_us_per_transaction()),
        ]
    });
    let heading = [
        "way",
        "half_rtt_ns",
        "one_way_bytes_per_second",
        "n_half_bytes",
        "two_way_bytes_per_second",
        "transactions_per_second",
        "cpu_ns_per_message",
        "cpu_us_per_kb",
        "cpu_us_per_transaction",
    ];
    csv::table(&heading, rows)
}

fn ceiling_table(ceilings: &Ceilings) -> String {
    let rows = ceilings.rows.iter().map(|ceiling| {
        let unit = serde_json::to_value(ceiling.first.unit).unwrap_or_default();
        vec![
            ceiling.name(),
            unit.as_str().unwrap_or_default().to_owned(),
            ceiling.first.value.to_string(),
            number(ceiling.first.ci95.map(|[low, _]| low)),
            number(ceiling.first.ci95.map(|[_, high]| high)),
            ceiling.last.value.to_string(),
        ]
    });
    csv::table(&["memory_test", "unit", "first", "ci95_low", "ci95_high", "last"], rows)
}

fn points(plot: &Plot) -> String {
    let rows = plot.series.iter().flat_map(|series| {
        series.points.iter().map(|point| {
            let x = match plot.kind {
                Kind::Bars => plot.categories.get(point.x as usize).cloned().unwrap_or_default(),
                Kind::Curves => point.x.to_string(),
            };
            let band = point.band.map(|band| band.map(|bound| bound.to_string())).unwrap_or_default();
            let [low, high] = band;
            vec![
                series.name.clone(),
                x,
                point.y.to_string(),
                low,
                high,
                point.note.clone().unwrap_or_default(),
            ]
        })
    });
    csv::table(&["series", plot.x.name, plot.y.name, "low", "high", "note"], rows)
}

fn number(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
