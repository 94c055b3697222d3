//! A pair: two fresh processes and one measurement. Nothing stays behind.

use std::io::BufReader;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::environment::boot_identity;
use crate::placement::{Cores, Placement};
use crate::plan::{Assignment, End, Job, Level, Outcome, Outcomes, Plan, Role, WorkerMessage};
use crate::preload::{NotCarried, Preload};
use crate::process::{Event, Setting, Worker, listen};
use crate::remote_target::RemoteTarget;
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::web::ServerGuard;
use crate::{interrupt, mpi, shared_port};

/// How long the parent waits beyond the workers' own deadline.
const GRACE: Duration = Duration::from_secs(5);

/// How often a pair is repeated if some of its connections were not carried.
const CARRIED_REPEATS: u32 = 2;

/// The factor by which each repetition warms up longer.
const CARRIED_LONGER: u32 = 4;

/// Runs one fresh pair through its job. If its connections were not carried in time, because the service was held up,
/// another pair takes its place.
///
/// # Errors
/// One line from the end that failed first, after both have ended.
pub fn run(job: &Job, placement: &Placement, cores: Cores) -> Result<Outcomes> {
    let mut job = job.clone();
    for _ in 0..CARRIED_REPEATS {
        match run_once(&job, placement, cores) {
            Err(error) if error.is::<NotCarried>() => {}
            done => return done,
        }
        if let Job::Messages(plan) = &mut job {
            plan.warmup_blocks *= CARRIED_LONGER;
            plan.deadline_seconds += 2 * plan.warmup_block_us() * u64::from(plan.warmup_blocks) / 1_000_000;
        }
    }
    run_once(&job, placement, cores)
}

fn run_once(job: &Job, placement: &Placement, cores: Cores) -> Result<Outcomes> {
    interrupt::check()?;
    let job = &fresh(job);
    if let Job::Messages(plan) = job
        && let Some(choice) = plan.mpi
    {
        return mpi::run(plan, choice, placement, cores);
    }
    let _scratch_directory = scratch_directory(job)?;
    let preload = Preload::of(job)?;
    let (sender, receiver) = channel();
    let mut conversation =
        Conversation { receiver, until: Instant::now() + job.deadline() + GRACE, reported: Vec::new() };
    let outcomes = match placement {
        Placement::Threads => run_threads(job, cores, &sender, &mut conversation),
        _ => run_two(job, placement, cores, preload.as_ref(), &sender, &mut conversation),
    };
    interrupt::check()?;
    let outcomes = outcomes?;
    if let Some(preload) = preload {
        preload.check(&outcomes)?;
    }
    Ok(outcomes)
}

/// The same job with a new cookie, so that nothing of an earlier pair is mistaken for part of this one.
fn fresh(job: &Job) -> Job {
    let mut job = job.clone();
    match &mut job {
        Job::Messages(plan) => plan.cookie = nonce(),
        Job::Web(plan) => plan.cookie = nonce(),
        Job::Memory(_) => {}
    }
    job
}

/// The scratch directory for the ports of a `msg` pair that have no node.
fn scratch_directory(job: &Job) -> Result<Option<ScratchDirectory>> {
    match job {
        Job::Messages(plan) if plan.level == Level::Msg && !plan.request.joins_nodes() => {
            ScratchDirectory::of(&plan.cookie).map(Some)
        }
        _ => Ok(None),
    }
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
    placement: &Placement,
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
    let (source_space, target_space) = placement.ends().map(|[source, target]| (source, target)).unzip();
    if let Job::Web(plan) = job {
        let guard = ServerGuard::start(plan, cores.target, Setting { namespace: target_space, preload })?;
        let address = serde_json::to_string(guard.address())?;
        let _source = start(
            End::Source,
            job,
            source_role(address),
            Setting { namespace: source_space, preload },
            sender,
        )?;
        // The client also reads the server's CPU account.
        let (source, target) = conversation.outcomes()?;
        let outcomes = Outcomes { source, target: Some(target), same_machine: true };
        if let Some(preload) = preload {
            // Read while the server still runs, because it reports which connections were carried.
            preload.check(&outcomes)?;
        }
        return Ok(outcomes);
    }
    let _target = match placement {
        Placement::Host(host) => Target::Remote(RemoteTarget::start(host, job, sender.clone())?),
        _ => {
            let role = Role::Target { core: cores.target };
            Target::Local(start(
                End::Target,
                job,
                role,
                Setting { namespace: target_space, preload },
                sender,
            )?)
        }
    };
    let (address, boot) = conversation.listening()?;
    let setting = Setting { namespace: source_space, preload };
    let _source = start(End::Source, job, source_role(address), setting, sender)?;
    let same_machine = boot.is_some() && boot == boot_identity();
    if matches!(job, Job::Memory(_)) {
        // The target of a ceiling reports nothing but its end, which may come before or after the source's report.
        let mut outcome = conversation.outcome()?;
        while outcome.end == End::Target {
            outcome = conversation.outcome()?;
        }
        return Ok(Outcomes { source: outcome, target: None, same_machine });
    }
    let (source, target) = conversation.outcomes()?;
    Ok(Outcomes { source, target: Some(target), same_machine })
}

