//! The one-page answer: what each level delivers, what it costs, and who wins by how much.

use bywire_results::cell::{Cell, Unit};
use bywire_results::ethernet;
use bywire_results::parameter::MACHINE;
use bywire_results::parameter::MPI;
use bywire_results::quantity;

use crate::ceiling::Ceilings;
use crate::way::{Waiting, Way};

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
    /// N½.
    pub n_half: Option<NHalf>,
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
                n_half: n_half(way),
            })
            .collect()
    }

    /// CPU of both ends, and of whoever carries between them, at the highest one-way rate, in µs per KB.
    pub fn cpu_us_per_kb(&self) -> Option<f64> {
        self.one_way?.service_demand_us_per_kb()
    }

    /// The same per transaction, in µs.
    pub fn cpu_us_per_transaction(&self) -> Option<f64> {
        self.transactions?.cpu.service_demand_us_per_transaction()
    }
}

/// N½, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NHalf {
    /// In bytes.
    pub bytes: f64,
    /// True where a sweep measured it, false where it is read off the curve of one-way rates.
    pub swept: bool,
}

/// N½ as measured by its own test, else read off the curve against its highest rate.
pub fn n_half(way: &Way) -> Option<NHalf> {
    if let Some(cell) = way.by_size("nhalf").last() {
        return Some(NHalf { bytes: cell.value, swept: true });
    }
    let points: Vec<(u64, f64)> =
        way.by_size("stream").iter().filter_map(|cell| Some((cell.size_bytes?, cell.value))).collect();
    let plateau = points.iter().map(|point| point.1).reduce(f64::max)?;
    let bytes = bywire_analysis::statistics::n_half(&points, plateau)?;
    Some(NHalf { bytes, swept: false })
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
        let floor = score.half_rtt.and_then(|cell| ceilings.floor_beside(cell, score.way.waiting));
        let floor = floor.map(|(name, floor)| format!("; {} the {name} floor", quantity::factor(ns / floor)));
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
            about: about(score, score.one_way) + "; all ends together",
        });
    }
    headlines
}

/// Who wins by how much and at what cost: one sentence for each question and company in which two can be compared.
/// Whoever was measured for a question beside another one stands in one of its sentences.
pub fn verdicts(scores: &[Score]) -> Vec<String> {
    QUESTIONS.iter().flat_map(|question| question.verdicts(scores)).collect()
}

struct Question {
    about: &'static str,
    better: &'static str,
    less_is_better: bool,
    cell: for<'a> fn(&Score<'a>) -> Option<&'a Cell>,
    cost: Cost,
}

/// What the CPU of all who take part is divided by.
#[derive(Clone, Copy, PartialEq)]
enum Cost {
    Kilobyte,
    RoundTrip,
    /// The figure is CPU time itself.
    Said,
}

const QUESTIONS: [Question; 5] = [
    Question {
        about: "half-RTT of short messages",
        better: "shorter",
        less_is_better: true,
        cell: |score| score.half_rtt,
        cost: Cost::RoundTrip,
    },
    Question {
        about: "highest one-way rate",
        better: "higher",
        less_is_better: false,
        cell: |score| score.one_way,
        cost: Cost::Kilobyte,
    },
    Question {
        about: "highest two-way rate",
        better: "higher",
        less_is_better: false,
        cell: |score| score.two_way,
        cost: Cost::Kilobyte,
    },
    Question {
        about: "short transactions per second",
        better: "more",
        less_is_better: false,
        cell: |score| score.transactions,
        cost: Cost::RoundTrip,
    },
    Question {
        about: "host CPU per short message",
        better: "less",
        less_is_better: true,
        cell: |score| score.overhead,
        cost: Cost::Said,
    },
];

/// One that stands for itself: a machine where there are several, a level, of the level `eth` a way of carrying and what
/// is spoken over it, of the level `mpi` whose it is.
type Side<'a> = (Option<&'a str>, &'a str, Option<&'a str>, Option<&'a str>);

type Entry<'s> = (&'s Way<'s>, &'s Cell);

impl Question {
    fn verdicts(&self, scores: &[Score]) -> Vec<String> {
        let entries: Vec<Entry> =
            scores.iter().filter_map(|score| Some((score.way, (self.cell)(score)?))).collect();
        let sides_of = |wanted: &[Waiting]| -> Vec<Side> {
            let among = entries.iter().filter(|entry| wanted.contains(&entry.0.waiting));
            among.map(|entry| side(entry.0)).collect()
        };
        let adaptive = sides_of(&[Waiting::Adaptive]);
        let sleeping = sides_of(&[Waiting::Sleeping]);
        let company = |wanted: &dyn Fn(&Way) -> bool| {
            self.best_of_each_side(entries.iter().filter(|entry| wanted(entry.0)).copied())
        };
        let mut companies =
            vec![("polling", company(&|way: &Way| way.waiting == Waiting::Polling), "polled")];
        // A level that only knows how to sleep waits in its own way too: that keeps nobody apart.
        if !adaptive.is_empty() {
            let own = |way: &Way| {
                way.waiting == Waiting::Adaptive
                    || way.waiting == Waiting::Sleeping && !adaptive.contains(&side(way))
            };
            companies.push(("each waiting in its own way", company(&own), "was measured so"));
        }
        if adaptive.is_empty() || adaptive.iter().any(|side| sleeping.contains(side)) {
            let asleep = company(&|way: &Way| way.waiting == Waiting::Sleeping);
            companies.push(("sleeping", asleep, "slept"));
        }
        let compared: Vec<Side> = companies
            .iter()
            .filter(|company| company.1.len() > 1)
            .flat_map(|company| company.1.iter().map(|entry| side(entry.0)))
            .collect();
        let others_exist = entries.iter().any(|entry| side(entry.0) != side(entries[0].0));
        let told = |(name, company, did): &(&str, Vec<Entry>, &str)| match company[..] {
            [] => None,
            [alone] if !others_exist || compared.contains(&side(alone.0)) => None,
            // Other ways of the same level may have: they are left out as it is by its best way.
            [alone] => Some(format!("{}; no other level {did} here.", self.opening(name, alone))),
            [winner, ref others @ ..] => {
                let others: Vec<String> = others.iter().map(|other| self.margin(winner, other)).collect();
                Some(format!("{}; {}.", self.opening(name, winner), others.join(", ")))
            }
        };
        companies.iter().filter_map(told).collect()
    }

