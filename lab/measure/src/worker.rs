//! A worker process: one end of one pair. A line of JSON on its standard input is its assignment.
//!
//! It does not outlive its parent: it is killed with the parent, and exits when its standard input ends or its deadline
//! has passed.

use std::io::{self, BufRead, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::cpu::Snapshot;
use crate::environment::boot_identity;
use crate::pin::pin;
use crate::plan::{Assignment, End, Job, Level, MemoryPlan, Outcome, Part, Plan, Role, WorkerMessage};
use crate::registry::levels;
use crate::slowdown::SlowedDown;
use crate::transport::{self, Transport};
use crate::{disturbance, memory, shared_port, web, workload};

/// Runs this process as a worker: reads one assignment, writes messages to its parent, and returns when its part is
/// done. Fails if the assignment is invalid. Later failures are reported to the parent.
pub fn run() -> Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let assignment: Assignment = serde_json::from_str(&line).context("a worker's assignment is not valid")?;
    if let (Job::Web(plan), Role::Target { core }) = (&assignment.job, &assignment.role) {
        // The server's guard outlives its parent until it has cleaned up.
        return web::guard(plan, *core, tell_parent);
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let deadline = assignment.job.deadline();
    let end = match (&assignment.role, &assignment.job) {
        (Role::SharedPort { .. }, Job::Messages(plan)) => shared_port::end(plan.test),
        (Role::Target { .. } | Role::SharedPort { .. }, _) => End::Target,
        (Role::Source { .. } | Role::Both { .. }, _) => End::Source,
    };
    std::thread::spawn(move || end_with_parent(end, deadline));
    report(end, &tell_parent, || fulfil(&assignment, &tell_parent));
    Ok(())
}

/// Writes one line to the parent. An error means that the parent has ended.
fn tell_parent(message: WorkerMessage) {
    if let Ok(line) = serde_json::to_string(&message) {
        let mut output = io::stdout().lock();
        let _gone = writeln!(output, "{line}").and_then(|()| output.flush());
    }
}

/// Ends this process when standard input ends or the deadline passes.
fn end_with_parent(end: End, deadline: Duration) {
    let started = Instant::now();
    let input = io::stdin();
    loop {
        let remaining = deadline.saturating_sub(started.elapsed());
        let timeout =
            Timespec { tv_sec: remaining.as_secs() as i64, tv_nsec: i64::from(remaining.subsec_nanos()) };
        let ready = poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&timeout));
        if matches!(ready, Err(rustix::io::Errno::INTR)) {
            continue;
        }
        if ready == Ok(0) {
            let reason = format!("not finished after {} s", deadline.as_secs());
            tell_parent(WorkerMessage::Failed { end, reason });
        }
        // After the assignment, only the end of the input can come.
        std::process::exit(3);
    }
}

/// Plays the assigned part. Returns the outcomes of this process, except those that other threads have reported.
fn fulfil(assignment: &Assignment, tell_parent: &TellParent) -> Result<Vec<Outcome>> {
    match (&assignment.job, &assignment.role) {
        (Job::Memory(plan), Role::Target { core }) => {
            pin(*core)?;
            let mut target = memory::Target::create(&plan.spec, *core)?;
            tell_parent(listening(serde_json::to_string(&target.address())?));
            target.serve()?;
            Ok(vec![Outcome::of(End::Target)])
        }
        (Job::Memory(plan), Role::Source { core, address }) => {
            pin(*core)?;
            Ok(vec![memory_blocks(plan, *core, address)?])
        }
        (Job::Web(plan), Role::Source { core, address }) => {
            pin(*core)?;
            Ok(web::measure(plan, *core, &serde_json::from_str(address)?)?.into())
        }
        (Job::Memory(_) | Job::Web(_), _) => bail!("this measurement is between processes only"),
        (Job::Messages(plan), Role::SharedPort { core, connections }) => {
            pin(*core)?;
            shared_port::run(plan, *core, *connections, |address| tell_parent(listening(address)))
        }
        (Job::Messages(plan), role) => match player(plan.level) {
            Some(play) => play(plan, role, tell_parent),
            None => bail!("level {} has workers of its own", plan.level),
        },
    }
}

/// Plays a role of a plan.
type Player = fn(&Plan, &Role, &TellParent) -> Result<Vec<Outcome>>;

