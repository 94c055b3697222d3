//! The parts of the half-RTT of one message, by two independent methods.
//!
//! The first account measures a ladder of variants, in fresh pairs. Each variant leaves out one thing more, and the
//! difference is that thing's part. A part may be negative. The time of the last variant is compared with the machine's
//! own system calls and cache lines, and the rest is called unexplained. The second account samples what both cores are
//! doing.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::{bootstrap, median};
use bywire_command::exit_status::Misuse;
use rand::seq::SliceRandom;

use crate::memory;
use crate::pair;
use crate::placement::{Cores, Placement};
use crate::plan::Outcomes;
use crate::plan::{Job, Level, MemoryPlan, Plan, Test};
use crate::sampling::{self, Processes, Sampling, Symbols};
use crate::workload::block_loop::PROCESS;

pub use bywire_results::breakdown::{Account, CoreAccount, NAME, REST, Share};

/// The length of a message that holds its mark only.
const SHORT_BYTES: u64 = 8;

const SEED: u64 = 0x6272_6b64;

/// How long the machine's own two figures are measured beside each pair.
const ALONE_BLOCK_US: u64 = 500;
const ALONE_BLOCKS: u32 = 4;

/// One variant of the measured message.
struct Variant {
    plan: Plan,
    placement: Placement,
    /// What it leaves out compared with the variant before, and the words for it.
    part: &'static str,
    how: String,
}

/// A breakdown with the pairs taken so far.
pub struct Breakdown {
    /// The first variant is the whole message.
    ladder: Vec<Variant>,
    /// Variants compared with one of the ladder: the index there, and whether the ladder's takes longer.
    beside: Vec<(Variant, usize, bool)>,
    /// Read at first use.
    symbols: OnceLock<Result<Symbols>>,
    rounds: Vec<Round>,
}

/// One figure out of each pair.
type Value<'a> = dyn Fn(&Round) -> Option<f64> + 'a;

/// The results of one round of fresh pairs, half-RTTs in ns.
struct Round {
    ladder: Vec<f64>,
    beside: Vec<f64>,
    calls_per_message: Option<f64>,
    call_ns: Option<f64>,
    line_ns: Option<f64>,
    sampled: Vec<Sampled>,
}

/// What one core did during a half-RTT, in ns.
struct Sampled {
    core: u32,
    parts: BTreeMap<&'static str, f64>,
    samples: u64,
}

impl Breakdown {
    /// A breakdown of the messages of `plan`, between the two ends that `placement` names.
    ///
    /// # Errors
    /// The other end is on another machine, where it cannot be sampled.
    pub fn new(plan: &Plan, placement: &Placement) -> Result<Self, Misuse> {
        if matches!(placement, Placement::Host(_)) {
            return Err(Misuse(
                "breakdown watches both ends: give --between processes, threads or namespaces".into(),
            ));
        }
        let whole = Plan { test: Test::Latency, ..plan.clone() };
        let ladder = ladder(&whole, placement);
        let beside = beside(&whole, placement, &ladder);
        Ok(Self { ladder, beside, symbols: OnceLock::new(), rounds: Vec::new() })
    }

    /// The plan of the whole.
    pub fn plan(&self) -> &Plan {
        &self.ladder[0].plan
    }

    /// Pairs of processes that one [`Self::take`] starts: the variants', the machine's own two, and one that is sampled.
    pub fn pairs(&self) -> u32 {
        (self.ladder.len() + self.beside.len()) as u32 + 3
    }

