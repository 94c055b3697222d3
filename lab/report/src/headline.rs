//! The head of a page: the verdict, the ladder, what to do next, and every way compared with the kernel's TCP.

use bywire_results::cell::{Cell, Session};
use bywire_results::quantity;
use maud::{Markup, html};

use crate::ceiling::Ceilings;
use crate::comparison::{Comparison, Entry, Row, Times};
use crate::digest::Digest;
use crate::disturbed_cells::is_disturbed;
use crate::plot::data::Plot;
use crate::plot::section;
use crate::table::{self, Column, Table, scroll_groups};
use crate::verdict::Verdict;
use crate::way::{NHalf, Way};
use crate::{picture, summary};

/// The head of a page. `name` makes the identifiers of its parts.
pub fn section(digest: &Digest, ladder: &[&Plot], name: &dyn Fn(&str) -> String) -> Markup {
    let Digest { session, ways, ceilings, comparisons, verdict } = digest;
    html! {
        section id=(name("answer")) class=[verdict.is_unusable.then_some("all-unusable")] {
            @for alarm in &verdict.alarms { p.alarm role="alert" { (alarm) } }
            @for sentence in &verdict.sentences { p.verdict { (unbroken(sentence)) } }
            @if !verdict.alarms.is_empty() { (next(verdict)) }
            @if !ladder.is_empty() {
                div.ladder id=(name("ladder")) { @for plot in ladder { (section::of_plot(plot, &name(plot.id))) } }
            }
            @for note in &verdict.notes { p.warning role="note" { (note) } }
            @if verdict.alarms.is_empty() { (next(verdict)) }
            @if !comparisons.is_empty() {
                h2 id=(name("ways")) { "Every way" }
                (comparison_table(comparisons))
                p.about { "Each part compares ways at one length. × is how many times better a way is than the kernel's TCP on the same machine, or between two hosts on the same wire. Without a figure of TCP it is against the kernel's way that has 1×. Its interval comes from the ends of both 95 % intervals. If something was disturbed, only the lower end of it counts: at least so many times. Defaults are compared with defaults, and polling with polling. CPU is that of both ends and of the carrying processes, for each round trip or for each KB of 1,024 bytes." }
                details {
                    summary { "All figures of each way: shares of what memory allows, N½, transactions, CPU" }
                    (way_table(ways, ceilings))
                    p.about { "Shares are of what memory allows here. For one way that is " i { "touched" } ": one core writes, copies and sums at the nearest length. For two ways it is " i { "readwrite" } ": memory read plus memory written. N½ is measured by a sweep of its own, or read off the curve of the rates below. CPU is that of both ends and of the carrying processes." }
                }
                (shared(session, name))
            }
        }
    }
}

fn next(verdict: &Verdict) -> Markup {
    html! {
        @if !verdict.steps.is_empty() {
            section.card.next {
                h3 { "What to do next" }
                ul { @for (what, command) in &verdict.steps { li { (what) " " kbd { (command) } } } }
            }
        }
    }
}

/// The picture and the summary, for sharing.
fn shared(session: &Session, name: &dyn Fn(&str) -> String) -> Markup {
    html! {
        details.share id=(name("share")) {
            summary { "A picture and a summary to share" }
            div.picture data-picture=(name("picture")) { (maud::PreEscaped(picture::svg(session))) }
            div.tools {
                button type="button" data-png=(name("picture")) { "Download PNG" }
                button type="button" data-svg=(name("picture")) { "Download SVG" }
            }
            pre tabindex="0" { code { (summary::markdown(session)) } }
        }
    }
}

/// The table of way, value, × and CPU. A way's other kinds of waiting are in the same row.
fn comparison_table(comparisons: &[Comparison]) -> Markup {
    let columns = Column::named(1, ["way", "value", "× TCP", "CPU"]);
    let bodies = html! {
        @for comparison in comparisons {
            tbody {
                tr.group { th scope="rowgroup" colspan="4" { (comparison.title()) small { (comparison.question.better) } } }
                @for row in &comparison.rows { (comparison_row(comparison, row)) }
            }
        }
    };
    scroll_groups("Every way", &columns, bodies)
}

