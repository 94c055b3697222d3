//! A pair: two fresh processes, one measurement, nothing left behind.

use std::io::BufReader;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::environment::boot_identity;
use crate::far::Far;
use crate::meeting::{MeetingPlace, nonce};
use crate::namespaces::Namespace;
use crate::place::{Cores, Place};
use crate::plan::{End, Job, Level, Order, Outcome, Outcomes, Plan, Role, Word};
use crate::preload::{NotCarried, Preload};
use crate::process::{Event, Setting, Worker, listen};
use crate::web::Keeper;
use crate::{hub, interrupt, mpi};

/// How much longer than their own deadline the workers are waited for.
const GRACE: Duration = Duration::from_secs(5);

/// A pair of whose connections some were not carried is taken so often again.
const CARRIED_REPEATS: u32 = 2;

/// Each time it warms up for so many times as long.
const CARRIED_LONGER: u32 = 4;

/// Runs one fresh pair through its job. Where it is to be carried and was not in time, as a service that is held up tells
/// its ends of each other late, another one takes its place.
///
/// # Errors
/// One line from the end that failed first; by then both ends are gone.
pub fn run(job: &Job, place: &Place, cores: Cores) -> Result<Outcomes> {
    let mut job = job.clone();
    for _ in 0..CARRIED_REPEATS {
        match run_once(&job, place, cores) {
            Err(error) if error.is::<NotCarried>() => {}
            done => return done,
        }
        if let Job::Messages(plan) = &mut job {
            plan.warmup_blocks *= CARRIED_LONGER;
            plan.deadline_seconds += 2 * plan.warmup_block_us() * u64::from(plan.warmup_blocks) / 1_000_000;
        }
    }
    run_once(&job, place, cores)
}

fn run_once(job: &Job, place: &Place, cores: Cores) -> Result<Outcomes> {
    interrupt::check()?;
    let job = &fresh(job);
    if let Job::Messages(plan) = job
        && let Some(choice) = plan.mpi
    {
        return mpi::run(plan, choice, place, cores);
    }
    let _meeting_place = meeting_place(job)?;
    let preload = Preload::of(job)?;
    let (sender, receiver) = channel();
    let mut conversation =
        Conversation { receiver, until: Instant::now() + job.deadline() + GRACE, reported: Vec::new() };
    let outcomes = match place {
        Place::Threads => run_threads(job, cores, &sender, &mut conversation),
        _ => run_two(job, place, cores, preload.as_ref(), &sender, &mut conversation),
    };
    interrupt::check()?;
    let outcomes = outcomes?;
    if let Some(preload) = preload {
        preload.check(&outcomes)?;
    }
    Ok(outcomes)
}

/// The same job with a cookie of its own, so that nothing of an earlier pair is taken for part of this one.
fn fresh(job: &Job) -> Job {
    let mut job = job.clone();
    match &mut job {
        Job::Messages(plan) => plan.cookie = nonce(),
        Job::Web(plan) => plan.cookie = nonce(),
        Job::Memory(_) => {}
    }
    job
}

/// Where the ports of a `msg` pair meet.
fn meeting_place(job: &Job) -> Result<Option<MeetingPlace>> {
    let Job::Messages(Plan { level: Level::Msg, cookie, .. }) = job else {
        return Ok(None);
    };
    MeetingPlace::of(cookie).map(Some)
}

fn run_threads(
    job: &Job,
    cores: Cores,
    sender: &Sender<Event>,
    conversation: &mut Conversation,
) -> Result<Outcomes> {
    let role = Role::Both { source_core: cores.source, target_core: cores.target };
    let _worker = start(End::Source, job, role, Setting::default(), sender)?;
    conversation.listening()?;
    let (source, target) = conversation.outcomes()?;
    Ok(Outcomes { source, target: Some(target), same_machine: true })
}

fn run_two(
    job: &Job,
    place: &Place,
    cores: Cores,
    preload: Option<&Preload>,
    sender: &Sender<Event>,
    conversation: &mut Conversation,
) -> Result<Outcomes> {
    let source_role = |address| Role::Source { core: cores.source, address };
    if !job.needs_target() {
        let _source = start(End::Source, job, source_role(String::new()), Setting::default(), sender)?;
        return Ok(Outcomes { source: conversation.outcome()?, target: None, same_machine: true });
    }
    let (source_space, target_space): (Option<&Namespace>, Option<&Namespace>) = match place {
        Place::Namespaces(namespaces) => (Some(&namespaces.source), Some(&namespaces.target)),
        Place::Nodes { star, source, target } => (Some(&star.nodes[*source]), Some(&star.nodes[*target])),
        _ => (None, None),
    };
    if let Job::Web(plan) = job {
        let keeper = Keeper::start(plan, cores.target, Setting { namespace: target_space, preload })?;
        let address = serde_json::to_string(keeper.address())?;
        let _source = start(
            End::Source,
            job,
            source_role(address),
            Setting { namespace: source_space, preload },
            sender,
        )?;
        // The client reads the server's accounts too.
        let (source, target) = conversation.outcomes()?;
        let outcomes = Outcomes { source, target: Some(target), same_machine: true };
        if let Some(preload) = preload {
            // While the server is there to tell what it carried.
            preload.check(&outcomes)?;
        }
        return Ok(outcomes);
    }
    let _target = match place {
        Place::Host(host) => Target::Far(Far::start(host, job, sender.clone())?),
        _ => {
            let role = Role::Target { core: cores.target };
            Target::Near(start(End::Target, job, role, Setting { namespace: target_space, preload }, sender)?)
        }
    };
    let (address, boot) = conversation.listening()?;
    let setting = Setting { namespace: source_space, preload };
    let _source = start(End::Source, job, source_role(address), setting, sender)?;
    let same_machine = boot.is_some() && boot == boot_identity();
    if matches!(job, Job::Memory(_)) {
        // The target of a ceiling has nothing to tell but that it is done, before or after the source.
        let mut outcome = conversation.outcome()?;
        while outcome.end == End::Target {
            outcome = conversation.outcome()?;
        }
        return Ok(Outcomes { source: outcome, target: None, same_machine });
    }
    let (source, target) = conversation.outcomes()?;
    Ok(Outcomes { source, target: Some(target), same_machine })
}