    /// Takes a fresh pair of each variant, in random order, and returns that of the whole.
    ///
    /// # Errors
    /// One line from the end that failed.
    pub fn take(&mut self, cores: Cores, progress: &mut dyn FnMut(f64)) -> Result<Outcomes> {
        let count = self.ladder.len() + self.beside.len();
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut rand::rng());
        let mut all: BTreeMap<usize, Outcomes> = BTreeMap::new();
        for (done, &index) in order.iter().enumerate() {
            progress(done as f64 / (count + 1) as f64);
            let variant = match self.ladder.get(index) {
                Some(variant) => variant,
                None => &self.beside[index - self.ladder.len()].0,
            };
            let outcomes = pair::run(&Job::Messages(variant.plan.clone()), &variant.placement, cores)
                .with_context(|| format!("without {}", variant.part))?;
            all.insert(index, outcomes);
        }
        progress(count as f64 / (count + 1) as f64);
        let half_rtts: Vec<f64> = all.values().map(half_rtt_ns).collect();
        let (ladder, beside) = half_rtts.split_at(self.ladder.len());
        let asleep = self.ladder.iter().rposition(|variant| !variant.plan.spin);
        let calls = asleep.and_then(|index| all[&index].source.details.number(CALLS));
        self.rounds.push(Round {
            ladder: ladder.to_vec(),
            beside: beside.to_vec(),
            calls_per_message: calls,
            call_ns: alone_ns(memory::Test::Syscall, cores),
            line_ns: cores.apart().then(|| alone_ns(memory::Test::Cacheline, cores)).flatten(),
            sampled: self.sampled(cores)?,
        });
        all.remove(&0).context("the whole message was not measured")
    }

    /// One more pair of the whole message, with both cores sampled.
    fn sampled(&self, cores: Cores) -> Result<Vec<Sampled>> {
        let Ok(symbols) = self.symbols.get_or_init(Symbols::read) else { return Ok(Vec::new()) };
        let whole = &self.ladder[0];
        let known: Vec<u32> = [cores.source, cores.target].into_iter().flatten().collect();
        let blocks = u64::from(whole.plan.blocks + whole.plan.warmup_blocks);
        let Ok(sampling) = Sampling::start(&known, blocks * whole.plan.block_us * 1000) else {
            return Ok(Vec::new());
        };
        let outcomes = pair::run(&Job::Messages(whole.plan.clone()), &whole.placement, cores)?;
        let blocks = &outcomes.source.blocks;
        let spans: Vec<(u64, u64)> =
            blocks.iter().map(|part| (part.began_ns, part.began_ns + (part.seconds * 1e9) as u64)).collect();
        let process = |outcome: &crate::plan::Outcome| Some(outcome.details.count(PROCESS)? as u32);
        let ends = [process(&outcomes.source), outcomes.target.as_ref().and_then(process)];
        let processes =
            Processes { ends: ends.into_iter().flatten().collect(), carriers: whole.plan.carriers.clone() };
        let seconds: f64 = blocks.iter().map(|part| part.seconds).sum();
        let messages = 2.0 * blocks.iter().map(|part| part.operations as f64).sum::<f64>();
        let mean_ns = 1e9 * seconds / messages;
        let period_ns = sampling.period_ns();
        let scaled = |(core, profile): (u32, sampling::Profile)| {
            let samples: u64 = profile.values().sum();
            // Each sample stands for the time since the last one was due.
            let ns = |count: u64| count as f64 * period_ns as f64 / messages;
            let mut parts: BTreeMap<_, _> =
                profile.into_iter().map(|(kind, count)| (kind, ns(count))).collect();
            parts.insert(sampling::UNSAMPLED, mean_ns - ns(samples));
            Sampled { core, parts, samples }
        };
        Ok(sampling.within(&spans, &processes, symbols).into_iter().map(scaled).collect())
    }

    /// The account of the pairs taken so far.
    ///
    /// # Errors
    /// There is no pair.
    pub fn account(&self, cores: Cores) -> Result<Account> {
        ensure!(!self.rounds.is_empty(), "nothing was measured");
        let rung = |index: usize| move |round: &Round| Some(round.ladder[index]);
        let calls = |round: &Round| Some(round.calls_per_message? * round.call_ns?);
        let line = |round: &Round| round.line_ns;
        let mut parts: Vec<Share> = Vec::new();
        for (index, variant) in self.ladder.iter().enumerate().skip(1) {
            parts.extend(self.share(variant.part, &variant.how, &[&rung(index - 1)], &[&rung(index)]));
        }
        let alone = [
            self.share("system calls, empty", &self.calls_said(), &[&calls], &[]),
            self.share("a cache line to the other core", LINE_HOW, &[&line], &[]),
        ];
        let mut taken_off: Vec<&Value> = Vec::new();
        taken_off.extend(alone[0].as_ref().map(|_| &calls as &Value));
        taken_off.extend(alone[1].as_ref().map(|_| &line as &Value));
        let last = rung(self.ladder.len() - 1);
        let rest = self.share(REST, REST_HOW, &[&last], &taken_off);
        parts.extend(alone.into_iter().flatten().chain(rest));
        let beside = self.beside.iter().enumerate().filter_map(|(index, (variant, against, longer))| {
            let (of_ladder, own) = (rung(*against), move |round: &Round| Some(round.beside[index]));
            let (more, less): (&Value, &Value) =
                if *longer { (&of_ladder, &own) } else { (&own, &of_ladder) };
            self.share(variant.part, &variant.how, &[more], &[less])
        });
        Ok(Account { beside: beside.collect(), cores: self.core_accounts(cores), notes: self.notes(), parts })
    }

    /// The medians over pairs of `more` without those of `less`, so that the parts of a ladder add up to the whole.
    /// Absent if a pair lacks one of them.
    fn share(&self, name: &str, how: &str, more: &[&Value], less: &[&Value]) -> Option<Share> {
        let all = |of: &&Value| self.rounds.iter().map(of).collect::<Option<Vec<f64>>>();
        let more: Vec<Vec<f64>> = more.iter().map(all).collect::<Option<_>>()?;
        let less: Vec<Vec<f64>> = less.iter().map(all).collect::<Option<_>>()?;
        let value = |drawn: &[usize]| {
            let middle =
                |values: &Vec<f64>| median(&drawn.iter().map(|&pair| values[pair]).collect::<Vec<_>>());
            more.iter().map(middle).sum::<f64>() - less.iter().map(middle).sum::<f64>()
        };
        let pairs: Vec<usize> = (0..self.rounds.len()).collect();
        Some(Share {
            name: name.to_owned(),
            ns: value(&pairs),
            ci95_ns: bootstrap(pairs.len(), SEED, value),
            how: how.to_owned(),
        })
    }

    fn calls_said(&self) -> String {
        let of = |value: fn(&Round) -> Option<f64>| {
            median(&self.rounds.iter().filter_map(value).collect::<Vec<_>>())
        };
        let (calls, ns) = (of(|round| round.calls_per_message), of(|round| round.call_ns));
        format!(
            "the end's own count, {calls:.2} calls that send or receive for each message, times `memory syscall` beside \
             each pair, {ns:.0} ns"
        )
    }

    fn core_accounts(&self, cores: Cores) -> Vec<CoreAccount> {
        let ends = [("source", cores.source), ("target", cores.target)];
        let kinds = sampling::KINDS.into_iter().chain([sampling::OTHERWISE, sampling::UNSAMPLED]);
        let account = |(end, core): (&str, Option<u32>)| {
            let core = core?;
            let of_core = |round: &Round| round.sampled.iter().position(|sampled| sampled.core == core);
            let all: Vec<&Sampled> = self
                .rounds
                .iter()
                .map(|round| Some(&round.sampled[of_core(round)?]))
                .collect::<Option<_>>()?;
            let part = |kind: &'static str| {
                let value = |round: &Round| {
                    let parts = &round.sampled[of_core(round)?].parts;
                    Some(parts.get(kind).copied().unwrap_or(0.0))
                };
                let how = if kind == sampling::UNSAMPLED { UNSAMPLED_HOW } else { SAMPLES_HOW };
                all.iter()
                    .any(|sampled| sampled.parts.contains_key(kind))
                    .then(|| self.share(kind, how, &[&value], &[]))
            };
            Some(CoreAccount {
                end: end.to_owned(),
                core,
                samples: all.iter().map(|sampled| sampled.samples).sum(),
                parts: kinds.clone().filter_map(part).flatten().collect(),
            })
        };
        ends.into_iter().filter_map(account).collect()
    }

    fn notes(&self) -> Vec<String> {
        let whole = &self.ladder[0].plan;
        let mut notes = Vec::new();
        if whole.level.carrier().is_ip {
            notes.push(
                "byte order: not told apart, as single instructions among those of TCP and IP turn the words of \
                 headers; nobody turns a payload"
                    .to_owned(),
            );
        }
        if whole.level == Level::Sock {
            notes.push(
                "system calls: not counted, as most of the program's calls end in the library; samples have those that \
                 do not"
                    .to_owned(),
            );
        } else if whole.spin && whole.level != Level::Msg {
            notes.push(
                "system calls: not counted, because a polling end makes most of them in vain".to_owned(),
            );
        }
        if let Err(reason) = self.symbols.get_or_init(Symbols::read) {
            notes.push(format!("samples: {reason:#}"));
        } else if self.rounds.iter().any(|round| round.sampled.is_empty()) {
            notes.push(
                "samples: both cores cannot be sampled here: run as root, or set the sysctl \
                 kernel.perf_event_paranoid to -1"
                    .to_owned(),
            );
        } else {
            notes.push(self.sampling_cost());
        }
        notes
    }

    /// How much the sampling itself slows the message down.
    fn sampling_cost(&self) -> String {
        let sampled = |round: &Round| round.sampled.first().map(|core| core.parts.values().sum::<f64>());
        let [with, without] = [
            median(&self.rounds.iter().filter_map(sampled).collect::<Vec<_>>()),
            median(&self.rounds.iter().map(|round| round.ladder[0]).collect::<Vec<_>>()),
        ];
        format!(
            "samples: while they were taken the mean half-RTT was {:+.0} % beside the median without",
            100.0 * (with / without - 1.0)
        )
    }
}

