//! The section of a plot in the page: its legend, its drawing, and a table of its figures.

use maud::{Markup, html};

use crate::plot::data::{DISTURBED, Kind, Look, Plot};
use crate::plot::drawing;
use crate::table::{Column, Row, Table};

/// The plot's section of the page, at `place`. The script hides series, changes the scale and saves.
pub fn of_plot(plot: &Plot, place: &str) -> Markup {
    html! {
        section.card id=(place) {
            h3 { (plot.title) }
            p.about { (plot.about) }
            @if plot.has_marks() {
                (legend(plot, place))
                div.plot data-plot=(place) role="img" aria-label=(format!("{}. {} The table below holds its figures.", plot.title, plot.about)) {
                    (drawing::in_page(plot, place))
                }
            }
            @for remark in &plot.remarks { p.remark { (remark) } }
            @if plot.has_marks() {
                div.tools {
                    @if plot.has_scales() {
                        button type="button" data-scale=(place) aria-pressed="false" { "Linear scale" }
                    }
                    button type="button" data-download=(place) { "Download SVG" }
                }
                details {
                    summary { "Table: " (plot.title) }
                    (table(plot))
                }
            }
        }
    }
}

/// A button for each series. A single kind of bars needs none. If there are many, the later series are hidden until the reader asks for them, and on a
/// narrow page so are their buttons.
fn legend(plot: &Plot, place: &str) -> Markup {
    if plot.kind == Kind::Bars && plot.series.len() == 1 {
        return html! {};
    }
    let entries = || plot.series.iter().enumerate().filter(|(_, series)| series.look != Look::Mark);
    let waiting = entries().filter(|(number, _)| !plot.starts_with(*number)).count();
    html! {
        div.legend data-legend=(place) {
            @for (number, series) in entries() {
                @let is_shown = plot.starts_with(number);
                button.later[!is_shown] type="button" aria-pressed=(is_shown.to_string()) data-shows=(with_marks(plot, number)) {
                    (drawing::sample(plot, series))
                    span { (series.name.plain) @if let Some(technical) = &series.name.technical { small { (technical) } } }
                }
            }
            @if waiting > 0 {
                button.all type="button" data-all=(place) { "Show all " (entries().count()) }
            }
        }
    }
}

/// The numbers of a series and of its marks, which are shown and hidden together.
fn with_marks(plot: &Plot, number: usize) -> String {
    let own = &plot.series[number];
    let mut numbers = number.to_string();
    for (other, series) in plot.series.iter().enumerate() {
        if own.look == Look::Measured && series.look == Look::Mark && series.slot == own.slot {
            numbers += &format!(" {other}");
        }
    }
    numbers
}

fn table(plot: &Plot) -> Markup {
    let columns = Column::aligned("lrrrl", ["series", plot.x.name, plot.y.name, "band", "note"]);
    let shown = |value| plot.y.quantity.format(value);
    let rows = plot.points().map(|(series, point)| {
        let band = point.band.map(|[low, high]| format!("{} – {}", shown(low), shown(high)));
        let disturbed = point.is_disturbed.then(|| DISTURBED.to_owned());
        let note = [point.note.clone(), disturbed].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let entries =
            [series.name.plain.clone(), plot.x_text(point), shown(point.y), band.unwrap_or_default(), note];
        Row { is_disturbed: point.is_disturbed, ..Row::of(entries) }
    });
    Table::new(format!("Table of {}", plot.title), columns, rows.collect()).html()
}