/// Sends a message to the parent.
type TellParent = dyn Fn(WorkerMessage) + Sync;

macro_rules! players {
    ($($variant:ident = $name:literal: $about:literal [$($transport:ident :: $type:ident)?] $carrier:expr;)+) => {
        /// Plays roles of that level, unless it has workers of its own.
        fn player(level: Level) -> Option<Player> {
            let player: &[Player] = match level {
                $(Level::$variant => &[$(play::<transport::$transport::$type>)?],)+
            };
            player.first().copied()
        }
    };
}

levels!(players);

fn play<T: Transport>(plan: &Plan, role: &Role, tell_parent: &TellParent) -> Result<Vec<Outcome>> {
    match role {
        Role::Target { core } => play_target::<T>(plan, *core, |address| tell_parent(listening(address))),
        Role::Source { core, address } => play_source::<T>(plan, *core, address),
        Role::SharedPort { .. } => bail!("only a port of the message layer has many peers"),
        Role::Both { source_core, target_core } => std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            scope.spawn(move || {
                report(End::Target, tell_parent, || {
                    play_target::<T>(plan, *target_core, |address| {
                        let _gone = sender.send(address);
                    })
                });
            });
            // Without an address, the target has reported its failure.
            let Ok(address) = receiver.recv() else { return Ok(Vec::new()) };
            tell_parent(listening(address.clone()));
            play_source::<T>(plan, *source_core, &address)
        }),
    }
}

fn report(end: End, tell_parent: &TellParent, part: impl FnOnce() -> Result<Vec<Outcome>>) {
    match part() {
        Ok(outcomes) => outcomes.into_iter().map(WorkerMessage::Outcome).for_each(tell_parent),
        Err(error) => tell_parent(WorkerMessage::Failed { end, reason: format!("{error:#}") }),
    }
}

fn listening(address: String) -> WorkerMessage {
    WorkerMessage::Listening { address, boot: boot_identity() }
}

fn play_target<T: Transport>(
    plan: &Plan,
    core: Option<u32>,
    listening: impl FnOnce(String),
) -> Result<Vec<Outcome>> {
    pin(core)?;
    let (listener, address) = T::listen(plan)?;
    listening(address);
    let mut lanes = T::accept(listener, plan)?;
    Ok(vec![workload::run(plan, End::Target, core, &mut lanes)?])
}

fn play_source<T: Transport>(plan: &Plan, core: Option<u32>, address: &str) -> Result<Vec<Outcome>> {
    pin(core)?;
    let mut lanes = T::connect(plan, address)?;
    let outcome = if let Some(percent) = plan.request.slowdown_percent {
        let slowed_down = lanes.into_iter().map(|lane| SlowedDown::new(lane, percent));
        workload::run(plan, End::Source, core, &mut slowed_down.collect::<Vec<_>>())
    } else {
        workload::run(plan, End::Source, core, &mut lanes)
    };
    Ok(vec![outcome?])
}

fn memory_blocks(plan: &MemoryPlan, core: Option<u32>, address: &str) -> Result<Outcome> {
    let address = Some(address).filter(|address| !address.is_empty());
    let address: Option<memory::Address> = address.map(serde_json::from_str).transpose()?;
    // The target does not know about blocks, so its CPU accounts are read here.
    let take = || {
        let target = address.as_ref().map(|target| Snapshot::of_thread(&target.thread, target.core));
        (Snapshot::take(core), target)
    };
    let mut source = memory::Source::open(&plan.spec, address.as_ref())?;
    let mut outcome = Outcome::of(End::Source);
    let mut first = None;
    for index in 0..plan.warmup_blocks + plan.blocks {
        let before = take();
        let reading = source.block(Duration::from_micros(plan.block_us))?;
        let after = take();
        let ends = [Some((&before.0, &after.0)), before.1.as_ref().zip(after.1.as_ref())];
        let part = Part {
            seconds: reading.seconds,
            operations: reading.operations,
            reading: Some(reading.value),
            disturbed: disturbance::at_any(ends.into_iter().flatten()),
            ..Part::default()
        };
        if index < plan.warmup_blocks {
            outcome.warmup.push(part);
            continue;
        }
        outcome.blocks.push(part);
        outcome.cpu = first.get_or_insert(before.0).until(&after.0);
        outcome.cpu_seconds += reading.seconds;
    }
    Ok(outcome)
}
