//! Two-way rate: both ends send and receive at once, each in one thread.

use anyhow::Result;

use super::course::{
    ASK_AGAIN, Arrivals, Blocks, Course, Patience, Results, Turn, Workload, answer_again, stride,
    way_seconds, whole,
};
use crate::endpoint::{Endpoint, Interest, Kind, Mark};
use crate::plan::{End, Outcome, Part, Plan};
use std::time::{Duration, Instant};

/// Two-way rate.
pub struct Bidir;

impl Workload for Bidir {
    fn source<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        either(course, lanes)
    }

    fn target<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        either(course, lanes)
    }

    fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
        let back_seconds = back_seconds(plan, source, target);
        let there_seconds =
            if plan.level.carrier().is_lossy { way_seconds(source, target) } else { source.seconds };
        Some(source.received_bytes as f64 / back_seconds + target.received_bytes as f64 / there_seconds)
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let forward = blocks.target(|part| part.received_bytes as f64);
        let back = blocks.source(|part| part.received_bytes as f64);
        details.set("forward_bytes_per_second", forward / blocks.sum(way_seconds));
        let seconds = blocks.sum(|source, target| back_seconds(plan, source, target));
        details.set("back_bytes_per_second", back / seconds);
    }
}

/// The time of what came back in a block.
fn back_seconds(plan: &Plan, source: &Part, target: &Part) -> f64 {
    if plan.level.carrier().is_lossy { way_seconds(target, source) } else { source.seconds }
}

/// Either end: the source stops by the clock, the target when it has seen the source's last message. A block's time ends
/// with the peer's last message, and where messages may be lost with this end's own: what it sent arrived at the other end
/// meanwhile, or for as long as that took to read it.
fn either<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
    course.run(lanes, |course, lanes, turn| Duplex::new(course, turn).run(&mut lanes[0]))
}

struct Duplex<'a, 'b> {
    course: &'a Course<'b>,
    turn: Turn,
    length: usize,
    due: usize,
    started_ns: u64,
    finished_ns: u64,
    peer_ended: bool,
    sum: u64,
    arrivals: Arrivals,
    part: Part,
}

impl<'a, 'b> Duplex<'a, 'b> {
    fn new(course: &'a Course<'b>, turn: Turn) -> Self {
        let now = course.clock.now_ns();
        Self {
            course,
            turn,
            length: course.plan.lengths(0).sent_by(course.end()),
            due: course.plan.lengths(0).received_by(course.end()),
            started_ns: now,
            finished_ns: now,
            peer_ended: false,
            sum: 0,
            arrivals: Arrivals::default(),
            part: Part::default(),
        }
    }

    fn run<E: Endpoint>(mut self, end: &mut E) -> Result<Part> {
        let stop = self.course.stop_ns(self.turn);
        let mut patience = Patience::fresh();
        // A message that was begun must be finished with its own mark before the last one is begun.
        let mut begun = false;
        loop {
            let over = match self.course.end() {
                End::Source => self.course.clock.now_ns() >= stop,
                End::Target => self.peer_ended,
            };
            if over && !begun {
                break;
            }
            let sent = self.send_some(end, over)?;
            begun = !sent.1;
            let received = self.receive_some(end)?;
            if sent.0 > 0 || received > 0 {
                patience = Patience::fresh();
            } else {
                patience.idle()?;
                end.wait(Interest::Both, Duration::from_millis(100))?;
            }
        }
        self.close(end)?;
        std::hint::black_box(self.sum);
        self.part.arrival_seconds = self.arrivals.seconds();
        self.part.seconds = (self.finished_ns - self.started_ns) as f64 * 1e-9;
        Ok(self.part)
    }

    /// Sends up to a stride of messages; (how many, whether none is left half-way).
    fn send_some<E: Endpoint>(&mut self, end: &mut E, one: bool) -> Result<(u64, bool)> {
        let stride = if one { 1 } else { stride(self.length) };
        for sent in 0..stride {
            if !end.try_send(self.length, Mark::DATA)? {
                return Ok((sent, false));
            }
            self.count_sent();
        }
        Ok((stride, true))
    }

    fn receive_some<E: Endpoint>(&mut self, end: &mut E) -> Result<u64> {
        let stride = stride(self.length);
        for received in 0..stride {
            if !self.receive_one(end)? {
                return Ok(received);
            }
        }
        Ok(stride)
    }

    fn receive_one<E: Endpoint>(&mut self, end: &mut E) -> Result<bool> {
        let Some(received) = end.try_receive()? else {
            return Ok(false);
        };
        whole(&received, self.due)?;
        match received.mark.kind() {
            Kind::Data if !E::RELIABLE => self.arrivals.note(self.course.clock.now_ns()),
            Kind::Data => {}
            Kind::End if received.mark.tag() == self.turn.tag && !self.peer_ended => {
                self.peer_ended = true;
                if E::RELIABLE {
                    self.finished_ns = self.course.clock.now_ns();
                }
            }
            Kind::Ended if !E::RELIABLE => {
                self.peer_ended = true;
                return Ok(true);
            }
            _ => {
                answer_again(end, self.length, received.mark, self.turn)?;
                return Ok(true);
            }
        }
        self.part.operations += 1;
        self.part.received_bytes += received.length as u64;
        self.sum = self.sum.wrapping_add(received.sum);
        Ok(true)
    }

    /// Sends the last message and reads the peer's; the source of a lossy level repeats its own until then.
    fn close<E: Endpoint>(&mut self, end: &mut E) -> Result<()> {
        let last = Mark::new(Kind::End, self.turn.tag);
        let mut patience = Patience::fresh();
        while !end.try_send(self.length, last)? {
            self.progress(end, &mut patience)?;
        }
        self.count_sent();
        if !E::RELIABLE {
            self.finished_ns = self.course.clock.now_ns();
        }
        let mut asked = Instant::now();
        let mut patience = Patience::fresh();
        while !self.peer_ended {
            self.progress(end, &mut patience)?;
            if !E::RELIABLE && asked.elapsed() >= ASK_AGAIN {
                end.send(self.length, last)?;
                asked = Instant::now();
            }
        }
        Ok(())
    }

    fn progress<E: Endpoint>(&mut self, end: &mut E, patience: &mut Patience) -> Result<()> {
        if self.receive_one(end)? {
            *patience = Patience::fresh();
            return Ok(());
        }
        patience.idle()?;
        end.wait(Interest::Receive, ASK_AGAIN)
    }

    fn count_sent(&mut self) {
        self.part.sent_bytes += self.length as u64;
    }
}
