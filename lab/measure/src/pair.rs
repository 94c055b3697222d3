//! A pair: two fresh processes and one measurement. Nothing stays behind.

use anyhow::{Context, Result, bail};

use crate::conversation::Conversation;
use crate::environment::boot_identity;
use crate::placement::{Cores, Placement};
use crate::plan::{End, Job, Level, Outcomes, Plan, Role};
use crate::preload::{NotCarried, Preload};
use crate::process::Setting;
use crate::remote_target::RemoteTarget;
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::web::ServerGuard;
use crate::{interrupt, mpi, shared_port};

/// How often a pair is repeated if some of its connections were not carried.
const CARRIED_REPEATS: u32 = 2;

/// The factor by which each repetition warms up longer.
const CARRIED_LONGER: u32 = 4;

/// Runs one fresh pair through its job. If its connections were not carried in time, because the service was held up,
/// another pair takes its place. An error is that of the end that failed first, after both have ended.
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
    let mut conversation = Conversation::of(job);
    let outcomes = match placement {
        Placement::Threads => run_threads(job, cores, &mut conversation),
        _ => run_two(job, placement, cores, preload.as_ref(), &mut conversation),
    };
    interrupt::check()?;
    let outcomes = outcomes?;
    preload.map_or(Ok(()), |preload| preload.check(&outcomes))?;
    Ok(outcomes)
}

/// A copy of the job with a new cookie, so that nothing of an earlier pair is mistaken for part of this one.
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

fn run_threads(job: &Job, cores: Cores, conversation: &mut Conversation) -> Result<Outcomes> {
    let role = Role::Both { source_core: cores.source, target_core: cores.target };
    let _worker = conversation.start(End::Source, job, role, Setting::default())?;
    conversation.listening()?;
    conversation.outcomes(true)
}

fn run_two(
    job: &Job,
    placement: &Placement,
    cores: Cores,
    preload: Option<&Preload>,
    conversation: &mut Conversation,
) -> Result<Outcomes> {
    let (source_space, target_space) = placement.ends().map(|[source, target]| (source, target)).unzip();
    let start_source = |address: String, conversation: &Conversation| {
        let role = Role::Source { core: cores.source, address };
        conversation.start(End::Source, job, role, Setting { namespace: source_space, preload })
    };
    let target_setting =
        Setting { namespace: target_space, preload: preload.filter(|preload| preload.is_for_both()) };
    if !job.needs_target() {
        let _source = start_source(String::new(), conversation)?;
        return Ok(Outcomes { source: conversation.outcome()?, target: None, same_machine: true });
    }
    if let Job::Web(plan) = job {
        let guard = ServerGuard::start(plan, cores.target, target_setting)?;
        let _source = start_source(serde_json::to_string(guard.address())?, conversation)?;
        // The client also reads the server's CPU account.
        let outcomes = conversation.outcomes(true)?;
        // The server still runs, because it reports which connections were carried.
        preload.map_or(Ok(()), |preload| preload.check(&outcomes))?;
        return Ok(outcomes);
    }
    // They keep the target alive.
    let (_remote, _local) = match placement {
        Placement::Host(host) => (Some(RemoteTarget::start(host, job, conversation.sender.clone())?), None),
        _ => {
            let role = Role::Target { core: cores.target };
            (None, Some(conversation.start(End::Target, job, role, target_setting)?))
        }
    };
    let (address, boot) = conversation.listening()?;
    let _source = start_source(address, conversation)?;
    let same_machine = boot.is_some() && boot == boot_identity();
    if matches!(job, Job::Memory(_)) {
        // The target of a ceiling reports nothing but its end, which may come before or after the source's report.
        let mut outcome = conversation.outcome()?;
        while outcome.end == End::Target {
            outcome = conversation.outcome()?;
        }
        return Ok(Outcomes { source: outcome, target: None, same_machine });
    }
    conversation.outcomes(same_machine)
}

/// Runs several connections of one port of the message layer at once: one process with the port, and one process at the
/// other end of each connection.
pub fn run_shared_port(plan: &Plan, connections: u32, cores: Cores) -> Result<Vec<Outcomes>> {
    interrupt::check()?;
    let job = fresh(&Job::Messages(plan.clone()));
    let _scratch_directory = scratch_directory(&job)?;
    let Job::Messages(plan) = &job else { bail!("only messages have a shared port") };
    let end = shared_port::end(plan.test);
    let role = Role::SharedPort { core: *cores.of(end), connections };
    let mut port = Conversation::of(&job);
    let start_port = |port: &Conversation| port.start(end, &job, role.clone(), Setting::default());
    // The ends that connect start after those that listen.
    let mut address = String::new();
    let mut port_worker = None;
    if end == End::Target {
        port_worker = Some(start_port(&port)?);
        address = port.listening()?.0;
    }
    let mut peers = Vec::new();
    for peer in 0..connections {
        let job = Job::Messages(Plan { peer_number: Some(peer), ..plan.clone() });
        let (other, role) = match end {
            End::Source => (End::Target, Role::Target { core: cores.target }),
            End::Target => (End::Source, Role::Source { core: cores.source, address: address.clone() }),
        };
        let conversation = Conversation::of(&job);
        peers.push((conversation.start(other, &job, role, Setting::default())?, conversation));
    }
    if end == End::Source {
        peers.iter_mut().try_for_each(|(_, peer)| peer.listening().map(drop))?;
        port_worker = Some(start_port(&port)?);
    }
    // The shared port reports all connections in their order. A peer that fails makes it fail.
    let outcomes = peers.iter_mut().enumerate().map(|(number, (_, peer))| {
        let other = peer.outcome().with_context(|| format!("connection {number}"))?;
        let own = port.outcome()?;
        Ok(if end == End::Source { Outcomes::of(own, other) } else { Outcomes::of(other, own) })
    });
    let outcomes: Result<Vec<Outcomes>> = outcomes.collect();
    drop(port_worker);
    interrupt::check()?;
    outcomes
}
