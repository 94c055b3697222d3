//! A picture to share, with the verdict and the ladder of every way, 1200 × 630 points.

use bywire_results::cell::Session;
use maud::{Markup, html};

use crate::digest::Digest;
use crate::plot::data::Plot;
use crate::plot::drawing::{broken, on_white, panel};
use crate::way::ways;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 630.0;
const MARGIN: f64 = 40.0;
/// The height at which the plots begin, and that of the last line.
const PLOTS_TOP: f64 = 196.0;
const FOOT: f64 = HEIGHT - 24.0;
/// The letters of a line of the verdict.
const LETTERS: usize = 104;
const VERDICT_LINES_MAX: usize = 4;

/// The picture of a session as an SVG file.
pub fn svg(session: &Session) -> String {
    let ways = ways(&session.cells);
    let digest = Digest::of(session, &ways);
    let verdict = &digest.verdict;
    let ladder: Vec<Plot> = digest.plots().into_iter().filter(Plot::is_ladder).collect();
    let (sentences, ink) = match verdict.alarms.is_empty() {
        true => (&verdict.sentences, "var(--plot-text)"),
        false => (&verdict.alarms, ALARM),
    };
    let room = (WIDTH - 2.0 * MARGIN) / ladder.len().max(1) as f64 - 12.0;
    let highest = ladder.iter().map(|plot| panel(plot, room).1).fold(1.0, f64::max);
    let scale = ((FOOT - 20.0 - PLOTS_TOP - 22.0) / highest).min(1.0);
    let lines = sentences.iter().flat_map(|sentence| broken(sentence, LETTERS)).take(VERDICT_LINES_MAX);
    let date = session.started.split('T').next().unwrap_or_default().to_owned();
    let mut foot = digest.machines();
    foot.extend([format!("bywire bench {}", session.preset), date]);
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) width=(WIDTH) height=(HEIGHT) role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, DejaVu Sans, sans-serif" font-size="13" {
            title { "What this machine delivers, measured by bywire bench " (session.preset) }
            rect width=(WIDTH) height=(HEIGHT) fill="var(--plot-paper)" {}
            text x=(MARGIN) y="58" font-size="32" font-weight="600" fill="var(--plot-text)" { "What this machine delivers" }
            @for (line, text) in lines.enumerate() {
                text x=(MARGIN) y=(94.0 + 24.0 * line as f64) font-size="19" fill=(ink) { (text) }
            }
            @for (column, plot) in ladder.iter().enumerate() {
                (part(plot, MARGIN + (room + 12.0) * column as f64, room, scale))
            }
            text x=(MARGIN) y=(FOOT) font-size="13" fill="var(--plot-label)" { (foot.join(" · ")) }
            text x=(WIDTH - MARGIN) y=(FOOT) font-size="13" text-anchor="end" fill="var(--plot-label)" { "× against the kernel's TCP · ● Bywire, ○ others, ■ while polling" }
        }
    };
    on_white(drawing.into_string())
}

/// The colour of figures that cannot be used.
const ALARM: &str = "#b3261e";

/// One of the plots. All have one scale, which is smaller if one of them has many rows.
fn part(plot: &Plot, left: f64, room: f64, scale: f64) -> Markup {
    let (bars, _) = panel(plot, room / scale);
    html! {
        text x=(left) y=(PLOTS_TOP) font-size="17" font-weight="600" fill="var(--plot-text)" { (plot.heading()) }
        g transform=(format!("translate({left} {}) scale({scale:.3})", PLOTS_TOP + 14.0)) { (bars) }
    }
}
