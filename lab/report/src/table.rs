//! A table: one value, drawn as text for a terminal, as HTML, as Markdown and as CSV.

use bywire_results::csv;
use maud::html;

/// Rows under named columns, with a title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// How to read it.
    pub about: &'static str,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// Figures are to the right, words to the left.
    pub is_figure: bool,
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// An entry for each column.
    pub entries: Vec<Entry>,
    /// True if a cell of it was disturbed. It is shown in grey, and nothing is compared with it.
    pub is_disturbed: bool,
}

/// An entry. Unknown values are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its text.
    pub text: String,
    /// Smaller lines below it on a page. Other drawings leave them out.
    pub notes: Vec<String>,
    /// The kind of its text.
    pub markup: Markup,
}

/// The kind of an entry's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Markup {
    /// Text.
    #[default]
    Plain,
    /// A command.
    Code,
    /// Markdown, which a page of Markdown has as it is.
    Markdown,
}

impl Column {
    /// Columns of text (`l`, to the left) and of figures (`r`, to the right), by the letters of `alignment`.
    pub fn aligned<const COUNT: usize>(alignment: &str, names: [&str; COUNT]) -> Vec<Self> {
        let sides = alignment.chars().zip(names);
        sides.map(|(side, name)| Self { name: name.to_owned(), is_figure: side == 'r' }).collect()
    }

    /// Columns of which the first `words` hold text, and the others figures.
    pub fn named<N: Into<String>>(words: usize, names: impl IntoIterator<Item = N>) -> Vec<Self> {
        let names = names.into_iter().enumerate();
        names.map(|(index, name)| Self { name: name.into(), is_figure: index >= words }).collect()
    }
}

impl Row {
    /// A row of these entries.
    pub fn of<E: Into<Entry>>(entries: impl IntoIterator<Item = E>) -> Self {
        Self { entries: entries.into_iter().map(Into::into).collect(), is_disturbed: false }
    }
}

impl Entry {
    /// A command.
    pub fn code(text: impl Into<String>) -> Self {
        Self { markup: Markup::Code, ..Self::from(text.into()) }
    }

    /// Text that is Markdown already.
    pub fn marked(text: impl Into<String>) -> Self {
        Self { markup: Markup::Markdown, ..Self::from(text.into()) }
    }

    /// Adds a smaller line.
    pub fn note(mut self, note: Option<String>) -> Self {
        self.notes.extend(note.filter(|note| !note.is_empty()));
        self
    }
}

impl From<String> for Entry {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<Option<String>> for Entry {
    fn from(text: Option<String>) -> Self {
        text.unwrap_or_default().into()
    }
}

impl Table {
    /// A table without a note on how to read it.
    pub fn new(title: impl Into<String>, columns: Vec<Column>, rows: Vec<Row>) -> Self {
        Self { title: title.into(), about: "", columns, rows }
    }

    /// For a terminal: columns as wide as their widest entry. Empty columns are left out.
    pub fn text(&self) -> String {
        let heading: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let rows = || self.texts().map(|row| row.collect::<Vec<&str>>());
        let filled = |column: &usize| rows().any(|row| !row[*column].is_empty());
        let shown: Vec<usize> = (0..heading.len()).filter(filled).collect();
        let all = || std::iter::once(heading.clone()).chain(rows());
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..heading.len()).map(width).collect();
        let line = |row: Vec<&str>| {
            let columns = shown.iter().map(|&column| match self.columns[column].is_figure {
                false => format!("{:<1$}", row[column], widths[column]),
                true => format!("{:>1$}", row[column], widths[column]),
            });
            columns.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        all().map(line).collect()
    }

    /// For a page.
    pub fn html(&self) -> maud::Markup {
        let rows = html! {
            @for row in &self.rows { tr class=[row.is_disturbed.then_some("unusable")] {
                @for (index, (entry, column)) in row.entries.iter().zip(&self.columns).enumerate() {
                    @match (index, column.is_figure) {
                        (0, _) => th scope="row" { (entry.html()) },
                        (_, false) => td { (entry.html()) },
                        (_, true) => td.figure { (entry.html()) },
                    }
                }
            } }
        };
        scroll_groups(&self.title, &self.columns, html! { tbody { (rows) } })
    }