fn comparison_row(comparison: &Comparison, row: &Row) -> Markup {
    let usual = &row.usual;
    let per = comparison.question.cost.unwrap_or_default();
    let cpu = |cell: &Cell| comparison.cpu(cell).map(|cpu| format!("{cpu} / {per}"));
    let is_unusable = is_disturbed(usual.cell);
    // A way may be usable with one kind of waiting only.
    let other = |entry: &Entry, text: String| {
        let class = if is_disturbed(entry.cell) { Some("unusable") } else { is_unusable.then_some("usable") };
        html! { small class=[class] { (entry.way.waiting.name()) " " (text) } }
    };
    html! {
        tr class=[is_unusable.then_some("unusable")] {
            th scope="row" { (usual.way.plain_name) small { (usual.way.name) " · " (usual.way.waiting.name()) } }
            td.figure {
                (unbroken(&usual.value(comparison.size_bytes)))
                @for entry in &row.others { (other(entry, entry.value(comparison.size_bytes))) }
            }
            td.figure {
                @match usual.times {
                    Times::AtLeast(_) => span.bound { (usual.times.factor()) },
                    times => (times.factor()),
                }
                @if let Some(interval) = usual.times.interval() { small { (interval) } }
                @for entry in &row.others { (other(entry, entry.times.text())) }
            }
            td.figure {
                @match cpu(usual.cell) { Some(cpu) => (cpu), None => span.none { "–" } }
                @for entry in &row.others { @if let Some(cpu) = cpu(entry.cell) { (other(entry, cpu)) } }
            }
        }
    }
}

/// Keeps a figure and its unit on one line.
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

fn way_table(ways: &[Way], ceilings: &Ceilings) -> Markup {
    let shown =
        |cell: &Cell| table::Entry::from(quantity::of_cell(cell)).note(cell.size_bytes.map(quantity::size));
    let share = |cell: &Cell, ceiling: Option<f64>, name: &str| {
        let share = ceiling.map(|ceiling| format!("{} of {name}", quantity::percent(cell.value / ceiling)));
        shown(cell).note(share)
    };
    let half_rtt = |cell: &Cell| {
        let floor = ceilings.floor_beside(cell);
        let floor = floor.map(|(name, floor)| format!("{} {name}", quantity::factor(cell.value / floor)));
        shown(cell).note(floor)
    };
    let n_half = |n_half: NHalf| {
        let from = if n_half.swept { "by its sweep" } else { "off the curve" };
        table::Entry::from(format!("{:.0} B", n_half.bytes)).note(Some(from.to_owned()))
    };
    let one_way = |cell: &Cell| share(cell, ceilings.one_way(cell.size_bytes.unwrap_or(0)), "touched");
    let time = |us: f64| quantity::duration(us * 1e3).into();
    let rows = ways.iter().map(|way| {
        let technical = format!("{} · {}", way.name, way.waiting.name());
        let entries = [
            Some(table::Entry::from(way.plain_name.clone()).note(Some(technical))),
            way.short("latency").map(half_rtt),
            way.highest("stream").map(one_way),
            way.n_half().map(n_half),
            way.highest("bidir").map(|cell| share(cell, ceilings.two_way(), "readwrite")),
            way.short("rr").map(shown),
            way.short("overhead").map(shown),
            way.cpu_us_per_kb().map(time),
            way.cpu_us_per_transaction().map(time),
        ];
        table::Row::of(entries.map(Option::unwrap_or_default))
    });
    let performance = ["way", "half-RTT, short", "one-way rate", "N½", "two-way rate", "transactions"];
    let columns = performance.into_iter().chain(["CPU / message", "CPU / KB", "CPU / transaction"]);
    Table::new("What each level delivers", Column::named(1, columns), rows.collect()).html()
}
