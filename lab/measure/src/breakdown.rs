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

use crate::placement::{Cores, Placement};
use crate::plan::{Job, Level, MemoryPlan, Outcome, Outcomes, Plan, Test};
use crate::sampling::{self, Processes, Sampling, Symbols};
use crate::workload::block_loop::PROCESS;
use crate::{memory, pair};

pub use bywire_results::breakdown::{Account, CoreAccount, NAME, REST, Share};

/// The length of a message that holds its mark only.
const SHORT_BYTES: u64 = 8;

const SEED: u64 = 0x6272_6b64;

/// How long the machine's own two figures are measured beside each pair.
const ALONE_BLOCK_US: u64 = 500;
const ALONE_BLOCKS: u32 = 4;

/// One variant of the measured message.
#[derive(Clone)]
struct Variant {
    plan: Plan,
    placement: Placement,
    /// The part that it leaves out compared with the variant before, and the words for it.
    part: &'static str,
    how: &'static str,
    /// Outside the ladder: the variants between which the part is the difference, the one that takes longer first.
    difference: Option<[usize; 2]>,
}

/// A breakdown with the pairs taken so far.
pub struct Breakdown {
    /// The whole message, the other variants of the ladder, and those outside it.
    variants: Vec<Variant>,
    /// Read at first use.
    symbols: OnceLock<Result<Symbols>>,
    rounds: Vec<Round>,
}

/// One figure out of each pair.
type Value<'a> = dyn Fn(&Round) -> Option<f64> + 'a;

/// The results of one round of fresh pairs, half-RTTs in ns.
struct Round {
    /// By variant.
    half_rtts: Vec<f64>,
    calls_per_message: Option<f64>,
    call_ns: Option<f64>,
    line_ns: Option<f64>,
    sampled: Vec<Sampled>,
}

/// The work of one core during a half-RTT, in ns.
struct Sampled {
    core: u32,
    parts: BTreeMap<&'static str, f64>,
    samples: u64,
}

impl Breakdown {
    /// A breakdown of the messages of `plan`, between the two ends that `placement` names. An end on another machine
    /// cannot be sampled.
    pub fn new(plan: &Plan, placement: &Placement) -> Result<Self, Misuse> {
        if matches!(placement, Placement::Host(_)) {
            let here = "give --between processes, threads or namespaces";
            return Err(Misuse(format!("breakdown watches both ends: {here}")));
        }
        let plan = Plan { test: Test::Latency, ..plan.clone() };
        let placement = placement.clone();
        let variants = variants(Variant { plan, placement, part: "", how: "", difference: None });
        Ok(Self { variants, symbols: OnceLock::new(), rounds: Vec::new() })
    }

    /// Pairs of processes that one [`Self::take`] starts: the variants', the machine's own two, and one that is sampled.
    pub fn pairs(&self) -> u32 {
        self.variants.len() as u32 + 3
    }

