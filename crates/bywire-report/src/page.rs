//! The HTML page.

use Column::{Figures, Words};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bywire_results::cell::DISTURBED;
use bywire_results::cell::{Cacheline, Cell, Session};
use bywire_results::parameter::MACHINE;
use bywire_results::quantity;
use bywire_results::shell;
use bywire_results::web;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::answer::{Headline, Score, headlines, verdicts};
use crate::carried;
use crate::ceiling::{Ceiling, Ceilings};
use crate::drawing;
use crate::gain;
use crate::graph;
use crate::merged::together;
use crate::model;
use crate::past::{Comparison, Row, comparisons};
use crate::plot::Plot;
use crate::section;
use crate::served;
use crate::way::{Waiting, ways};

const SCRIPT: &str = include_str!("../assets/report.js");
/// With a larger share of disturbed blocks the page says so at once.
const DISTURBED_SHARE_MAX: f64 = 0.1;

const STYLE: &str = include_str!("../assets/report.css");

/// The whole report of a session as one HTML file.
///
/// The page loads nothing: its content security policy allows only its own script, by hash.
pub fn render(session: &Session) -> String {
    document(session, &[Page::of("", "", session)])
}

/// The report of several sessions, of a preset each: the first page answers out of all of them, and each then has a page
/// of its own, all inside the one file.
pub fn render_presets(sessions: &[Session]) -> String {
    let [first, others @ ..] = sessions else {
        return render(&Session::default());
    };
    if others.is_empty() {
        return render(first);
    }
    let all = together(sessions);
    let mut pages = vec![Page { is_overview: true, ..Page::of("all", "All presets", &all) }];
    let places: Vec<String> = (1..=sessions.len()).map(|number| format!("p{number}")).collect();
    pages.extend(
        sessions.iter().zip(&places).map(|(session, place)| Page::of(place, &session.preset, session)),
    );
    document(&all, &pages)
}

/// What one page of the file shows.
struct Page<'a> {
    /// Its place in the file, before the names of its plots; empty where it is the only one.
    place: &'a str,
    title: &'a str,
    session: &'a Session,
    plots: Vec<Plot>,
    is_overview: bool,
}

impl<'a> Page<'a> {
    fn of(place: &'a str, title: &'a str, session: &'a Session) -> Self {
        let plots = graph::plots(&ways(&session.cells), &Ceilings::of(&session.cells));
        Self { place, title, session, plots, is_overview: false }
    }

    /// The name of one of its parts, unique in the file.
    fn name(&self, part: &str) -> String {
        if self.place.is_empty() { part.to_owned() } else { format!("{}-{part}", self.place) }
    }

    fn content(&self) -> Markup {
        let session = self.session;
        let ways = ways(&session.cells);
        let ceilings = Ceilings::of(&session.cells);
        let scores = Score::of(&ways);
        let (ladder, others): (Vec<&Plot>, Vec<&Plot>) = self.plots.iter().partition(|plot| plot.is_ladder());
        html! {
            (answer(self, &scores, &ceilings, &ladder))
            @if !self.is_overview {
                (tables(self, "ethernet", "Ethernet of the fabric beside the kernel's own", &carried::tables(&self.session.cells)))
                (tables(self, "gain", "What an unmodified program gains", &gain::tables(&self.session.cells)))
                (tables(self, "web", "Web servers", &served::tables(&self.session.cells)))
                @if !others.is_empty() { h2 id=(self.name("plots")) { "Plots" } }
                @for plot in others { (section::of_plot(plot, &self.name(plot.id))) }
                (ceiling_table(self, &ceilings))
            }
            (past(self, &comparisons(&ways, &ceilings)))
            @if !self.is_overview {
                (absences(self))
                (conduct(self))
                (environment(self))
                (commands(self))
            }
        }
    }
}

