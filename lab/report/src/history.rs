//! The section of the source documents: their printed figures beside this session, and models of their machines.

use bywire_results::quantity;
use maud::{Markup, html};

use crate::ceiling::Ceilings;
use crate::historic_figures::{Comparison, comparisons};
use crate::model;
use crate::plot::{self, section};
use crate::table::{self, Column, Entry, Table};
use crate::way::Way;

/// The section. `name` makes the identifiers of its parts.
pub fn section(ways: &[Way], ceilings: &Ceilings, name: &dyn Fn(&str) -> String) -> Markup {
    html! {
        (past(&comparisons(ways, ceilings), &name("past")))
        @for plot in plot::then_and_now(ways, ceilings) { (section::of_plot(&plot, &name(plot.id))) }
        (model::section(&model::plots()))
    }
}

fn past(comparisons: &[Comparison], place: &str) -> Markup {
    html! {
        section.card id=(place) {
            h3 { "Then and now" }
            p.about { "The figures of the five source documents, as printed, beside the nearest result of this session. The machines are decades apart, and today both ends share one: the table shows what a program gets, then and now." }
            @for comparison in comparisons {
                details {
                    summary {
                        (comparison.document.title) " (" (comparison.document.date) "): "
                        (comparison.rows.len()) " figures beside today's, " (comparison.without) " without a counterpart in this session"
                    }
                    @if !comparison.rows.is_empty() { (past_table(comparison)) }
                }
            }
        }
    }
}

fn past_table(comparison: &Comparison) -> Markup {
    let columns = Column::aligned("lrrlrl", ["then", "printed", "today", "by", "better by", "note"]);
    let rows = comparison.rows.iter().map(|row| {
        let figure = row.figure;
        let length = match figure.size_bytes {
            Some(size) => quantity::size(size),
            None if figure.test == "nhalf" => "all lengths".into(),
            None => "no length printed".into(),
        };
        let then = Entry::from(format!("{}, {length}", figure.what));
        table::Row::of([
            then.note(Some(figure.hardware.clone())),
            format!("{} {}", figure.printed, figure.unit).into(),
            row.today.clone().into(),
            row.whose.clone().into(),
            quantity::factor(row.gain).into(),
            figure.note.clone().into(),
        ])
    });
    Table::new(comparison.document.title.clone(), columns, rows.collect()).html()
}
