//! The HTML page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bywire_command::shell;
use bywire_results::cell::{Cacheline, Cell, DISTURBED, Session};
use bywire_results::details::COMMAND;
use bywire_results::level::MEMORY;
use bywire_results::parameter::{MACHINE, plain};
use bywire_results::{quantity, web};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::ceiling::Ceiling;
use crate::digest::Digest;
use crate::level_tables::chapters;
use crate::merged::together;
use crate::plot::data::Plot;
use crate::plot::{drawing, section};
use crate::table::{Column, Entry, Row, Table};
use crate::way::{Way, ways};
use crate::{disturbed_cells, headline, history};

const SCRIPT: &str = include_str!("../assets/report.js");
const STYLE: &str = include_str!("../assets/report.css");

/// The whole report of a session as one HTML file.
///
/// The page loads nothing: its content security policy allows only its own script, by hash.
pub fn render(session: &Session) -> String {
    render_presets(std::slice::from_ref(session))
}

/// The report of several sessions of one preset each, in one file: the first page covers all of them, and each has a
/// page of its own.
pub fn render_presets(sessions: &[Session]) -> String {
    let all = together(sessions);
    let ways_of_all = ways(&all.cells);
    if sessions.len() < 2 {
        return document(&[Page::of("", "", &all, &ways_of_all)]);
    }
    let mut pages = vec![Page { is_overview: true, ..Page::of("all", "All presets", &all, &ways_of_all) }];
    let places: Vec<String> = (1..=sessions.len()).map(|number| format!("p{number}")).collect();
    let ways: Vec<Vec<Way>> = sessions.iter().map(|session| ways(&session.cells)).collect();
    let all_ways = sessions.iter().zip(&ways);
    pages.extend(all_ways.zip(&places).map(|((own, ways), place)| Page::of(place, &own.preset, own, ways)));
    document(&pages)
}

struct Page<'a> {
    /// The prefix of its identifiers. Empty if it is the only page.
    place: &'a str,
    title: &'a str,
    digest: Digest<'a>,
    plots: Vec<Plot>,
    is_overview: bool,
}

impl<'a> Page<'a> {
    fn of(place: &'a str, title: &'a str, session: &'a Session, ways: &'a [Way<'a>]) -> Self {
        let digest = Digest::of(session, ways);
        Self { place, title, plots: digest.plots(), digest, is_overview: false }
    }

    /// The identifier of one of its parts, unique in the file.
    fn name(&self, part: &str) -> String {
        if self.place.is_empty() { part.to_owned() } else { format!("{}-{part}", self.place) }
    }

    fn content(&self) -> Markup {
        let (session, ceilings) = (self.digest.session, &self.digest.ceilings.rows);
        let (ladder, others): (Vec<&Plot>, Vec<&Plot>) = self.plots.iter().partition(|plot| plot.is_ladder());
        html! {
            (headline::section(&self.digest, &ladder, &|part: &str| self.name(part)))
            @if !self.is_overview {
                @for ([place, heading, _], tables) in &chapters(&session.cells) {
                    @if !tables.is_empty() { (self.card(place, heading, html! { @for table in tables {
                        h4 { (table.title) }
                        p.about { (table.about) }
                        (table.html())
                    } })) }
                }
                @if !others.is_empty() { h2 id=(self.name("plots")) { "Plots" } }
                @for plot in others { (section::of_plot(plot, &self.name(plot.id))) }
                @if !ceilings.is_empty() { (self.card("ceilings", CEILINGS, ceiling_table(ceilings))) }
                @if !session.absent.is_empty() { (self.card("absent", "Not measured here", html! {
                    ul { @for absence in &session.absent { li {
                        b { (absence.level) @if let Some(test) = &absence.test { " " (test) } } ": " (absence.reason)
                    } } }
                })) }
                @if !session.cells.is_empty() { (self.card("cells", "Every cell", conduct(session))) }
                (self.card("environment", "The machine", html! {
                    details { summary { "Everything recorded about it" } (tree(&session.environment)) }
                }))
                (self.card("commands", "The command", html! {
                    pre tabindex="0" { code { (session.command.iter().map(|word| shell::quoted(word)).collect::<Vec<_>>().join(" ")) } }
                    p.about { "The command that takes each single cell again is in the table of every cell." }
                }))
            }
        }
    }

    fn card(&self, part: &str, heading: &str, content: Markup) -> Markup {
        html! { section.card id=(self.name(part)) { h3 { (heading) } (content) } }
    }

    fn history(&self) -> Markup {
        history::section(self.digest.ways, &self.digest.ceilings, &|part: &str| self.name(part))
    }
}

fn document(pages: &[Page]) -> String {
    let whole = &pages[0].digest;
    let html = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(concat!("bywire ", env!("CARGO_PKG_VERSION")));
                title { "Bywire · " (whole.session.preset) " · " (whole.session.started) }
                style { (PreEscaped(STYLE)) (PreEscaped(drawing::style())) }
            }
            body {
                a.skip href=(format!("#{}", pages[0].name("answer"))) { "Skip to the answer" }
                (masthead(whole))
                @match pages {
                    [only] => main {
                        (only.content())
                        details.history #historic {
                            summary { "The source documents of 1997 to 2005: printed figures beside today's, and models of their machines" }
                            (only.history())
                        }
                    },
                    several => {
                        nav.pages aria-label="Presets" { @for page in several {
                            a href=(format!("#{}", page.place)) { (page.title) }
                        }
                        a href="#historic" { "Historical machines" } }
                        main {
                            @for page in several {
                            div.page id=(page.place) { @if !page.is_overview { (facts(&page.digest)) } (page.content()) }
                            }
                            div.page #historic { (several[0].history()) }
                        }
                    }
                }
                footer { p { "Measured and written by bywire " (env!("CARGO_PKG_VERSION")) ". This file is complete in itself." } }
                script #palette type="application/json" { (PreEscaped(drawing::palette())) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    html.into_string()
}