const CALLS: &str = "system_calls_per_message_sent";

const LINE_HOW: &str = "memory cacheline beside each pair: no message is quicker from core to core";

const REST_HOW: &str = "what the last variant still takes, without its calls and its line";

const UNSAMPLED_HOW: &str = "the time for which no sample came: an idle core's clock may stand still, and what it does on \
                             waking is then found more often than it takes";

const SAMPLES_HOW: &str = "samples of the core by the kernel's clock, by the function that it was in";

/// Each variant leaves out one thing more.
fn ladder(whole: &Plan, placement: &Placement) -> Vec<Variant> {
    let mut ladder =
        vec![Variant { plan: whole.clone(), placement: placement.clone(), part: "", how: String::new() }];
    let mut without = |part: &'static str, how: &str, change: &dyn Fn(&mut Plan, &mut Placement)| {
        let last = &ladder[ladder.len() - 1];
        let (mut plan, mut placement) = (last.plan.clone(), last.placement.clone());
        change(&mut plan, &mut placement);
        ladder.push(Variant { plan, placement, part, how: how.to_owned() });
    };
    if whole.size_bytes > SHORT_BYTES {
        without(
            "payload written and read by the program",
            "without touching more than 8 bytes of it",
            &|plan, _| {
                plan.request.untouched = true;
            },
        );
        without("copies, and all else that grows with length", "with 8 bytes in its place", &|plan, _| {
            (plan.size_bytes, plan.response_bytes) = (SHORT_BYTES, SHORT_BYTES)
        });
    }
    if matches!(placement, Placement::Namespaces(_) | Placement::Nodes { .. }) {
        without("link: devices, namespaces, carriers", "over loopback in its place", &|plan, placement| {
            *placement = Placement::Processes;
            plan.carriers.clear();
            plan.bind = Placement::Processes.target_address();
        });
    }
    if !whole.spin {
        without("sleeping and waking", "with ends that poll", &|plan, _| {
            (plan.spin, plan.sleep) = (true, false);
        });
    }
    if whole.level.carrier().is_ip {
        let part = if whole.level == Level::Tcp { "TCP and IP" } else { "UDP and IP" };
        without(part, "with Unix sockets, which have neither, in its place", &|plan, placement| {
            plan.level = Level::Unix;
            if !matches!(placement, Placement::Threads) {
                *placement = Placement::Processes;
            }
        });
    }
    ladder
}

