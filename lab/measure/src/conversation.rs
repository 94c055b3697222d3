//! The messages that the parent of a pair gets from its workers.

use std::io::BufReader;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::interrupt;
use crate::plan::{Assignment, End, Job, Outcome, Outcomes, Role, WorkerMessage};
use crate::process::{Event, Setting, Worker, listen};

/// How long the parent waits beyond the workers' own deadline.
const GRACE: Duration = Duration::from_secs(5);

/// The parent's end of the workers' messages.
pub struct Conversation {
    /// The sender for the events of further workers.
    pub sender: Sender<Event>,
    receiver: Receiver<Event>,
    until: Instant,
    look_again: Duration,
    /// Ends that have reported their outcome.
    reported: Vec<End>,
}

impl Conversation {
    /// That of a pair, which is over some time after the deadline of its job.
    pub fn of(job: &Job) -> Self {
        Self::until(Instant::now() + job.deadline() + GRACE, Duration::MAX)
    }

    /// A conversation that is over by then, and that looks for an interrupt so often.
    pub fn until(until: Instant, look_again: Duration) -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, until, look_again, reported: Vec::new() }
    }

    /// Starts a worker, whose messages arrive here.
    pub fn start(&self, end: End, job: &Job, role: Role, setting: Setting) -> Result<Worker> {
        let (worker, output) = Worker::start(&Assignment { job: job.clone(), role }, setting)?;
        let sender = self.sender.clone();
        std::thread::spawn(move || listen(end, BufReader::new(output), &sender));
        Ok(worker)
    }

    /// Waits for the address of the target, and its boot identity.
    pub fn listening(&mut self) -> Result<(String, Option<String>)> {
        match self.next()? {
            WorkerMessage::Listening { address, boot } => Ok((address, boot)),
            other => bail!("an unexpected message of a worker: {other:?}"),
        }
    }

    /// Waits for the outcome of an end.
    pub fn outcome(&mut self) -> Result<Outcome> {
        match self.next()? {
            WorkerMessage::Outcome(outcome) => Ok(outcome),
            other => bail!("an unexpected message of a worker: {other:?}"),
        }
    }

    /// Waits for the outcomes of both ends.
    pub fn outcomes(&mut self, same_machine: bool) -> Result<Outcomes> {
        let (source, target) = match (self.outcome()?, self.outcome()?) {
            (one, other) if one.end == other.end => bail!("the {} reported twice", one.end),
            (one, other) if one.end == End::Source => (one, other),
            (one, other) => (other, one),
        };
        Ok(Outcomes { source, target: Some(target), same_machine })
    }

    fn next(&mut self) -> Result<WorkerMessage> {
        loop {
            let remaining = self.until.saturating_duration_since(Instant::now());
            let Ok(event) = self.receiver.recv_timeout(remaining.min(self.look_again)) else {
                interrupt::check()?;
                ensure!(Instant::now() < self.until, "the pair has not finished in time");
                continue;
            };
            if let Some(message) = self.heard(event)? {
                return Ok(message);
            }
        }
    }

    /// Fails if an end has failed or died by now. Before its target listens, nothing else is reported.
    pub fn check(&mut self) -> Result<()> {
        while let Ok(event) = self.receiver.try_recv() {
            self.heard(event)?;
        }
        Ok(())
    }

    /// The message of an event, unless a worker has ended that has reported its outcome.
    fn heard(&mut self, Event { end, message }: Event) -> Result<Option<WorkerMessage>> {
        match &message {
            Some(WorkerMessage::Failed { end, reason }) => bail!("the {end} failed: {reason}"),
            Some(WorkerMessage::Outcome(_)) => self.reported.push(end),
            None if !self.reported.contains(&end) => bail!("the {end} died in the middle of the test"),
            // The other's report may still be to come.
            _ => {}
        }
        Ok(message)
    }
}