/// The content security policy: no content from elsewhere, and only the page's own script, by its hash.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; \
         script-src 'sha256-{}'",
        STANDARD.encode(Sha256::digest(SCRIPT))
    )
}

fn masthead(digest: &Digest) -> Markup {
    html! {
        header {
            p.brand { "Bywire" }
            h1 { (if digest.machines().len() > 1 { "What these machines deliver" } else { "What this machine delivers" }) }
            (facts(digest))
        }
    }
}

fn facts(digest: &Digest) -> Markup {
    let session = digest.session;
    let mut facts = vec![session.started.clone(), format!("{:.0} s", session.seconds)];
    facts.push(format!("{} cells", session.cells.len()));
    facts.extend(digest.machines());
    html! {
        p.facts { "Preset " b { (session.preset) } " · " (facts.join(" · ")) }
    }
}

const CEILINGS: &str = "Ceilings of this machine";

fn ceiling_table(ceilings: &[Ceiling]) -> Markup {
    let rows = ceilings.iter().map(|ceiling| {
        let [last, drift] = match ceiling.drift() {
            Some(drift) => [quantity::of_cell(ceiling.last), format!("{:+.1} %", drift * 100.0)],
            None => ["taken once".to_owned(), String::new()],
        };
        let first = quantity::of_cell(ceiling.first);
        Row::of([ceiling.name(), first, interval(ceiling.first), last, drift])
    });
    let columns = Column::named(1, ["memory test", "first", "95 % interval", "last", "drift"]);
    html! {
        p.about { "What memory and the kernel allow between the same two cores, before and after the session." }
        (Table::new(CEILINGS, columns, rows.collect()).html())
    }
}

fn interval(cell: &Cell) -> String {
    match cell.ci95.map(|bounds| bounds.map(|bound| quantity::value(bound, cell.unit))) {
        Some([low, high]) => format!("{low} – {high}"),
        None => quantity::TOO_FEW_PAIRS.to_owned(),
    }
}

/// All cells, with their intervals, and with marks on disturbed ones.
fn conduct(session: &Session) -> Markup {
    let columns = ["command", "median", "95 % interval", "mean", "p99", "p99.9"];
    let counts = ["pairs", "blocks", "disturbed", "outliers", "cache line"];
    let rows = session.cells.iter().map(cell_row).collect();
    html! {
        p.about { "Medians over fresh pairs of processes, with 95 % bootstrap intervals over the pairs. An interval of five pairs holds the true median in 94 of 100 cells, one of more pairs in 89 to 95. Fewer than five have none. Disturbed blocks and outliers are marked, never dropped. " (DISTURBED) " The cache line's half-RTT between the same cores, just before and after a cell of msg or unix, shows the state of the machine. A virtual machine may change by the second." }
        details {
            summary { "Table of " (session.cells.len()) " cells" }
            (Table::new("Every cell", Column::named(1, columns.into_iter().chain(counts)), rows).html())
        }
    }
}