/// Differences that are not part of the sum.
fn beside(whole: &Plan, placement: &Placement, ladder: &[Variant]) -> Vec<(Variant, usize, bool)> {
    if whole.level != Level::Msg {
        return Vec::new();
    }
    let variant = |plan: Plan, part, how: &str| Variant {
        plan,
        placement: placement.clone(),
        part,
        how: how.to_owned(),
    };
    let mut beside = Vec::new();
    if !whole.request.lent && whole.size_bytes > SHORT_BYTES {
        let lent = ladder[1].plan.with(|request| request.lent = true);
        beside.push((
            variant(lent, "lending saves", "with lent buffers, untouched, in place of copies"),
            1,
            true,
        ));
    }
    if whole.request.integrity != Some(true) {
        let checked = whole.with(|request| request.integrity = Some(true));
        let part = "checksums would add";
        beside.push((variant(checked, part, "with the end-to-end check, which is off by default"), 0, false));
    }
    beside
}

fn half_rtt_ns(outcomes: &Outcomes) -> f64 {
    let readings: Vec<f64> = outcomes.source.blocks.iter().filter_map(|block| block.reading).collect();
    median(&readings)
}

/// The machine's own figure in ns, if it can be measured.
fn alone_ns(test: memory::Test, cores: Cores) -> Option<f64> {
    let plan = MemoryPlan::short(test, ALONE_BLOCK_US, ALONE_BLOCKS);
    pair::run(&Job::Memory(plan), &Placement::Processes, cores).ok()?.source.median_reading()
}
