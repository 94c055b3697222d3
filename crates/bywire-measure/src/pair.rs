//! A pair: two fresh processes, one measurement, nothing left behind.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Pid;

use crate::carriage::{Carriage, NotCarried};
use crate::environment::boot_identity;
use crate::far::{self, Far, Host};
use crate::hub;
use crate::interrupt::{self, Group};
use crate::level::msg;
use crate::meeting::MeetingPlace;
use crate::mpi;
use crate::namespaces::{Namespace, Namespaces};
use crate::plan::{End, Job, Level, Order, Outcome, Plan, Role, Word};
use crate::star::Star;
use crate::web::Keeper;

/// How much longer than their own deadline the workers are waited for.
const GRACE: Duration = Duration::from_secs(5);

/// Where the two ends of a pair run.
#[derive(Clone)]
pub enum Place {
    /// Two processes of this machine.
    Processes,
    /// Two threads of one fresh process.
    Threads,
    /// Two processes in namespaces with a cable between them.
    Namespaces(Arc<Namespaces>),
    /// Two processes in two nodes of several that a switch joins.
    Nodes {
        /// All of them.
        star: Arc<Star>,
        /// Where the source runs.
        source: usize,
        /// Where the target runs.
        target: usize,
    },
    /// The target on another machine.
    Host(Arc<Host>),
}

impl Place {
    /// The address that a target listens on.
    pub fn target_address(&self) -> IpAddr {
        match self {
            Self::Namespaces(namespaces) => namespaces.target.address().into(),
            Self::Nodes { star, target, .. } => star.nodes[*target].address().into(),
            _ => [127, 0, 0, 1].into(),
        }
    }

    /// The namespaces that were made for it.
    pub fn namespaces(&self) -> Vec<&Namespace> {
        match self {
            Self::Namespaces(namespaces) => vec![&namespaces.source, &namespaces.target],
            Self::Nodes { star, .. } => star.nodes.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The processes that carry what the two ends exchange, where it is not the kernel alone.
    pub fn carriers(&self) -> &[u32] {
        match self {
            Self::Namespaces(namespaces) => namespaces.carriers(),
            Self::Nodes { star, .. } => star.carriers(),
            _ => &[],
        }
    }
}

/// The cores that the two ends are pinned to; absent: not pinned, or chosen by the other machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The source's.
    pub source: Option<u32>,
    /// The target's.
    pub target: Option<u32>,
}

impl Cores {
    /// True where two different ones are known.
    pub fn apart(self) -> bool {
        self.source.is_some() && self.target.is_some() && self.source != self.target
    }
}

/// What both ends of a pair measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcomes {
    /// The source's side.
    pub source: Outcome,
    /// The target's side; empty for ceilings.
    pub target: Option<Outcome>,
    /// True when both ends ran under one kernel.
    pub same_machine: bool,
}

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
    let carriage = Carriage::of(job)?;
    let (sender, receiver) = channel();
    let mut conversation =
        Conversation { receiver, until: Instant::now() + job.deadline() + GRACE, reported: Vec::new() };
    let outcomes = match place {
        Place::Threads => run_threads(job, cores, &sender, &mut conversation),
        _ => run_two(job, place, cores, carriage.as_ref(), &sender, &mut conversation),
    };
    interrupt::check()?;
    let outcomes = outcomes?;
    if let Some(carriage) = carriage {
        carriage.check(&outcomes)?;
    }
    Ok(outcomes)
}

/// The same job with a cookie of its own, so that nothing of an earlier pair is taken for part of this one.
fn fresh(job: &Job) -> Job {
    let mut job = job.clone();
    match &mut job {
        Job::Messages(plan) => plan.cookie = far::nonce(),
        Job::Web(plan) => plan.cookie = far::nonce(),
        Job::Memory(_) => {}
    }
    job
}

