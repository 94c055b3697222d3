//! The preloaded library of `bywire run` for a pair of level `sock`, or of level `web` on that link, with a pairing
//! service of the pair's own, and an engine if one relays. The service reports afterwards whether the connections were
//! carried.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bywire_pairing::launch::{self, Launch};
use bywire_pairing::protocol::{ENGINE_VARIABLE, ENGINE_WORDS};
use bywire_pairing::status::{self, QueryError, Status};
use bywire_results::web::Link;

use crate::namespaces::{Killed, end_with_this_thread};
use crate::plan::{Job, Level, Outcomes, Plan};
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::service_process::ServiceProcess;

/// How long to wait for the ends' reports to the service. They come when connections close, shortly before the ends'
/// own reports.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The library and the service for the lifetime of a pair. Dropping it ends the service.
#[derive(Debug)]
pub struct Preload {
    launch: Launch,
    /// It ends before its service does.
    engine: Option<ServiceProcess>,
    _service: Killed,
    _place: ScratchDirectory,
    connections: u64,
    /// The domain of the connections, for a reader.
    domain: &'static str,
}

impl Preload {
    /// The library and service that `job` needs, if it needs them.
    pub fn of(job: &Job) -> Result<Option<Self>> {
        let (sleep, connections, is_unix, is_relayed) = match job {
            Job::Messages(plan @ Plan { level: Level::Sock, .. }) => {
                let request = &plan.request;
                (plan.sleep, plan.lanes() as u64, request.is_unix(), request.is_relayed())
            }
            Job::Web(plan) if plan.link == Link::Sock => (false, plan.connections.into(), false, false),
            _ => return Ok(None),
        };
        let domain = if is_unix { "Unix sockets" } else { "TCP" };
        let place = ScratchDirectory::of(&nonce())?;
        // Spinning is the library's own choice unless it was forbidden.
        let spin = sleep.then_some(false);
        let launch = Launch::new(place.path(), &launch::find_library()?)?.spin(spin);
        // This very program, as it was when it started.
        let mut command = Command::new("/proc/self/exe");
        end_with_this_thread(&mut command);
        let service = Killed(launch.start_service(command)?);
        let engine = is_relayed.then(|| {
            let mut command = Command::new("/proc/self/exe");
            command.arg(launch::ENGINE).arg(launch.service());
            ServiceProcess::start(&mut command, "bywire engine", 1)
        });
        let engine = engine.transpose()?;
        // Everything is relayed, as it is to be measured.
        let launch = if is_relayed { launch.variable(ENGINE_VARIABLE, ENGINE_WORDS[2]) } else { launch };
        Ok(Some(Self { launch, engine, _service: service, _place: place, connections, domain }))
    }

    /// Gives a worker the library.
    pub fn prepare(&self, command: &mut Command) {
        self.launch.prepare(command);
    }

    /// Returns whether both ends get the library. Only the source does where an engine relays.
    pub fn is_for_both(&self) -> bool {
        self.engine.is_none()
    }

    /// Checks that all measured connections were carried.
    pub fn check(&self, outcomes: &Outcomes) -> Result<()> {
        let ends = outcomes.ends().take(if self.is_for_both() { 2 } else { 1 });
        let due_bytes: u64 = ends.map(|end| end.sum(|part| part.sent_bytes)).sum();
        let started = Instant::now();
        loop {
            let has_waited = started.elapsed() > TIMEOUT;
            match status::query(self.launch.service()) {
                Ok(status) if status.carried_ever >= self.connections && status.bytes >= due_bytes => {
                    return Ok(());
                }
                // Ended programs report nothing more.
                Ok(status) if has_waited || status.processes == 0 => {
                    bail!(NotCarried(not_carried(&status, self.domain, self.connections, due_bytes)));
                }
                // The service may be held up.
                Ok(_) | Err(QueryError::Silent) if !has_waited => {}
                other => drop(other.context("cannot find out whether the connections were carried")?),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Not all connections were carried: how many were not, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotCarried(String);

fn not_carried(status: &Status, domain: &str, connections: u64, due_bytes: u64) -> String {
    let reasons = status.not_carried.iter().map(|(reason, count)| format!("; {count}: {}", reason.text()));
    format!(
        "this would have been a measurement of the kernel's {domain}: {} of {connections} connections and {} of {due_bytes} bytes \
         were carried{}",
        status.carried_ever.min(connections),
        status.bytes,
        reasons.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywire_pairing::reason::Reason;

    #[test]
    fn connections_that_were_not_carried_are_reported_with_the_reason() {
        let status = Status { not_carried: vec![(Reason::Unseen, 2)], bytes: 7, ..Status::default() };
        let expected = "0 of 1 connections and 7 of 100 bytes were carried; 2: bytes passed";
        for domain in ["TCP", "Unix sockets"] {
            let said = not_carried(&status, domain, 1, 100);
            assert!(said.contains(expected) && said.contains(&format!("the kernel's {domain}:")), "{said}");
        }
    }
}
