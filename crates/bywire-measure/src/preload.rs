//! What a pair of level `sock`, or of level `web` on its link, is started with: the library of `bywire run`, and a pairing service of the pair's own,
//! which knows afterwards whether the library has carried what was measured.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bywire_pairing::launch::{self, Launch};
use bywire_pairing::status::{self, AskError, Status};
use bywire_results::web::Link;

use crate::meeting::{MeetingPlace, nonce};
use crate::namespaces::end_with_this_thread;
use crate::plan::{Job, Level, Outcomes, Plan};

/// Ends tell the service what they carried when they close, a moment before they report.
const PATIENCE: Duration = Duration::from_secs(20);

/// The means, for as long as the pair lives. Dropping it ends the service.
#[derive(Debug)]
pub struct Preload {
    launch: Launch,
    service: Child,
    _place: MeetingPlace,
    connections: u64,
}

impl Preload {
    /// What `job` has to be started with; nothing where that is nothing.
    ///
    /// # Errors
    /// No library, or no service.
    pub fn of(job: &Job) -> Result<Option<Self>> {
        let (sleep, connections) = match job {
            Job::Messages(plan @ Plan { level: Level::Sock, .. }) => (plan.sleep, plan.lanes() as u64),
            Job::Web(plan) if plan.link == Link::Sock => (false, plan.connections.into()),
            _ => return Ok(None),
        };
        let place = MeetingPlace::of(&nonce())?;
        // Spinning is the library's own choice unless it was forbidden.
        let spin = sleep.then_some(false);
        let launch = Launch::new(place.path(), &launch::find_library()?)?.spin(spin);
        // This very program, as it was when it started.
        let mut command = Command::new("/proc/self/exe");
        end_with_this_thread(&mut command);
        let service = launch.start_service(command)?;
        Ok(Some(Self { launch, service, _place: place, connections }))
    }

    /// Gives a worker the library.
    pub fn prepare(&self, command: &mut Command) {
        self.launch.prepare(command);
    }

    /// Was all that counts carried?
    ///
    /// # Errors
    /// [`NotCarried`], or the service does not answer.
    pub fn check(&self, outcomes: &Outcomes) -> Result<()> {
        let ends = [Some(&outcomes.source), outcomes.target.as_ref()];
        let parts = ends.into_iter().flatten().flat_map(|end| &end.blocks);
        let due_bytes: u64 = parts.map(|part| part.sent_bytes).sum();
        let started = Instant::now();
        loop {
            let has_waited = started.elapsed() > PATIENCE;
            match status::ask(self.launch.service()) {
                Ok(status) if status.carried_ever >= self.connections && status.bytes >= due_bytes => {
                    return Ok(());
                }
                // Of those who are gone nothing more is to be heard.
                Ok(status) if has_waited || status.processes == 0 => {
                    bail!(NotCarried(not_carried(&status, self.connections, due_bytes)));
                }
                // It may be held up.
                Err(AskError::Silent) if !has_waited => {}
                Err(error) => return Err(error).context("was it carried?"),
                Ok(_) => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// It was not: how much of it, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotCarried(String);

impl Drop for Preload {
    fn drop(&mut self) {
        let _gone_already = self.service.kill();
        let _gone = self.service.wait();
    }
}

fn not_carried(status: &Status, connections: u64, due_bytes: u64) -> String {
    let reasons = status.not_carried.iter().map(|(reason, count)| format!("; {count}: {}", reason.text()));
    format!(
        "this would have been a measurement of the kernel's TCP: {} of {connections} connections and {} of {due_bytes} bytes \
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
    fn what_was_not_carried_is_told_with_the_reason() {
        let status = Status { not_carried: vec![(Reason::Unseen, 2)], bytes: 7, ..Status::default() };
        let said = not_carried(&status, 1, 100);
        assert!(
            said.contains("0 of 1 connections and 7 of 100 bytes were carried; 2: bytes passed"),
            "{said}"
        );
    }
}
