//! The one-page answer: what each level delivers, what it costs, and who wins by how much.

use crate::cell::{Cell, CpuBothEnds};
use crate::report::ceiling::Ceilings;
use crate::report::quantity;
use crate::report::way::{Waiting, Way};

/// What one way delivers; a field is absent where its test was not run.
#[derive(Clone, Debug)]
pub struct Score<'a> {
    /// The way.
    pub way: &'a Way<'a>,
    /// Half-RTT of short messages.
    pub half_rtt: Option<&'a Cell>,
    /// The highest one-way rate.
    pub one_way: Option<&'a Cell>,
    /// The highest two-way rate.
    pub two_way: Option<&'a Cell>,
    /// Transactions per second with short requests.
    pub transactions: Option<&'a Cell>,
    /// Host CPU per short message.
    pub overhead: Option<&'a Cell>,
    /// N½ in bytes.
    pub n_half_bytes: Option<f64>,
}

impl<'a> Score<'a> {
    /// Of each way, in the order given.
    pub fn of(ways: &'a [Way<'a>]) -> Vec<Self> {
        ways.iter()
            .map(|way| Self {
                way,
                half_rtt: way.short("latency"),
                one_way: way.highest("stream"),
                two_way: way.highest("bidir"),
                transactions: way.short("rr"),
                overhead: way.short("overhead"),
                n_half_bytes: n_half_bytes(way),
            })
            .collect()
    }

    /// CPU of both ends at the highest one-way rate, in µs per KB.
    pub fn cpu_us_per_kb(&self) -> Option<f64> {
        both_ends(&self.one_way?.cpu, |end| end.service_demand_us_per_kb)
    }

    /// CPU of both ends per transaction, in µs.
    pub fn cpu_us_per_transaction(&self) -> Option<f64> {
        let cpu = &self.transactions?.cpu;
        both_ends(cpu, |end| end.service_demand_us_per_transaction)
    }
}

/// The sum over both ends of what each must have.
pub fn both_ends(cpu: &CpuBothEnds, of: impl Fn(&crate::cell::CpuEnd) -> Option<f64>) -> Option<f64> {
    Some(of(&cpu.source)? + of(&cpu.target)?)
}

/// N½ as measured by its own test, else read off the curve against its highest rate.
pub fn n_half_bytes(way: &Way) -> Option<f64> {
    if let Some(cell) = way.by_size("nhalf").last() {
        return Some(cell.value);
    }
    let points: Vec<(u64, f64)> =
        way.by_size("stream").iter().filter_map(|cell| Some((cell.size_bytes?, cell.value))).collect();
    let plateau = points.iter().map(|point| point.1).reduce(f64::max)?;
    crate::statistics::n_half(&points, plateau)
}

/// One large figure at the head of the report.
#[derive(Clone, Debug)]
pub struct Headline {
    /// What it is.
    pub title: &'static str,
    /// The figure with its unit.
    pub figure: String,
    /// Whose it is, at what size, and how far from the floor or ceiling.
    pub about: String,
}

/// The best of each kind.
pub fn headlines(scores: &[Score], ceilings: &Ceilings) -> Vec<Headline> {
    let lowest = |of: fn(&Score) -> Option<f64>| best(scores, of, f64::min);
    let highest = |of: fn(&Score) -> Option<f64>| best(scores, of, f64::max);
    let mut headlines = Vec::new();
    if let Some((score, ns)) = lowest(|score| Some(score.half_rtt?.value)) {
        let waiting = score.half_rtt.map(Waiting::of).and_then(|waiting| ceilings.floor_of(waiting));
        let floor =
            waiting.map(|(name, floor)| format!("; {} the {name} floor", quantity::factor(ns / floor)));
        headlines.push(Headline {
            title: "shortest half-RTT",
            figure: quantity::duration(ns),
            about: about(score, score.half_rtt) + &floor.unwrap_or_default(),
        });
    }
    if let Some((score, rate)) = highest(|score| Some(score.one_way?.value)) {
        let size = score.one_way.and_then(|cell| cell.size_bytes).unwrap_or(0);
        let ceiling = ceilings
            .one_way(size)
            .map(|ceiling| format!("; {} of the one-core ceiling", quantity::percent(rate / ceiling)));
        headlines.push(Headline {
            title: "highest one-way rate",
            figure: quantity::rate(rate),
            about: about(score, score.one_way) + &ceiling.unwrap_or_default(),
        });
    }
    if let Some((score, ns)) = lowest(|score| Some(score.overhead?.value)) {
        headlines.push(Headline {
            title: "least CPU per message",
            figure: quantity::duration(ns),
            about: about(score, score.overhead),
        });
    }
    if let Some((score, us)) = lowest(|score| score.cpu_us_per_kb()) {
        headlines.push(Headline {
            title: "least CPU per KB",
            figure: quantity::duration(us * 1e3),
            about: about(score, score.one_way) + "; both ends together",
        });
    }
    headlines
}