fn document(session: &Session, pages: &[Page]) -> String {
    let models = model::plots();
    let html = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(concat!("bywire ", env!("CARGO_PKG_VERSION")));
                title { "Bywire · " (session.preset) " · " (session.started) }
                style { (PreEscaped(STYLE)) (PreEscaped(drawing::style())) }
            }
            body {
                a.skip href=(format!("#{}", pages[0].name("answer"))) { "Skip to the answer" }
                (masthead(session))
                @match pages {
                    [only] => main { (only.content()) (model::section(&models)) },
                    several => {
                        nav.pages aria-label="Presets" { @for page in several {
                            a href=(format!("#{}", page.place)) { (page.title) }
                        }
                        a href="#historic" { "Historical machines" } }
                        main {
                            @for page in several {
                            div.page id=(page.place) { @if !page.is_overview { (facts(page.session)) } (page.content()) }
                            }
                            div.page #historic { (model::section(&models)) }
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

/// Nothing from anywhere but this file, and of scripts only the one that was written into it.
fn policy() -> String {
    let hash = |script: &str| STANDARD.encode(Sha256::digest(script.as_bytes()));
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; \
         script-src 'sha256-{}'",
        hash(SCRIPT)
    )
}

fn masthead(session: &Session) -> Markup {
    html! {
        header {
            p.brand { "Bywire" }
            h1 { (if machines(&session.environment).len() > 1 { "What these machines deliver" } else { "What this machine delivers" }) }
            (facts(session))
        }
    }
}

fn facts(session: &Session) -> Markup {
    let mut facts = vec![
        session.started.clone(),
        format!("{:.0} s", session.seconds),
        format!("{} cells", session.cells.len()),
    ];
    facts.extend(machines(&session.environment));
    html! {
        p.facts { "Preset " b { (session.preset) } " · " (facts.join(" · ")) }
        @if !session.complete {
            p.warning role="note" { "This session was interrupted: it shows what had been measured by then." }
        }
    }
}

/// Processor and kernel of each machine; of several with its session's name.
fn machines(environment: &Value) -> Vec<String> {
    let at = |pointer: &str| environment.pointer(pointer).and_then(Value::as_str);
    let release = at("/kernel/release").map(|release| format!("Linux {release}"));
    let own: Vec<String> = at("/cpu/model").map(str::to_owned).into_iter().chain(release).collect();
    if !own.is_empty() {
        return vec![own.join(" · ")];
    }
    let sessions = environment.as_object().into_iter().flatten();
    let named = sessions.flat_map(|(name, environment)| {
        let told = machines(environment);
        told.into_iter().map(move |told| if told.contains(": ") { told } else { format!("{name}: {told}") })
    });
    named.collect()
}

fn answer(page: &Page, scores: &[Score], ceilings: &Ceilings, ladder: &[&Plot]) -> Markup {
    let session = page.session;
    let unstable: Vec<String> =
        ceilings.rows.iter().filter(|ceiling| ceiling.unstable()).map(Ceiling::name).collect();
    let blocks: usize = session.cells.iter().map(|cell| cell.blocks.len()).sum();
    let disturbed: usize = session.cells.iter().map(Cell::disturbed_blocks).sum();
    let disturbed = disturbed as f64 / blocks.max(1) as f64;
    let verdicts = verdicts(scores);
    html! {
        section id=(page.name("answer")) {
            div.headlines {
                @for Headline { title, figure, about } in headlines(scores, ceilings) {
                    div.headline {
                        p.title { (title) }
                        p.value { (figure) }
                        p.about { (unbroken(&about)) }
                    }
                }
            }
            @if session.cells.is_empty() { p.warning { "Nothing was measured in this session." } }
            @if !unstable.is_empty() {
                p.warning role="note" {
                    "The machine itself changed by more than 5 % during the session (" (unstable.join(", ")) "): take differences of that order with care."
                }
            }
            @if disturbed > DISTURBED_SHARE_MAX {
                p.warning role="note" {
                    (quantity::percent(disturbed)) " of all blocks were disturbed. " (DISTURBED) " Where carriers of frames share the cores with both ends they do it themselves; elsewhere take the figures with care."
                }
            }
            @if !verdicts.is_empty() {
                h2 { "Who wins, by how much" }
                ul.verdicts { @for verdict in &verdicts {
                    @let (question, answer) = verdict.split_once(": ").unwrap_or(("", verdict));
                    @let (winner, others) = answer.split_once("; ").unwrap_or((answer, ""));
                    li {
                        b { (question) } ": " (unbroken(winner))
                        @if !others.is_empty() { span.others { (unbroken(others)) } }
                    }
                } }
                p.about { "Like is compared with like: pollers with pollers, sleepers with sleepers, and the default of the message layer, which spins a little before it sleeps, with the default of the others, which sleep; each level by its best way, and every way of carrying Ethernet for itself. Where the 95 % intervals overlap no difference is claimed, nor where fewer than five pairs give none. CPU is that of all ends together; 1 KB is 1,024 bytes." }
            }
            @if !ladder.is_empty() {
                h2 id=(page.name("ladder")) { "The ladder" }
                div.ladder { @for plot in ladder { (section::of_plot(plot, &page.name(plot.id))) } }
            }
            @if !scores.is_empty() {
                h2 { "What each level delivers" }
                (score_table(scores, ceilings))
                p.about { "Shares are of what memory allows here: one way of " i { "touched" } " (one core writes, copies and sums, at the nearest length), two ways of " i { "readwrite" } " (memory read and written, both added up). N½ is measured by a sweep of its own, or read off the curve of the rates below. CPU is that of both ends and of whoever carries between them." }
            }
        }
    }
}

fn score_table(scores: &[Score], ceilings: &Ceilings) -> Markup {
    let floor = |cell: Option<&Cell>| {
        let cell = cell?;
        let (name, floor) = ceilings.floor_beside(cell, Waiting::of(cell))?;
        Some(format!("{} {name}", quantity::factor(cell.value / floor)))
    };
    let cell = |cell: Option<&Cell>, ratio: Option<String>| {
        html! {
            td.figure {
                @match cell {
                    Some(cell) => {
                        (quantity::value(cell.value, cell.unit))
                        @if let Some(size) = cell.size_bytes { small { (quantity::size(size)) } }
                        @if let Some(ratio) = ratio { small { (ratio) } }
                    }
                    None => span.none { "–" },
                }
            }
        }
    };
    let time = |microseconds: Option<f64>| {
        html! {
            td.figure {
                @match microseconds {
                    Some(us) => (quantity::duration(us * 1e3)),
                    None => span.none { "–" },
                }
            }
        }
    };
    scroll(
        "What each level delivers",
        &[
            Words("way"),
            Figures("half-RTT, short"),
            Figures("one-way rate"),
            Figures("N½"),
            Figures("two-way rate"),
            Figures("transactions"),
            Figures("CPU / message"),
            Figures("CPU / KB"),
            Figures("CPU / transaction"),
        ],
        html! {
            @for score in scores { tr {
                th scope="row" { (score.way.label) small { (waiting(score)) } }
                (cell(score.half_rtt, floor(score.half_rtt)))
                (cell(score.one_way, share_of(score.one_way, "touched", |cell| ceilings.one_way(cell.size_bytes.unwrap_or(0)))))
                td.figure { @match score.n_half {
                    Some(n_half) => {
                        (format!("{:.0} B", n_half.bytes))
                        small { (if n_half.swept { "by its sweep" } else { "off the curve" }) }
                    }
                    None => span.none { "–" },
                } }
                (cell(score.two_way, share_of(score.two_way, "readwrite", |_| ceilings.two_way())))
                (cell(score.transactions, None))
                (cell(score.overhead, None))
                (time(score.cpu_us_per_kb()))
                (time(score.cpu_us_per_transaction()))
            } }
        },
    )
}

/// Tables whose first columns are names, under one heading.
fn tables(page: &Page, identity: &str, heading: &str, tables: &[carried::Table]) -> Markup {
    html! {
        @if !tables.is_empty() {
            section.card id=(page.name(identity)) {
                h3 { (heading) }
                @for table in tables {
                    h4 { (table.title) }
                    p.about { (table.about) }
                    @let columns: Vec<Column> = table.columns.iter().enumerate().map(|(index, name)| match index < carried::NAMING {
                        true => Words(name),
                        false => Figures(name),
                    }).collect();
                    (scroll(table.title, &columns, html! {
                        @for row in &table.rows { tr {
                            @for (index, entry) in row.iter().enumerate() { @match index {
                                0 => th scope="row" { (entry) },
                                1..carried::NAMING => td { (entry) },
                                _ if entry.is_empty() => td.figure { span.none { "–" } },
                                _ => td.figure { (entry) },
                            } }
                        } }
                    }))
                }
            }
        }
    }
}

/// A figure and its unit stay on one line.
fn unbroken(text: &str) -> String {
    let mut before = ' ';
    let mut letters = text.chars().peekable();
    let mut whole = String::new();
    while let Some(letter) = letters.next() {
        let unit = letters.peek().is_some_and(|next| next.is_alphabetic() || "%/".contains(*next));
        whole.push(if letter == ' ' && before.is_ascii_digit() && unit { '\u{a0}' } else { letter });
        before = letter;
    }
    whole
}

/// How a way waits, unless its name says so already.
fn waiting(score: &Score) -> &'static str {
    let name = score.way.waiting.name();
    if score.way.label.contains(name) { "" } else { name }
}

fn share_of(cell: Option<&Cell>, name: &str, ceiling: impl Fn(&Cell) -> Option<f64>) -> Option<String> {
    let cell = cell?;
    Some(format!("{} of {name}", quantity::percent(cell.value / ceiling(cell)?)))
}

const CEILING_COLUMNS: [Column<'static>; 5] =
    [Words("memory test"), Figures("first"), Figures("95 % interval"), Figures("last"), Figures("drift")];

fn ceiling_table(page: &Page, ceilings: &Ceilings) -> Markup {
    html! {
        @if !ceilings.rows.is_empty() {
            section.card id=(page.name("ceilings")) {
                h3 { "Ceilings of this machine" }
                p.about { "What memory and the kernel allow between the same two cores, before and after the session." }
                (scroll("Ceilings of this machine", &CEILING_COLUMNS, html! {
                    @for ceiling in &ceilings.rows { tr {
                        @let unit = ceiling.first.unit;
                        th scope="row" { (ceiling.name()) }
                        td.figure { (quantity::value(ceiling.first.value, unit)) }
                        td.figure { (interval(ceiling.first)) }
                        @match ceiling.drift() {
                            Some(drift) => {
                                td.figure { (quantity::value(ceiling.last.value, unit)) }
                                td.figure { (format!("{:+.1} %", drift * 100.0)) }
                            }
                            None => { td.figure { "taken once" } td.figure { "–" } }
                        }
                    } }
                }))
            }
        }
    }
}

fn interval(cell: &Cell) -> String {
    match cell.ci95.map(|bounds| bounds.map(|bound| quantity::value(bound, cell.unit))) {
        Some([low, high]) => format!("{low} – {high}"),
        None => quantity::TOO_FEW_PAIRS.to_owned(),
    }
}

fn past(page: &Page, comparisons: &[Comparison]) -> Markup {
    html! {
        section.card id=(page.name("past")) {
            h3 { "Then and now" }
            p.about { "The figures of the five source documents, as printed, beside the nearest result of this session. The machines are decades apart, and today both ends share one: the table shows what a program gets, then and now." }
            @for comparison in comparisons {
                details open[opens(page.session, comparison)] {
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

/// A preset's own document stands open; of others GM's does.
fn opens(session: &Session, comparison: &Comparison) -> bool {
    let documents = bywire_history::documents();
    let own = documents.iter().find(|document| document.document == session.preset);
    let shown = own.map_or("gm", |document| &document.document);
    comparison.document.document == shown && !comparison.rows.is_empty()
}

fn past_table(comparison: &Comparison) -> Markup {
    scroll(
        &comparison.document.title,
        &[
            Words("then"),
            Figures("printed"),
            Figures("today"),
            Words("by"),
            Figures("better by"),
            Words("note"),
        ],
        html! {
            @for row in &comparison.rows { tr {
                th scope="row" {
                    (row.figure.what) ", " (length_told(row))
                    small { (row.figure.hardware) }
                }
                td.figure { (row.figure.printed) " " (row.figure.unit) }
                td.figure { (row.today) }
                td { (row.whose) }
                td.figure { (quantity::factor(row.gain)) }
                td { @if let Some(note) = &row.figure.note { (note) } }
            } }
        },
    )
}

/// The length that the document prints, or that it prints none.
fn length_told(row: &Row) -> String {
    let figure = row.figure;
    match figure.size_bytes {
        Some(size) => quantity::size(size),
        None if figure.test == "nhalf" => "all lengths".into(),
        None => "no length printed".into(),
    }
}

fn absences(page: &Page) -> Markup {
    let session = page.session;
    html! {
        @if !session.absent.is_empty() {
            section.card id=(page.name("absent")) {
                h3 { "Not measured here" }
                ul { @for absence in &session.absent { li {
                    b { (absence.level) @if let Some(test) = &absence.test { " " (test) } } ": " (absence.reason)
                } } }
            }
        }
    }
}

const CELL_COLUMNS: [Column<'static>; 11] = [
    Words("command"),
    Figures("median"),
    Figures("95 % interval"),
    Figures("mean"),
    Figures("p99"),
    Figures("p99.9"),
    Figures("pairs"),
    Figures("blocks"),
    Figures("disturbed"),
    Figures("outliers"),
    Figures("cache line"),
];

/// How the session went: every cell with its interval and its marked blocks.
fn conduct(page: &Page) -> Markup {
    let session = page.session;
    html! {
        @if !session.cells.is_empty() {
            section.card id=(page.name("cells")) {
                h3 { "Every cell" }
                p.about { "Medians over fresh pairs of processes, with 95 % bootstrap intervals over the pairs: of five pairs they hold the true median in 94 of 100 cells, of more in 89 to 95, and fewer have none. Disturbed blocks and outliers are marked, never dropped. " (DISTURBED) " The cache line's half-RTT between the same cores, just before and after a cell of msg or unix, tells the state of the machine, which a virtual one may change by the second." }
                details {
                    summary { "Table of " (session.cells.len()) " cells" }
                    (scroll("Every cell", &CELL_COLUMNS, html! {
                        @for cell in &session.cells { (cell_row(cell)) }
                    }))
                }
            }
        }
    }
}

fn cell_row(cell: &Cell) -> Markup {
    let value = |value: Option<f64>| value.map(|value| quantity::value(value, cell.unit)).unwrap_or_default();
    html! {
        tr {
            th scope="row" {
                code { (command_of(cell)) }
                @if let Some(limit) = cell.details.get("limited_by").and_then(Value::as_str) { small { (limit) } }
            }
            td.figure { (value(Some(cell.value))) }
            td.figure { (interval(cell)) }
            td.figure { (value(cell.mean)) }
            td.figure { (value(cell.percentiles.map(|percentiles| percentiles.p99))) }
            td.figure { (value(cell.percentiles.map(|percentiles| percentiles.p999))) }
            td.figure { (cell.pairs()) }
            td.figure { (cell.blocks.len()) }
            td.figure { (cell.disturbed_blocks()) }
            td.figure { (cell.outlier_blocks()) }
            td.figure { (cell.cacheline.map(cacheline).unwrap_or_default()) }
        }
    }
}

/// The machine's own state before and after a cell.
fn cacheline(cacheline: Cacheline) -> String {
    let spans = [Some(cacheline.before_ns), cacheline.after_ns].into_iter().flatten();
    spans.map(quantity::duration).collect::<Vec<_>>().join(" → ")
}

/// The command that takes a cell again.
fn command_of(cell: &Cell) -> String {
    let mut words = vec!["bywire measure".to_owned(), cell.level.clone(), cell.test.clone()];
    let implied = cell.link.as_deref() == Some(&cell.level) || cell.level == "tcp" || cell.level == "udp";
    // Several nodes at the kernel's own cables have a bridge between them.
    let link = cell.link.as_deref().map(|link| if link == "bridge" { "veth" } else { link });
    words.extend(link.filter(|_| !implied).map(|link| format!("--link {link}")));
    // Some levels have no choice.
    let is_chosen = !["memory", web::LEVEL].contains(&cell.level.as_str());
    if !["processes", ""].contains(&cell.between.as_str()) && is_chosen {
        words.push(format!("--between {}", shell::quoted(&cell.between)));
    }
    words.extend(cell.size_bytes.map(|size| format!("--size {size}")));
    let chosen = cell.parameters.iter().filter(|(name, _)| !NOT_AN_OPTION.contains(&name.as_str()));
    words.extend(chosen.filter_map(|(name, value)| option(name, value)));
    words.join(" ")
}

/// Parameters that the command works out by itself.
const NOT_AN_OPTION: [&str; 6] = ["block_us", "blocks", "burden", MACHINE, "pairs", "sendfile"];

fn option(name: &str, value: &Value) -> Option<String> {
    let name = name.replace('_', "-");
    match (name.as_str(), value) {
        (_, Value::Null) => None,
        ("spin", Value::Bool(false)) => Some("--no-spin".into()),
        // The default of the one level that waits so.
        ("spin", Value::String(_)) => None,
        ("integrity" | "nagle", Value::Bool(on)) => {
            Some(format!("--{name} {}", if *on { "on" } else { "off" }))
        }
        (_, Value::Bool(on)) => on.then(|| format!("--{name}")),
        (_, Value::String(text)) => Some(format!("--{name} {}", shell::quoted(text))),
        (_, other) => Some(format!("--{name} {other}")),
    }
}

fn environment(page: &Page) -> Markup {
    let session = page.session;
    html! {
        section.card id=(page.name("environment")) {
            h3 { "The machine" }
            details { summary { "Everything recorded about it" } (tree(&session.environment)) }
        }
    }
}

fn tree(value: &Value) -> Markup {
    html! {
        @match value {
            Value::Object(map) => dl { @for (key, value) in map {
                div { dt { (key.replace('_', " ")) } dd { (tree(value)) } }
            } },
            Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => ol { @for item in items { li { (tree(item)) } } },
            Value::Array(items) => { (items.iter().map(plain).collect::<Vec<_>>().join(" ")) }
            other => (plain(other)),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "not available".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn commands(page: &Page) -> Markup {
    let session = page.session;
    let quoted: Vec<String> = session.command.iter().map(|word| shell::quoted(word)).collect();
    html! {
        section.card id=(page.name("commands")) {
            h3 { "The command" }
            pre tabindex="0" { code { (quoted.join(" ")) } }
            p.about { "The command that takes each single cell again is in the table of every cell." }
        }
    }
}

/// What stands in a column, under its heading.
enum Column<'a> {
    /// Text, to the left.
    Words(&'a str),
    /// Figures, to the right.
    Figures(&'a str),
}

/// A table that scrolls by itself where the page is narrow, by keyboard too.
fn scroll(label: &str, columns: &[Column], rows: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for column in columns { @match column {
                    Words(name) => th scope="col" { (name) },
                    Figures(name) => th.figure scope="col" { (name) },
                } } } }
                tbody { (rows) }
            }
        }
    }
}
