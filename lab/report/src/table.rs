//! A table of the page. On a narrow page it scrolls by itself, also by keyboard, and shows that it does so.

use maud::{Markup, html};

/// A column: its heading and its alignment.
pub enum Column<'a> {
    /// Text, to the left.
    Words(&'a str),
    /// Figures, to the right.
    Figures(&'a str),
}

/// A table of these rows.
pub fn scroll(label: &str, columns: &[Column], rows: Markup) -> Markup {
    scroll_groups(label, columns, html! { tbody { (rows) } })
}

/// A table with several bodies.
pub fn scroll_groups(label: &str, columns: &[Column], bodies: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for column in columns { @match column {
                    Column::Words(name) => th scope="col" { (name) },
                    Column::Figures(name) => th.figure scope="col" { (name) },
                } } } }
                (bodies)
            }
        }
        p.sideways aria-hidden="true" { "The table goes on to the right: scroll it sideways →" }
    }
}