/// Who wins by how much: one sentence for each question and way of waiting on which two levels can be compared.
pub fn verdicts(scores: &[Score]) -> Vec<String> {
    let questions: [Question; 5] = [
        Question {
            about: "half-RTT of short messages",
            better: "shorter",
            less_is_better: true,
            cell: |score| score.half_rtt,
        },
        Question {
            about: "highest one-way rate",
            better: "higher",
            less_is_better: false,
            cell: |score| score.one_way,
        },
        Question {
            about: "highest two-way rate",
            better: "higher",
            less_is_better: false,
            cell: |score| score.two_way,
        },
        Question {
            about: "short transactions per second",
            better: "more",
            less_is_better: false,
            cell: |score| score.transactions,
        },
        Question {
            about: "host CPU per short message",
            better: "less",
            less_is_better: true,
            cell: |score| score.overhead,
        },
    ];
    let mut verdicts = Vec::new();
    for question in &questions {
        for waiting in [Waiting::Polling, Waiting::Adaptive, Waiting::Sleeping] {
            verdicts.extend(question.verdict(scores, waiting));
        }
    }
    verdicts
}

struct Question {
    about: &'static str,
    better: &'static str,
    less_is_better: bool,
    cell: for<'a> fn(&Score<'a>) -> Option<&'a Cell>,
}

impl Question {
    /// Like is compared with like: sleepers with sleepers, pollers with pollers; of each level its best way.
    fn verdict(&self, scores: &[Score], waiting: Waiting) -> Option<String> {
        let mut best: Vec<(&Way, &Cell)> = Vec::new();
        for score in scores {
            let Some(cell) = (self.cell)(score).filter(|cell| Waiting::of(cell) == waiting) else {
                continue;
            };
            match best.iter_mut().find(|(way, _)| way.level == score.way.level) {
                Some(entry) if self.beats(cell, entry.1) => *entry = (score.way, cell),
                Some(_) => {}
                None => best.push((score.way, cell)),
            }
        }
        best.sort_by(|a, b| match self.less_is_better {
            true => a.1.value.total_cmp(&b.1.value),
            false => b.1.value.total_cmp(&a.1.value),
        });
        let ((winner, cell), others) = best.split_first()?;
        let others: Vec<String> = others.iter().map(|(way, other)| self.margin(cell, way, other)).collect();
        (!others.is_empty()).then(|| {
            format!(
                "{}, {}: {} with {}; {}.",
                capital(self.about),
                waiting.name(),
                winner.label,
                quantity::value(cell.value, cell.unit),
                others.join(", ")
            )
        })
    }

    fn beats(&self, cell: &Cell, other: &Cell) -> bool {
        (cell.value < other.value) == self.less_is_better
    }

    /// A difference counts only where the intervals lie apart.
    fn margin(&self, winner: &Cell, way: &Way, other: &Cell) -> String {
        let told = quantity::value(other.value, other.unit);
        if winner.ci95[0] <= other.ci95[1] && other.ci95[0] <= winner.ci95[1] {
            return format!("no measurable difference from {} ({told})", way.label);
        }
        let ratio = match self.less_is_better {
            true => other.value / winner.value,
            false => winner.value / other.value,
        };
        let factor = quantity::factor(ratio);
        match self.better {
            "shorter" => format!("{factor} shorter than {} ({told})", way.label),
            "less" => format!("{factor} less than {} ({told})", way.label),
            "more" => format!("{factor} as many as {} ({told})", way.label),
            _ => format!("{factor} {} ({told})", way.label),
        }
    }
}

fn best<'s, 'a>(
    scores: &'s [Score<'a>],
    of: impl Fn(&Score<'a>) -> Option<f64>,
    better: fn(f64, f64) -> f64,
) -> Option<(&'s Score<'a>, f64)> {
    scores
        .iter()
        .filter_map(|score| Some((score, of(score)?)))
        .reduce(|a, b| if better(a.1, b.1) == a.1 { a } else { b })
}

fn about(score: &Score, cell: Option<&Cell>) -> String {
    let size = cell.and_then(|cell| cell.size_bytes).map(quantity::size);
    let mut parts = vec![score.way.label.clone()];
    parts.extend(size);
    let waits = cell.map(|cell| Waiting::of(cell).name());
    parts.extend(waits.filter(|name| !score.way.label.contains(name)).map(str::to_owned));
    parts.join(", ")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