    /// Takes a fresh pair of each variant, in random order, and returns that of the whole.
    pub fn take(&mut self, cores: Cores, progress: &mut dyn FnMut(f64)) -> Result<Outcomes> {
        let mut order: Vec<usize> = (0..self.variants.len()).collect();
        order.shuffle(&mut rand::rng());
        let mut all: BTreeMap<usize, Outcomes> = BTreeMap::new();
        for index in order {
            progress(all.len() as f64 / (self.variants.len() + 1) as f64);
            let Variant { plan, placement, part, .. } = &self.variants[index];
            let outcomes = pair::run(&Job::Messages(plan.clone()), placement, cores);
            all.insert(index, outcomes.with_context(|| format!("without {part}"))?);
        }
        progress(all.len() as f64 / (self.variants.len() + 1) as f64);
        let half_rtts = all.values().map(|outcomes| outcomes.source.median_reading().unwrap_or(f64::NAN));
        let is_asleep = |variant: &Variant| variant.difference.is_none() && !variant.plan.spin;
        let asleep = self.variants.iter().rposition(is_asleep);
        let calls = asleep.and_then(|index| all[&index].source.details.number(CALLS));
        self.rounds.push(Round {
            half_rtts: half_rtts.collect(),
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
        let whole = &self.variants[0];
        let known: Vec<u32> = cores.known().collect();
        let blocks = u64::from(whole.plan.blocks + whole.plan.warmup_blocks);
        let Ok(sampling) = Sampling::start(&known, blocks * whole.plan.block_us * 1000) else {
            return Ok(Vec::new());
        };
        let outcomes = pair::run(&Job::Messages(whole.plan.clone()), &whole.placement, cores)?;
        let source = &outcomes.source;
        let spans: Vec<(u64, u64)> =
            source.blocks.iter().map(|part| (part.began_ns, part.ended_ns())).collect();
        let process = |outcome: &Outcome| Some(outcome.details.count(PROCESS)? as u32);
        let ends = outcomes.ends().filter_map(process).collect();
        let processes = Processes { ends, carriers: whole.plan.carriers.clone() };
        let messages = 2.0 * source.sum(|part| part.operations as f64);
        let mean_ns = 1e9 * source.sum(|part| part.seconds) / messages;
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
    pub fn account(&self, cores: Cores) -> Result<Account> {
        ensure!(!self.rounds.is_empty(), "nothing was measured");
        let half_rtt = |index: usize| move |round: &Round| Some(round.half_rtts[index]);
        let calls = |round: &Round| Some(round.calls_per_message? * round.call_ns?);
        let line = |round: &Round| round.line_ns;
        let (mut parts, mut beside, mut last) = (Vec::new(), Vec::new(), 0);
        for (index, variant) in self.variants.iter().enumerate().skip(1) {
            let [more, less] = variant.difference.unwrap_or([index - 1, index]).map(half_rtt);
            let share = self.share(variant.part, variant.how, &[&more], &[&less]);
            if variant.difference.is_some() {
                beside.extend(share);
            } else {
                parts.extend(share);
                last = index;
            }
        }
        let alone = [
            self.share("system calls, empty", &self.calls_said(), &[&calls], &[]),
            self.share("a cache line to the other core", LINE_HOW, &[&line], &[]),
        ];
        let mut taken_off: Vec<&Value> = Vec::new();
        taken_off.extend(alone[0].as_ref().map(|_| &calls as &Value));
        taken_off.extend(alone[1].as_ref().map(|_| &line as &Value));
        let rest = self.share(REST, REST_HOW, &[&half_rtt(last)], &taken_off);
        parts.extend(alone.into_iter().flatten().chain(rest));
        Ok(Account { beside, cores: self.core_accounts(cores), notes: self.notes(), parts })
    }

    /// The medians over pairs of `more` without those of `less`, so that the parts of a ladder add up to the whole.
    /// Absent if a pair lacks one of them.
    fn share(&self, name: &str, how: &str, more: &[&Value], less: &[&Value]) -> Option<Share> {
        let of_rounds = |of: &&Value| self.rounds.iter().map(of).collect::<Option<Vec<f64>>>();
        let all = |values: &[&Value]| values.iter().map(of_rounds).collect::<Option<Vec<_>>>();
        let (more, less) = (all(more)?, all(less)?);
        let value = |drawn: &[usize]| {
            let middle = |values: &Vec<f64>| median_of(drawn.iter().map(|&pair| values[pair]));
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
        let of = |value: fn(&Round) -> Option<f64>| median_of(self.rounds.iter().filter_map(value));
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
            let sampled = self.rounds.iter().map(|round| Some(&round.sampled[of_core(round)?]));
            let all: Vec<&Sampled> = sampled.collect::<Option<_>>()?;
            let part = |kind: &'static str| {
                let value = |round: &Round| {
                    let parts = &round.sampled[of_core(round)?].parts;
                    Some(parts.get(kind).copied().unwrap_or(0.0))
                };
                let how = if kind == sampling::UNSAMPLED { UNSAMPLED_HOW } else { SAMPLES_HOW };
                let is_sampled = all.iter().any(|sampled| sampled.parts.contains_key(kind));
                is_sampled.then(|| self.share(kind, how, &[&value], &[]))
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
        let whole = &self.variants[0].plan;
        let is_sock = whole.level == Level::Sock;
        let known = [
            (whole.level.carrier().is_ip, BYTE_ORDER_NOTE),
            (is_sock, LIBRARY_NOTE),
            (whole.spin && !is_sock && whole.level != Level::Msg, POLLING_NOTE),
        ];
        let samples = match self.symbols.get_or_init(Symbols::read) {
            Err(reason) => format!("samples: {reason:#}"),
            Ok(_) if self.rounds.iter().any(|round| round.sampled.is_empty()) => UNSAMPLED_NOTE.to_owned(),
            Ok(_) => self.sampling_cost(),
        };
        let known = known.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note.to_owned());
        known.chain([samples]).collect()
    }

    /// How much the sampling itself slows the message down.
    fn sampling_cost(&self) -> String {
        let sampled = |round: &Round| round.sampled.first().map(|core| core.parts.values().sum::<f64>());
        let with = median_of(self.rounds.iter().filter_map(sampled));
        let without = median_of(self.rounds.iter().map(|round| round.half_rtts[0]));
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

const BYTE_ORDER_NOTE: &str = "byte order: not told apart, as single instructions among those of TCP and IP turn the \
                               words of headers; nobody turns a payload";

const LIBRARY_NOTE: &str = "system calls: not counted, as most of the program's calls end in the library; samples have \
                            those that do not";

const POLLING_NOTE: &str = "system calls: not counted, because a polling end makes most of them in vain";

const UNSAMPLED_NOTE: &str = "samples: both cores cannot be sampled here: run as root, or set the sysctl \
                              kernel.perf_event_paranoid to -1";

/// The ladder, in which each variant leaves out one thing more, and differences that are not part of its sum.
fn variants(whole: Variant) -> Vec<Variant> {
    let Variant { plan: Plan { size_bytes, level, spin, .. }, placement, .. } = whole.clone();
    let mut ladder = vec![whole];
    let mut without = |part: &'static str, how: &'static str, change: &dyn Fn(&mut Variant)| {
        let mut variant = Variant { part, how, ..ladder[ladder.len() - 1].clone() };
        change(&mut variant);
        ladder.push(variant);
    };
    if size_bytes > SHORT_BYTES {
        let part = "payload written and read by the program";
        without(part, "without touching more than 8 bytes of it", &|variant| {
            variant.plan.request.untouched = true;
        });
        without("copies, and all else that grows with length", "with 8 bytes in its place", &|variant| {
            (variant.plan.size_bytes, variant.plan.response_bytes) = (SHORT_BYTES, SHORT_BYTES);
        });
    }
    if matches!(placement, Placement::Namespaces { .. }) {
        without("link: devices, namespaces, carriers", "over loopback in its place", &|variant| {
            variant.placement = Placement::Processes;
            variant.plan.carriers.clear();
            variant.plan.bind = Placement::Processes.target_address();
        });
    }
    if !spin {
        without("sleeping and waking", "with ends that poll", &|variant| {
            (variant.plan.spin, variant.plan.sleep) = (true, false);
        });
    }
    if level.carrier().is_ip {
        let part = if level == Level::Tcp { "TCP and IP" } else { "UDP and IP" };
        without(part, "with Unix sockets, which have neither, in its place", &|variant| {
            variant.plan.level = Level::Unix;
            if !matches!(variant.placement, Placement::Threads) {
                variant.placement = Placement::Processes;
            }
        });
    }
    if level == Level::Msg {
        ladder.extend(beside(&ladder));
    }
    ladder
}

/// Differences of the message layer that are not part of the sum.
fn beside(ladder: &[Variant]) -> Vec<Variant> {
    let (whole, request) = (&ladder[0], &ladder[0].plan.request);
    let mut beside = Vec::new();
    if !request.lent && whole.plan.size_bytes > SHORT_BYTES {
        let how = "with lent buffers, untouched, in place of copies";
        let difference = Some([1, ladder.len()]);
        beside.push(Variant { part: "lending saves", how, difference, ..ladder[1].clone() });
        beside[0].plan.request.lent = true;
    }
    if request.integrity != Some(true) {
        let how = "with the end-to-end check, which is off by default";
        let difference = Some([ladder.len() + beside.len(), 0]);
        let mut checked = Variant { part: "checksums would add", how, difference, ..whole.clone() };
        checked.plan.request.integrity = Some(true);
        beside.push(checked);
    }
    beside
}

fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    median(&values.collect::<Vec<_>>())
}

/// The machine's own figure in ns, if it can be measured.
fn alone_ns(test: memory::Test, cores: Cores) -> Option<f64> {
    let plan = MemoryPlan::short(test, ALONE_BLOCK_US, ALONE_BLOCKS);
    pair::run(&Job::Memory(plan), &Placement::Processes, cores).ok()?.source.median_reading()
}
