//! The section of the page that a plot has: its legend, the drawing, and the table that says the same in figures.

use maud::{Markup, html};

use crate::drawing;
use crate::plot::{Look, Plot, Series};

/// The plot's section of the page, at `place`. The script hides series, changes the scale and saves.
pub fn of_plot(plot: &Plot, place: &str) -> Markup {
    html! {
        section.card id=(place) {
            h3 { (plot.title) }
            p.about { (plot.about) }
            div.legend data-legend=(place) {
                @for (number, series) in plot.series.iter().enumerate() {
                    @if series.look != Look::Mark {
                        button type="button" aria-pressed="true" data-shows=(with_marks(plot, number)) {
                            (drawing::sample(plot, series)) (series.name)
                        }
                    }
                }
            }
            div.plot data-plot=(place) role="img" aria-label=(format!("{}. {} The table below holds its figures.", plot.title, plot.about)) {
                (drawing::in_page(plot, place))
            }
            @for remark in &plot.remarks { p.remark { (remark) } }
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

/// The numbers of a series and of the marks on it, which come and go with it.
fn with_marks(plot: &Plot, number: usize) -> String {
    let own = &plot.series[number];
    let is_on_it =
        |other: &Series| own.look == Look::Measured && other.look == Look::Mark && other.slot == own.slot;
    let marks = (0..plot.series.len()).filter(|other| is_on_it(&plot.series[*other]));
    [number].into_iter().chain(marks).map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
}

fn table(plot: &Plot) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("Table of {}", plot.title)) {
            table {
                thead { tr {
                    th scope="col" { "series" }
                    th.figure scope="col" { (plot.x.name) }
                    th.figure scope="col" { (plot.y.name) }
                    th.figure scope="col" { "band" }
                    th scope="col" { "note" }
                } }
                tbody {
                    @for series in &plot.series { @for point in &series.points {
                        tr {
                            th scope="row" { (series.name) }
                            td.figure { (plot.x_text(point)) }
                            td.figure { (plot.y.quantity.format(point.y)) }
                            td.figure { @if let Some([low, high]) = point.band {
                                (plot.y.quantity.format(low)) " – " (plot.y.quantity.format(high))
                            } }
                            td { @if let Some(note) = &point.note { (note) } }
                        }
                    } }
                }
            }
        }
    }
}
