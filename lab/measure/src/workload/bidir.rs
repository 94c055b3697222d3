//! Two-way rate: both ends send and receive at once, each in one thread.

use anyhow::Result;

use super::block_loop::{
    ASK_AGAIN, Arrivals, Block, BlockLoop, Blocks, IdleTimeout, Results, Workload, answer_again, stride,
    transfer_seconds, whole,
};
use crate::endpoint::{Endpoint, Interest, Kind, Mark};
use crate::plan::{End, Outcome, Part, Plan};
use std::time::{Duration, Instant};

/// Two-way rate.
pub struct Bidir;

impl Workload for Bidir {
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        either(block_loop, lanes)
    }

    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        either(block_loop, lanes)
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

/// Plays either end. The source stops by the clock, the target after the source's last message. A block's time ends
/// with the peer's last message. On a level that may lose messages, it ends with this end's own last message, and the
/// other end's receive time counts beside it.
fn either<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
    block_loop.run(lanes, |block_loop, lanes, block| Duplex::new(block_loop, block).run(&mut lanes[0]))
}

struct Duplex<'a, 'b> {
    block_loop: &'a BlockLoop<'b>,
    block: Block,
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
    fn new(block_loop: &'a BlockLoop<'b>, block: Block) -> Self {
        let now = block_loop.clock.now_ns();
        Self {
            block_loop,
            block,
            length: block_loop.plan.lengths(0).sent_by(block_loop.end()),
            due: block_loop.plan.lengths(0).received_by(block_loop.end()),
            started_ns: now,
            finished_ns: now,
            peer_ended: false,
            sum: 0,
            arrivals: Arrivals::default(),
            part: Part::default(),
        }
    }

    fn run<E: Endpoint>(mut self, end: &mut E) -> Result<Part> {
        let stop = self.block_loop.stop_ns(self.block);
        let mut idle_timeout = IdleTimeout::start();
        // A message that was begun must be finished with its own mark before the last one is begun.
        let mut begun = false;
        loop {
            let over = match self.block_loop.end() {
                End::Source => self.block_loop.clock.now_ns() >= stop,
                End::Target => self.peer_ended,
            };
            if over && !begun {
                break;
            }
            let sent = self.send_some(end, over)?;
            begun = !sent.1;
            let received = self.receive_some(end)?;
            if sent.0 > 0 || received > 0 {
                idle_timeout = IdleTimeout::start();
            } else {
                idle_timeout.idle()?;
                end.wait(Interest::Both, Duration::from_millis(100))?;
            }
        }
        self.close(end)?;
        std::hint::black_box(self.sum);
        self.part.arrival_seconds = self.arrivals.seconds();
        self.part.seconds = (self.finished_ns - self.started_ns) as f64 * 1e-9;
        Ok(self.part)
    }

    /// Sends up to a stride of messages. Returns their number, and whether no message is half sent.
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
            Kind::Data if !E::RELIABLE => self.arrivals.note(self.block_loop.clock.now_ns()),
            Kind::Data => {}
            Kind::End if received.mark.tag() == self.block.tag && !self.peer_ended => {
                self.peer_ended = true;
                if E::RELIABLE {
                    self.finished_ns = self.block_loop.clock.now_ns();
                }
            }
            Kind::Ended if !E::RELIABLE => {
                self.peer_ended = true;
                return Ok(true);
            }
            _ => {
                answer_again(end, self.length, received.mark, self.block)?;
                return Ok(true);
            }
        }
        self.part.operations += 1;
        self.part.received_bytes += received.length as u64;
        self.sum = self.sum.wrapping_add(received.sum);
        Ok(true)
    }

    /// Sends the last message and reads the peer's. The source of a lossy level repeats its own until then.
    fn close<E: Endpoint>(&mut self, end: &mut E) -> Result<()> {
        let last = Mark::new(Kind::End, self.block.tag);
        let mut idle_timeout = IdleTimeout::start();
        while !end.try_send(self.length, last)? {
            self.progress(end, &mut idle_timeout)?;
        }
        self.count_sent();
        if !E::RELIABLE {
            self.finished_ns = self.block_loop.clock.now_ns();
        }
        let mut asked = Instant::now();
        let mut idle_timeout = IdleTimeout::start();
        while !self.peer_ended {
            self.progress(end, &mut idle_timeout)?;
            if !E::RELIABLE && asked.elapsed() >= ASK_AGAIN {
                end.send(self.length, last)?;
                asked = Instant::now();
            }
        }
        Ok(())
    }

    fn progress<E: Endpoint>(&mut self, end: &mut E, idle_timeout: &mut IdleTimeout) -> Result<()> {
        if self.receive_one(end)? {
            *idle_timeout = IdleTimeout::start();
            return Ok(());
        }
        idle_timeout.idle()?;
        end.wait(Interest::Receive, ASK_AGAIN)
    }

    fn count_sent(&mut self) {
        self.part.sent_bytes += self.length as u64;
    }
}