    /// For a page of Markdown. Text is escaped, commands are not.
    pub fn markdown(&self) -> String {
        let line = |entries: Vec<String>| format!("| {} |\n", entries.join(" | "));
        let heading = line(self.columns.iter().map(|column| escaped(&column.name)).collect());
        let alignment =
            self.columns.iter().map(|column| if column.is_figure { "---:" } else { ":---" }.to_owned());
        let rows = self.rows.iter().map(|row| line(row.entries.iter().map(Entry::markdown).collect()));
        heading + &line(alignment.collect()) + &rows.collect::<String>()
    }

    /// For other programs.
    pub fn csv(&self) -> String {
        let heading: Vec<&str> = self.columns.iter().map(|column| &*column.name).collect();
        csv::table(&heading, self.texts().map(|row| row.map(str::to_owned).collect()))
    }

    fn texts(&self) -> impl Iterator<Item = impl Iterator<Item = &str>> {
        self.rows.iter().map(|row| row.entries.iter().map(|entry| entry.text.as_str()))
    }
}

impl Entry {
    fn html(&self) -> maud::Markup {
        html! {
            @if self.markup == Markup::Code { code { (self.text) } } @else { (self.text) }
            @for note in &self.notes { small { (note) } }
        }
    }

    fn markdown(&self) -> String {
        match self.markup {
            Markup::Code if self.text.is_empty() => String::new(),
            Markup::Code => format!("`{}`", self.text.replace('|', "\\|")),
            Markup::Markdown => self.text.replace('|', "\\|"),
            Markup::Plain => escaped(&self.text),
        }
    }
}

/// Bodies below a heading. On a narrow page they scroll by themselves, also by keyboard, and the page shows that they do so.
pub fn scroll_groups(label: &str, columns: &[Column], bodies: maud::Markup) -> maud::Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for column in columns {
                    th class=[column.is_figure.then_some("figure")] scope="col" { (column.name) }
                } } }
                (bodies)
            }
        }
        p.sideways aria-hidden="true" { "The table goes on to the right: scroll it sideways →" }
    }
}

/// Escapes text for Markdown. A session may contain any text.
pub fn escaped(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '\n' | '\r' => plain.push(' '),
            '<' => plain.push_str("&lt;"),
            '&' => plain.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => plain.extend(['\\', letter]),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_table_is_drawn_in_four_ways() {
        let rows = vec![
            Row::of([
                Entry::from("a|b".to_owned()).note(Some("small".to_owned())),
                Entry::from("1.5 µs".to_owned()),
                Entry::default(),
            ]),
            Row {
                is_disturbed: true,
                ..Row::of([Entry::code("bywire measure"), Entry::marked("**12 µs**"), Entry::default()])
            },
        ];
        let table = Table::new("title", Column::named(1, ["what", "time", "nothing"]), rows);
        assert_eq!(
            table.text(),
            "what                 time\na|b                1.5 µs\nbywire measure  **12 µs**\n"
        );
        let markdown = "| what | time | nothing |\n| :--- | ---: | ---: |\n| a\\|b | 1.5 µs |  |\n\
                        | `bywire measure` | **12 µs** |  |\n";
        assert_eq!(table.markdown(), markdown);
        assert_eq!(table.csv(), "what,time,nothing\r\na|b,1.5 µs,\r\nbywire measure,**12 µs**,\r\n");
        let html = table.html().into_string();
        for part in [
            "<th scope=\"col\">what</th><th class=\"figure\" scope=\"col\">time</th>",
            "<th scope=\"row\">a|b<small>small</small></th>",
            "<tr class=\"unusable\"><th scope=\"row\"><code>bywire measure</code></th>",
            "<td class=\"figure\"></td>",
        ] {
            assert!(html.contains(part), "{part}\n{html}");
        }
    }
}