/// Runs so many connections of one port of the message layer at once: one process where all of them meet, and one at the
/// other end of each.
///
/// # Errors
/// As [`run`].
pub fn run_hub(plan: &Plan, connections: u32, cores: Cores) -> Result<Vec<Outcomes>> {
    interrupt::check()?;
    let job = fresh(&Job::Messages(plan.clone()));
    let _meeting_place = meeting_place(&job)?;
    let Job::Messages(plan) = &job else { bail!("only messages have a hub") };
    let until = Instant::now() + job.deadline() + GRACE;
    let conversation = || {
        let (sender, receiver) = channel();
        (sender, Conversation { receiver, until, reported: Vec::new() })
    };
    let end = hub::end(plan.test);
    let (core, other_core) = match end {
        End::Source => (cores.source, cores.target),
        End::Target => (cores.target, cores.source),
    };
    let (hub_sender, mut hub_says) = conversation();
    let start_hub = || start(end, &job, Role::Hub { core, connections }, Setting::default(), &hub_sender);
    // Whoever connects comes after those that are connected to.
    let mut address = String::new();
    let mut hub_worker = match end {
        End::Target => Some(start_hub()?),
        End::Source => None,
    };
    if hub_worker.is_some() {
        address = hub_says.listening()?.0;
    }
    let mut spokes = Vec::new();
    for spoke in 0..connections {
        let job = Job::Messages(Plan { spoke: Some(spoke), ..plan.clone() });
        let (sender, says) = conversation();
        let (other, role) = match end {
            End::Source => (End::Target, Role::Target { core: other_core }),
            End::Target => (End::Source, Role::Source { core: other_core, address: address.clone() }),
        };
        spokes.push((start(other, &job, role, Setting::default(), &sender)?, says));
    }
    if end == End::Source {
        for (_, says) in &mut spokes {
            says.listening()?;
        }
        hub_worker = Some(start_hub()?);
    }
    // The hub tells of all connections in their order; a spoke that fails takes the hub with it.
    let outcomes = spokes.iter_mut().enumerate().map(|(spoke, (_, says))| {
        let other = says.outcome().with_context(|| format!("connection {spoke}"));
        other.and_then(|other| Ok((other, hub_says.outcome()?)))
    });
    let outcomes = outcomes.map(|ends| {
        let (other, own) = ends?;
        let (source, target) = if end == End::Source { (own, other) } else { (other, own) };
        Ok(Outcomes { source, target: Some(target), same_machine: true })
    });
    let outcomes: Result<Vec<Outcomes>> = outcomes.collect();
    drop(hub_worker);
    interrupt::check()?;
    outcomes
}

/// Held for as long as the target has to live.
enum Target {
    Near(#[expect(dead_code, reason = "its drop ends the process")] Worker),
    Far(#[expect(dead_code, reason = "its drop ends the connection")] Far),
}

/// The parent's side of what the workers say.
struct Conversation {
    receiver: Receiver<Event>,
    until: Instant,
    /// Ends that have told their outcome.
    reported: Vec<End>,
}

impl Conversation {
    /// Where the target listens, and its boot.
    fn listening(&mut self) -> Result<(String, Option<String>)> {
        match self.next()? {
            Word::Listening { address, boot } => Ok((address, boot)),
            other => bail!("a worker spoke out of turn: {other:?}"),
        }
    }

    fn outcome(&mut self) -> Result<Outcome> {
        match self.next()? {
            Word::Outcome(outcome) => Ok(outcome),
            other => bail!("a worker spoke out of turn: {other:?}"),
        }
    }

    /// Both ends' outcomes, source first.
    fn outcomes(&mut self) -> Result<(Outcome, Outcome)> {
        let (one, other) = (self.outcome()?, self.outcome()?);
        match (one.end, other.end) {
            (End::Source, End::Target) => Ok((one, other)),
            (End::Target, End::Source) => Ok((other, one)),
            (end, _) => bail!("the {end} reported twice"),
        }
    }

    fn next(&mut self) -> Result<Word> {
        loop {
            let remaining = self.until.saturating_duration_since(Instant::now());
            let event = match self.receiver.recv_timeout(remaining) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => bail!("the pair has not finished in time"),
                Err(RecvTimeoutError::Disconnected) => bail!("both workers are gone"),
            };
            let end = event.end;
            match event.word {
                Some(Word::Failed { end, reason }) => bail!("the {end} failed: {reason}"),
                Some(word) => {
                    if matches!(word, Word::Outcome(_)) {
                        self.reported.push(end);
                    }
                    return Ok(word);
                }
                // A worker that has reported its outcome may go; the other one's word is still to come.
                None if self.reported.contains(&end) => {}
                None => bail!("the {end} died in the middle of the test"),
            }
        }
    }
}

/// Starts a worker whose words arrive at `sender`.
fn start(end: End, job: &Job, role: Role, setting: Setting, sender: &Sender<Event>) -> Result<Worker> {
    let order = Order { job: job.clone(), role };
    let (worker, output) = Worker::start(&order, setting)?;
    let sender = sender.clone();
    std::thread::spawn(move || listen(end, BufReader::new(output), &sender));
    Ok(worker)
}