/// Where the ports of a `msg` pair meet.
fn meeting_place(job: &Job) -> Result<Option<MeetingPlace>> {
    let Job::Messages(Plan { level: Level::Msg, cookie, .. }) = job else {
        return Ok(None);
    };
    let prefix = msg::directory("");
    let prefix = prefix.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    MeetingPlace::make(msg::directory(cookie), prefix).map(Some)
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
    carriage: Option<&Carriage>,
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
        let keeper = Keeper::start(plan, cores.target, Setting { namespace: target_space, carriage })?;
        let address = serde_json::to_string(keeper.address())?;
        let _source = start(
            End::Source,
            job,
            source_role(address),
            Setting { namespace: source_space, carriage },
            sender,
        )?;
        // The client reads the server's accounts too.
        let (source, target) = conversation.outcomes()?;
        let outcomes = Outcomes { source, target: Some(target), same_machine: true };
        if let Some(carriage) = carriage {
            // While the server is there to tell what it carried.
            carriage.check(&outcomes)?;
        }
        return Ok(outcomes);
    }
    let _target = match place {
        Place::Host(host) => Target::Far(Far::start(host, job, sender.clone())?),
        _ => {
            let role = Role::Target { core: cores.target };
            Target::Near(start(
                End::Target,
                job,
                role,
                Setting { namespace: target_space, carriage },
                sender,
            )?)
        }
    };
    let (address, boot) = conversation.listening()?;
    let setting = Setting { namespace: source_space, carriage };
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

/// What a worker says, or that it says no more.
pub(crate) struct Event {
    pub(crate) end: End,
    /// Absent when the worker is gone.
    pub(crate) word: Option<Word>,
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

/// What a worker process is started in and with, other than as this one was.
#[derive(Clone, Copy, Default)]
pub struct Setting<'a> {
    /// Where its network is.
    pub namespace: Option<&'a Namespace>,
    /// What carries its connections.
    pub carriage: Option<&'a Carriage>,
}

impl Setting<'_> {
    /// Sees to it that what `command` starts is in this setting.
    ///
    /// # Errors
    /// There is no such namespace any more.
    pub fn prepare(&self, command: &mut Command) -> Result<()> {
        if let Some(namespace) = self.namespace {
            namespace.enter(command)?;
        }
        if let Some(carriage) = self.carriage {
            carriage.prepare(command);
        }
        Ok(())
    }
}

/// A worker process in a process group of its own. Dropping it ends the group.
pub(crate) struct Worker {
    child: Child,
    group: Option<Group>,
}

impl Worker {
    /// Starts this very program, as it was when it started, as a worker; with what it will say.
    pub(crate) fn start(order: &Order, setting: Setting) -> Result<(Self, ChildStdout)> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("__worker").stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        setting.prepare(&mut command)?;
        let mut child = command.spawn().context("cannot start a worker process")?;
        let group = Pid::from_raw(child.id() as i32).map(Group::of);
        let output = child.stdout.take().context("a worker has no output")?;
        let worker = Self { child, group };
        let line = serde_json::to_string(order)? + "\n";
        let mut input = worker.child.stdin.as_ref().context("a worker has no input")?;
        input
            .write_all(line.as_bytes())
            .map_err(|error| anyhow!("a worker died before it began: {error}"))?;
        Ok((worker, output))
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

impl Drop for Worker {
    fn drop(&mut self) {
        // The group first: once the child has been waited for, its number may belong to somebody else.
        drop(self.group.take());
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Passes on what a worker says until it is gone.
pub(crate) fn listen(end: End, output: impl BufRead, sender: &Sender<Event>) {
    for line in output.lines() {
        let Ok(line) = line else { break };
        let word = serde_json::from_str(&line).unwrap_or_else(|error| Word::Failed {
            end,
            reason: format!("its report makes no sense: {error}"),
        });
        if sender.send(Event { end, word: Some(word) }).is_err() {
            return;
        }
    }
    let _gone = sender.send(Event { end, word: None });
}