fn cell_row(cell: &Cell) -> Row {
    let value = |value: Option<f64>| value.map(|value| quantity::value(value, cell.unit));
    let [p99, p999] = [cell.above_median(|all| all.p99), cell.above_median(|all| all.p999)].map(value);
    let figures = [Some(quantity::of_cell(cell)), Some(interval(cell)), value(cell.mean), p99, p999];
    let counts = [cell.pairs(), cell.blocks.len(), cell.disturbed_blocks(), cell.outlier_blocks()];
    let counts = counts.map(|count| Some(count.to_string()));
    let figures = figures.into_iter().chain(counts).chain([cell.cacheline.map(cacheline)]);
    let command = Entry::code(command_of(cell)).note(cell.details.limited_by().map(str::to_owned));
    Row {
        is_disturbed: disturbed_cells::is_disturbed(cell),
        ..Row::of(std::iter::once(command).chain(figures.map(Entry::from)))
    }
}

/// The machine's own state before and after a cell.
fn cacheline(cacheline: Cacheline) -> String {
    let spans = [Some(cacheline.before_ns), cacheline.after_ns].into_iter().flatten();
    spans.map(quantity::duration).collect::<Vec<_>>().join(" → ")
}

fn command_of(cell: &Cell) -> String {
    if let Some(command) = cell.details.text(COMMAND) {
        return command.to_owned();
    }
    let mut words = vec!["bywire measure".to_owned(), cell.level.clone(), cell.test.clone()];
    let implied = cell.link.as_deref() == Some(&cell.level) || cell.level == "tcp" || cell.level == "udp";
    // Several nodes with veth have a bridge between them.
    let link = cell.link.as_deref().map(|link| if link == "bridge" { "veth" } else { link });
    words.extend(link.filter(|_| !implied).map(|link| format!("--link {link}")));
    // Some levels have no choice.
    let is_chosen = ![MEMORY, web::LEVEL].contains(&cell.level.as_str());
    if !["processes", ""].contains(&cell.between.as_str()) && is_chosen {
        words.push(format!("--between {}", shell::quoted(&cell.between)));
    }
    words.extend(cell.size_bytes.map(|size| format!("--size {size}")));
    let chosen = cell.parameters.iter().filter(|(name, _)| !NOT_AN_OPTION.contains(&name.as_str()));
    words.extend(chosen.filter_map(|(name, value)| option(name, value)));
    words.join(" ")
}

/// Parameters that the command works out by itself.
const NOT_AN_OPTION: [&str; 7] = ["block_us", "blocks", "burden", MACHINE, "pairs", "sendfile", "slowdown"];

fn option(name: &str, value: &Value) -> Option<String> {
    let name = name.replace('_', "-");
    match (name.as_str(), value) {
        (_, Value::Null) => None,
        ("spin", Value::Bool(false)) => Some("--no-spin".into()),
        // The default of that level.
        ("spin", Value::String(_)) => None,
        ("integrity" | "nagle", Value::Bool(true)) => Some(format!("--{name} on")),
        ("integrity" | "nagle", Value::Bool(false)) => Some(format!("--{name} off")),
        (_, Value::Bool(on)) => on.then(|| format!("--{name}")),
        (_, Value::String(text)) => Some(format!("--{name} {}", shell::quoted(text))),
        (_, other) => Some(format!("--{name} {other}")),
    }
}

fn tree(value: &Value) -> Markup {
    html! {
        @match value {
            Value::Object(map) => dl { @for (key, value) in map {
                div { dt { (key.replace('_', " ")) } dd { (tree(value)) } }
            } },
            Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => ol { @for item in items { li { (tree(item)) } } },
            Value::Array(items) => { (items.iter().map(known).collect::<Vec<_>>().join(" ")) }
            other => (known(other)),
        }
    }
}

fn known(value: &Value) -> String {
    if value.is_null() { "not available".to_owned() } else { plain(value) }
}
