//! Two-way rate: both ends send and receive at once, each in one thread.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::block_loop::{
    ASK_AGAIN, BlockLoop, Blocks, IdleTimeout, Results, Tally, Workload, answer_again, stride,
    transfer_seconds, whole,
};
use crate::endpoint::{Endpoint, Interest, Kind, Mark};
use crate::plan::{End, Part, Plan};

/// Two-way rate. The source stops by the clock, the target after the source's last message. A block's time ends with the
/// peer's last message. On a level that may lose messages, it ends with this end's own last message, and the other end's
/// receive time counts beside it.
pub struct Bidir;

impl Workload for Bidir {
    fn source<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        Duplex::new(block_loop).run()
    }

    fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
        let back_seconds = back_seconds(plan, source, target);
        let there_seconds =
            if plan.level.carrier().is_lossy { transfer_seconds(source, target) } else { source.seconds };
        Some(source.received_bytes as f64 / back_seconds + target.received_bytes as f64 / there_seconds)
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let forward = blocks.target(|part| part.received_bytes as f64);
        let back = blocks.source(|part| part.received_bytes as f64);
        details.set("forward_bytes_per_second", forward / blocks.sum(transfer_seconds));
        let seconds = blocks.sum(|source, target| back_seconds(plan, source, target));
        details.set("back_bytes_per_second", back / seconds);
    }
}

/// The time of the opposite direction in a block.
fn back_seconds(plan: &Plan, source: &Part, target: &Part) -> f64 {
    if plan.level.carrier().is_lossy { transfer_seconds(target, source) } else { source.seconds }
}

struct Duplex<'a, 'b, E> {
    block_loop: &'a mut BlockLoop<'b, E>,
    length: usize,
    due: usize,
    finished_ns: u64,
    peer_ended: bool,
    tally: Tally,
}

impl<'a, 'b, E: Endpoint> Duplex<'a, 'b, E> {
    fn new(block_loop: &'a mut BlockLoop<'b, E>) -> Self {
        let (lengths, end) = (block_loop.plan.lengths(0), block_loop.end);
        let (length, due) = (lengths.sent_by(end), lengths.received_by(end));
        let finished_ns = block_loop.started_ns;
        Self { block_loop, length, due, finished_ns, peer_ended: false, tally: Tally::default() }
    }

    fn run(mut self) -> Result<Part> {
        let mut idle_timeout = IdleTimeout::default();
        // A message that was begun must be finished with its own mark before the last one is begun.
        let mut begun = false;
        loop {
            let over = match self.block_loop.end {
                End::Source => self.now_ns() >= self.block_loop.stop_ns,
                End::Target => self.peer_ended,
            };
            if over && !begun {
                break;
            }
            let (stride, mut has_moved) = (stride(self.length), false);
            let sends = if over { 1 } else { stride };
            for _ in 0..sends {
                begun = !self.try_send(Mark::DATA)?;
                if begun {
                    break;
                }
                has_moved = true;
            }
            for _ in 0..stride {
                if !self.receive_one()? {
                    break;
                }
                has_moved = true;
            }
            idle_timeout.round(has_moved)?;
            if !has_moved {
                self.block_loop.lanes[0].wait(Interest::Both, Duration::from_millis(100))?;
            }
        }
        self.close()?;
        let seconds = self.block_loop.seconds_until(self.finished_ns);
        Ok(self.tally.part(seconds))
    }

    fn now_ns(&self) -> u64 {
        self.block_loop.clock.now_ns()
    }

    fn try_send(&mut self, mark: Mark) -> Result<bool> {
        let is_sent = self.block_loop.lanes[0].try_send(self.length, mark)?;
        self.tally.part.sent_bytes += if is_sent { self.length as u64 } else { 0 };
        Ok(is_sent)
    }

    fn receive_one(&mut self) -> Result<bool> {
        let tag = self.block_loop.tag;
        let Some(received) = self.block_loop.lanes[0].try_receive()? else { return Ok(false) };
        whole(&received, self.due)?;
        match received.mark.kind() {
            Kind::Data if !E::RELIABLE => self.tally.arrived(self.now_ns()),
            Kind::Data => {}
            Kind::End if received.mark.tag() == tag && !self.peer_ended => {
                self.peer_ended = true;
                if E::RELIABLE {
                    self.finished_ns = self.now_ns();
                }
            }
            Kind::Ended if !E::RELIABLE => {
                self.peer_ended = true;
                return Ok(true);
            }
            _ => {
                answer_again(&mut self.block_loop.lanes[0], self.length, received.mark, tag)?;
                return Ok(true);
            }
        }
        self.tally.part.operations += 1;
        self.tally.read(&received);
        Ok(true)
    }

    /// Sends the last message and reads the peer's. The source of a lossy level repeats its own until then.
    fn close(&mut self) -> Result<()> {
        let last = Mark::new(Kind::End, self.block_loop.tag);
        let mut idle_timeout = IdleTimeout::default();
        while !self.try_send(last)? {
            self.progress(&mut idle_timeout)?;
        }
        if !E::RELIABLE {
            self.finished_ns = self.now_ns();
        }
        let mut asked = Instant::now();
        let mut idle_timeout = IdleTimeout::default();
        while !self.peer_ended {
            self.progress(&mut idle_timeout)?;
            if !E::RELIABLE && asked.elapsed() >= ASK_AGAIN {
                self.block_loop.lanes[0].send(self.length, last)?;
                asked = Instant::now();
            }
        }
        Ok(())
    }

    fn progress(&mut self, idle_timeout: &mut IdleTimeout) -> Result<()> {
        let has_moved = self.receive_one()?;
        idle_timeout.round(has_moved)?;
        match has_moved {
            true => Ok(()),
            false => self.block_loop.lanes[0].wait(Interest::Receive, ASK_AGAIN),
        }
    }
}