    /// The best way of each side, the winner first.
    fn best_of_each_side<'s>(&self, entries: impl Iterator<Item = Entry<'s>>) -> Vec<Entry<'s>> {
        let mut best: Vec<Entry> = Vec::new();
        for entry in entries {
            match best.iter_mut().find(|known| side(known.0) == side(entry.0)) {
                Some(known) if self.beats(entry.1, known.1) => *known = entry,
                Some(_) => {}
                None => best.push(entry),
            }
        }
        best.sort_by(|a, b| match self.less_is_better {
            true => a.1.value.total_cmp(&b.1.value),
            false => b.1.value.total_cmp(&a.1.value),
        });
        best
    }

    fn beats(&self, cell: &Cell, other: &Cell) -> bool {
        (cell.value < other.value) == self.less_is_better
    }

    fn opening(&self, company: &str, (way, cell): Entry) -> String {
        let cost = match self.cost(cell) {
            Some(cost) if self.cost == Cost::RoundTrip => format!(" at {cost} of CPU a round trip"),
            Some(cost) => format!(" at {cost} of CPU per KB"),
            None => String::new(),
        };
        let value = self.value(cell);
        format!("{}, {company}: {} with {value}{cost}", capital(self.about), way.label)
    }

    /// The figure; a rate with the size at which it was reached.
    fn value(&self, cell: &Cell) -> String {
        let size = cell.size_bytes.filter(|_| self.cost == Cost::Kilobyte);
        let at = size.map(|size| format!(" at {}", quantity::size(size))).unwrap_or_default();
        quantity::value(cell.value, cell.unit) + &at
    }

    /// CPU of both ends and of whoever carries between them.
    fn cost(&self, cell: &Cell) -> Option<String> {
        let us = match self.cost {
            Cost::RoundTrip => cell.cpu.service_demand_us_per_transaction(),
            Cost::Kilobyte => cell.service_demand_us_per_kb().or_else(|| busy_us_per_kb(cell)),
            Cost::Said => None,
        };
        us.map(|us| quantity::duration(us * 1e3))
    }

    /// A difference counts only where both have intervals, and those lie apart. A rate is compared with one that was reached at sizes
    /// which both were measured at: a longer message is no merit of whoever carries it.
    fn margin(&self, (champion, best): Entry, (way, other): &Entry) -> String {
        let cost = self.cost(other).map(|cost| format!(", CPU {cost}")).unwrap_or_default();
        let told = self.value(other) + &cost;
        let (winner, told) = match self.cost {
            Cost::Kilobyte => {
                let reach = reach(way, &other.test);
                match champion.highest_up_to(&other.test, reach) {
                    None => return format!("{} was measured with shorter messages only ({told})", way.label),
                    Some(winner) if winner.size_bytes == best.size_bytes => (best, told),
                    Some(winner) => {
                        let own = format!("{told}, against {}", self.value(winner));
                        (winner, own)
                    }
                }
            }
            _ => (best, told),
        };
        let Some((own, others)) = winner.ci95.zip(other.ci95) else {
            return format!("{} for a verdict on {} ({told})", quantity::TOO_FEW_PAIRS, way.label);
        };
        if own[0] <= others[1] && others[0] <= own[1] {
            return format!("no measurable difference from {} ({told})", way.label);
        }
        if self.beats(other, winner) {
            let factor = quantity::factor(other.value / winner.value);
            return format!("{} is ahead {factor} up to there ({told})", way.label);
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

/// Up to which size a way was measured; the longest datagram counts as the 64 KiB for which it stands.
fn reach(way: &Way, test: &str) -> u64 {
    let longest = way.by_size(test).iter().filter_map(|cell| cell.size_bytes).max().unwrap_or(0);
    if longest == bywire_results::level::DATAGRAM_BYTES_MAX { 64 << 10 } else { longest }
}

fn side<'a>(way: &Way<'a>) -> Side<'a> {
    let cell = way.cells.first().copied();
    let said = |name: &str| cell.and_then(|cell| cell.parameters.text(name));
    let machine = said(MACHINE);
    match way.level {
        ethernet::LEVEL => (machine, way.level, cell.and_then(|cell| cell.link.as_deref()), said("protocol")),
        MPI => (machine, way.level, None, said(MPI)),
        level => (machine, level, None, None),
    }
}

/// Of a test whose ends both send: their own CPU time over what crossed in both directions.
fn busy_us_per_kb(cell: &Cell) -> Option<f64> {
    let carriers = cell.cpu.carriers.as_ref().map_or(Some(0.0), |end| end.attributed)?;
    let busy = cell.cpu.source.attributed? + cell.cpu.target.attributed? + carriers;
    (cell.unit == Unit::BytesPerSecond).then(|| busy * 1e6 / (cell.value / 1024.0))
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
    let waits = score.way.waiting.name();
    parts.extend((!score.way.label.contains(waits)).then(|| waits.to_owned()));
    parts.join(", ")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
