//! The verdict of a session, in one or two sentences, and what to do next.

use bywire_command::shell;
use bywire_results::cell::{DISTURBED, Session};
use bywire_results::parameter::Waiting;
use bywire_results::quantity;

use crate::ceiling::{Ceiling, Ceilings};
use crate::comparison::{Comparison, Row, Times, length, of_test};
use crate::disturbed_cells::Disturbance;

/// The verdict of a session in which too much was disturbed.
pub const UNUSABLE: &str =
    "The figures of this session cannot be used: the machine was busy with something else.";

/// The head of a report.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// One sentence each for latency and rate, at one length each.
    pub sentences: Vec<String>,
    /// True if the session cannot be used.
    pub is_unusable: bool,
    /// The faults of the session.
    pub alarms: Vec<String>,
    pub notes: Vec<String>,
    /// Things to do next, each with its command.
    pub steps: Vec<Step>,
}

type Step = (&'static str, String);

impl Verdict {
    pub fn of(session: &Session, comparisons: &[Comparison], ceilings: &Ceilings) -> Self {
        let disturbance = Disturbance::of(&session.cells);
        let mut verdict = Self { is_unusable: disturbance.is_unusable(), ..Self::default() };
        if session.cells.is_empty() {
            verdict.alarms.push("Nothing was measured in this session.".to_owned());
        } else if disturbance.is_unusable() {
            verdict.sentences.push(UNUSABLE.to_owned());
            for (test, [_, noun, _]) in BEST {
                verdict.sentences.extend(of_test(comparisons, test).and_then(|asked| least(asked, noun)));
            }
        } else {
            for (test, best) in BEST {
                let asked = of_test(comparisons, test).and_then(|asked| sentence(asked, best));
                verdict.sentences.extend(asked);
            }
        }
        if !session.complete {
            let told = "This session was interrupted: it shows what had been measured by then.";
            verdict.alarms.push(told.to_owned());
        }
        verdict.alarms.extend(disturbance.is_disturbed().then(|| alarm(disturbance)));
        if !disturbance.is_disturbed() && disturbance.disturbed_cells > 0 {
            verdict.notes.push(format!("{}. {DISTURBED}", greyed(disturbance)));
        }
        let unstable: Vec<String> =
            ceilings.rows.iter().filter(|ceiling| ceiling.unstable()).map(Ceiling::name).collect();
        if !unstable.is_empty() {
            verdict.notes.push(format!(
                "The machine itself changed by more than 5 % during the session ({}): differences of that order may \
                 be the machine's.",
                unstable.join("; ")
            ));
        }
        verdict.steps = steps(session, disturbance, comparisons);
        verdict
    }
}

/// The tests of the verdict, with the words for the best figure, and the verb between the rival and its figure.
const BEST: [(&str, [&str; 3]); 2] =
    [("latency", ["Lowest", "latency", "takes"]), ("stream", ["Highest", "rate", "carries"])];

/// The sentence for one question: a way and the rival, at a length at which both were measured. Only if no figure was
/// disturbed, the way is the best one; the best of what is left may be far from the best.
fn sentence(comparison: &Comparison, [extreme, noun, verb]: [&str; 3]) -> Option<String> {
    let best = comparison.best()?;
    let value = |row: &Row| row.usual.value(row.usual.cell.size_bytes);
    let size = comparison.size_bytes.map_or_else(|| "any length".to_owned(), length);
    let (figure, name) = (value(best), best.usual.way.medium());
    let disturbed = comparison.disturbed();
    if disturbed.is_empty() {
        let margin = margin(comparison, best, verb).unwrap_or_default();
        return Some(format!("{extreme} {noun} for {size}: {figure} with {name}{margin}."));
    }
    let is_disturbed = disturbed.iter().any(|row| std::ptr::eq(*row, best));
    let mark = if is_disturbed { ", disturbed" } else { "" };
    let margin = match best.usual.times {
        Times::Rival => None,
        _ => margin(comparison, best, verb),
    };
    let names: Vec<String> = disturbed.iter().map(|row| row.usual.way.medium()).collect();
    let (margin, names) = (margin.unwrap_or_default(), listed(&names));
    let noun = capitalized(noun);
    Some(format!(
        "{noun} for {size}: {figure} with {name}{mark}{margin}. No way is named the best, because these were disturbed: \
         {names}."
    ))
}

/// The least gains of a session most of which was disturbed. Nothing else can be said of it.
fn least(comparison: &Comparison, noun: &str) -> Option<String> {
    let rival = comparison.rival.as_ref()?;
    let bounds = comparison.rows.iter().filter_map(|row| match row.usual.times {
        Times::AtLeast(_) => Some(format!("{} {}", row.usual.way.medium(), row.usual.times.factor())),
        _ => None,
    });
    let bounds: Vec<String> = bounds.collect();
    let size = comparison.size_bytes.map_or_else(|| "any length".to_owned(), length);
    let noun = capitalized(noun);
    (!bounds.is_empty()).then(|| format!("{noun} for {size}, compared with {rival}: {}.", listed(&bounds)))
}

/// How much better than the rival a way is, after its figure in a sentence.
fn margin(comparison: &Comparison, best: &Row, verb: &str) -> Option<String> {
    let rival = comparison.rival.as_ref()?;
    match best.usual.times {
        times @ Times::Better(_, [low, high]) if low <= 1.0 && high >= 1.0 => {
            let row = comparison.rows.iter().find(|row| row.usual.times == Times::Rival)?;
            let (name, figure) = (capitalized(rival), row.usual.value(row.usual.cell.size_bytes));
            let (factor, interval) = (times.factor(), times.interval().unwrap_or_default());
            Some(format!(". {name} {verb} {figure}, which may be no difference: {factor}, {interval}"))
        }
        times @ (Times::Better(..) | Times::AtLeast(_)) => {
            let interval = times.wide_interval().map(|interval| format!(" ({interval})"));
            let (times, interval) = (times.factor(), interval.unwrap_or_default());
            Some(format!(", {times} faster than {rival}{interval}{}", while_polling(best)))
        }
        Times::Rival if comparison.rows.len() > 1 => {
            Some(". Nothing else measured here is faster".to_owned())
        }
        _ => None,
    }
}

/// Names in a sentence: `one, two and three`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// This comparison while both ways poll. Without it, the sentence would compare a way that spins with one that sleeps.
fn while_polling(best: &Row) -> String {
    let polling = best.others.iter().find(|entry| entry.way.waiting == Waiting::Polling);
    match polling.map(|entry| entry.times) {
        Some(times @ (Times::Better(..) | Times::AtLeast(_))) => {
            format!(", {} when both poll", times.factor())
        }
        _ => String::new(),
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn alarm(disturbance: Disturbance) -> String {
    format!(
        "The machine was not quiet: {} of the blocks were disturbed. {DISTURBED} {}.",
        quantity::percent(disturbance.disturbed_share()),
        greyed(disturbance)
    )
}

fn greyed(disturbance: Disturbance) -> String {
    match disturbance.disturbed_cells {
        0 => "No cell had half of its pairs disturbed, so every median stands".to_owned(),
        1 => "One cell cannot be used and is grey".to_owned(),
        several => format!("{several} of {} cells cannot be used and are grey", disturbance.cells),
    }
}

fn steps(session: &Session, disturbance: Disturbance, comparisons: &[Comparison]) -> Vec<Step> {
    let again = command(session);
    if disturbance.is_disturbed() || session.cells.is_empty() {
        return vec![("Stop other programs, then take the session again:", again)];
    }
    if !session.complete {
        return vec![("Take the whole session:", again)];
    }
    let mut steps = Vec::new();
    if comparisons.iter().flat_map(|comparison| &comparison.rows).any(|row| row.usual.way.level == "sock") {
        let own = "Run a program of your own with its connections in memory:";
        steps.push((own, "bywire run -- PROGRAM".to_owned()));
    }
    steps.push(("Take one figure again:", "bywire measure msg latency --size 8".to_owned()));
    if session.preset == "quick" {
        steps.push(("Measure everything, by length:", "bywire bench full".to_owned()));
    }
    steps
}

/// The command that takes the session again, into a new directory.
fn command(session: &Session) -> String {
    let mut words = session.command.iter().skip(1);
    let mut kept = vec!["bywire".to_owned()];
    while let Some(word) = words.next() {
        match word.as_str() {
            "--output" => drop(words.next()),
            word if word.starts_with("--output=") => {}
            word => kept.push(shell::quoted(word)),
        }
    }
    kept.join(" ")
}