/// Runs several connections of one port of the message layer at once: one process with the port, and one process at the
/// other end of each connection.
///
/// # Errors
/// As [`run`].
pub fn run_shared_port(plan: &Plan, connections: u32, cores: Cores) -> Result<Vec<Outcomes>> {
    interrupt::check()?;
    let job = fresh(&Job::Messages(plan.clone()));
    let _scratch_directory = scratch_directory(&job)?;
    let Job::Messages(plan) = &job else { bail!("only messages have a shared port") };
    let until = Instant::now() + job.deadline() + GRACE;
    let conversation = || {
        let (sender, receiver) = channel();
        (sender, Conversation { receiver, until, reported: Vec::new() })
    };
    let end = shared_port::end(plan.test);
    let (core, other_core) = match end {
        End::Source => (cores.source, cores.target),
        End::Target => (cores.target, cores.source),
    };
    let (port_sender, mut port_says) = conversation();
    let start_port =
        || start(end, &job, Role::SharedPort { core, connections }, Setting::default(), &port_sender);
    // The ends that connect start after those that listen.
    let mut address = String::new();
    let mut port_worker = match end {
        End::Target => Some(start_port()?),
        End::Source => None,
    };
    if port_worker.is_some() {
        address = port_says.listening()?.0;
    }
    let mut peers = Vec::new();
    for peer in 0..connections {
        let job = Job::Messages(Plan { peer_number: Some(peer), ..plan.clone() });
        let (sender, says) = conversation();
        let (other, role) = match end {
            End::Source => (End::Target, Role::Target { core: other_core }),
            End::Target => (End::Source, Role::Source { core: other_core, address: address.clone() }),
        };
        peers.push((start(other, &job, role, Setting::default(), &sender)?, says));
    }
    if end == End::Source {
        for (_, says) in &mut peers {
            says.listening()?;
        }
        port_worker = Some(start_port()?);
    }
    // The shared port reports all connections in their order. A peer that fails makes it fail.
    let outcomes = peers.iter_mut().enumerate().map(|(peer, (_, says))| {
        let other = says.outcome().with_context(|| format!("connection {peer}"));
        other.and_then(|other| Ok((other, port_says.outcome()?)))
    });
    let outcomes = outcomes.map(|ends| {
        let (other, own) = ends?;
        let (source, target) = if end == End::Source { (own, other) } else { (other, own) };
        Ok(Outcomes { source, target: Some(target), same_machine: true })
    });
    let outcomes: Result<Vec<Outcomes>> = outcomes.collect();
    drop(port_worker);
    interrupt::check()?;
    outcomes
}

/// Keeps the target alive.
enum Target {
    Local(#[expect(dead_code, reason = "its drop ends the process")] Worker),
    Remote(#[expect(dead_code, reason = "its drop ends the connection")] RemoteTarget),
}

/// The parent's end of the workers' messages.
struct Conversation {
    receiver: Receiver<Event>,
    until: Instant,
    /// Ends that have reported their outcome.
    reported: Vec<End>,
}

impl Conversation {
    /// Waits for the address of the target, and its boot identity.
    fn listening(&mut self) -> Result<(String, Option<String>)> {
        match self.next()? {
            WorkerMessage::Listening { address, boot } => Ok((address, boot)),
            other => bail!("an unexpected message of a worker: {other:?}"),
        }
    }

    fn outcome(&mut self) -> Result<Outcome> {
        match self.next()? {
            WorkerMessage::Outcome(outcome) => Ok(outcome),
            other => bail!("an unexpected message of a worker: {other:?}"),
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

    fn next(&mut self) -> Result<WorkerMessage> {
        loop {
            let remaining = self.until.saturating_duration_since(Instant::now());
            let event = match self.receiver.recv_timeout(remaining) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => bail!("the pair has not finished in time"),
                Err(RecvTimeoutError::Disconnected) => bail!("both workers are gone"),
            };
            let end = event.end;
            match event.message {
                Some(WorkerMessage::Failed { end, reason }) => bail!("the {end} failed: {reason}"),
                Some(message) => {
                    if matches!(message, WorkerMessage::Outcome(_)) {
                        self.reported.push(end);
                    }
                    return Ok(message);
                }
                // A worker that has reported its outcome may end while the other's report is still to come.
                None if self.reported.contains(&end) => {}
                None => bail!("the {end} died in the middle of the test"),
            }
        }
    }
}

/// Starts a worker whose messages go to `sender`.
fn start(end: End, job: &Job, role: Role, setting: Setting, sender: &Sender<Event>) -> Result<Worker> {
    let assignment = Assignment { job: job.clone(), role };
    let (worker, output) = Worker::start(&assignment, setting)?;
    let sender = sender.clone();
    std::thread::spawn(move || listen(end, BufReader::new(output), &sender));
    Ok(worker)
}
