//! Half-RTT of short messages while a long transfer runs beside them. Both ends poll both lanes in one thread.

use anyhow::{Result, bail, ensure};

use super::block_loop::{
    ASK_AGAIN, Arrivals, Block, BlockLoop, Blocks, IdleTimeout, Results, Workload, answer_again, ask,
    count_lost, transfer_seconds, unexpected, whole,
};
use crate::endpoint::{Endpoint, Kind, Mark, TIMEOUT};
use crate::plan::{Outcome, Part, Plan};
use hdrhistogram::Histogram;

/// Short messages beside a long transfer.
pub struct Interleave;

impl Workload for Interleave {
    /// The end that sends the long transfer and asks; `sent_bytes` counts the long transfer.
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run_timed(lanes, |block_loop, lanes, block, round_trips| {
            send_both(block_loop, lanes, block, round_trips)
        })
    }

    /// The end that reads the long transfer and answers; `received_bytes` counts the long transfer.
    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run(lanes, receive_both)
    }

    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        source.reading
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let received = blocks.target(|part| part.received_bytes as f64);
        details.set("long_transfer_bytes_per_second", received / blocks.sum(transfer_seconds));
        count_lost(plan, blocks, details);
    }
}

/// A short message that waits for its answer.
struct Question {
    mark: Mark,
    asked_ns: u64,
    asked_again_ns: u64,
}

fn send_both<E: Endpoint>(
    block_loop: &BlockLoop,
    lanes: &mut [E],
    block: Block,
    round_trips: &mut Histogram<u64>,
) -> Result<Part> {
    let long = block_loop.plan.lengths(0).forward;
    let short = block_loop.plan.lengths(1).forward;
    let started = block_loop.clock.now_ns();
    let stop = block_loop.stop_ns(block);
    let mut part = Part::default();
    let mut idle_timeout = IdleTimeout::start();
    let mut open: Option<Question> = None;
    let mut sum = 0u64;
    loop {
        let now = block_loop.clock.now_ns();
        // At least one request, even if another thread had the core when the block began.
        if now >= stop && open.is_none() && part.operations > 0 {
            break;
        }
        let mut moved = false;
        if lanes[0].try_send(long, Mark::DATA)? {
            part.sent_bytes += long as u64;
            moved = true;
        }
        match &mut open {
            None => {
                let now = block_loop.clock.now_ns();
                let mark = Mark::new(Kind::Data, part.operations as u32);
                if lanes[1].try_send(short, mark)? {
                    open = Some(Question { mark, asked_ns: now, asked_again_ns: now });
                    moved = true;
                }
            }
            Some(question) => match lanes[1].try_receive()? {
                Some(received) if received.mark == question.mark => {
                    round_trips.saturating_record(block_loop.clock.now_ns() - question.asked_ns);
                    sum = sum.wrapping_add(received.sum);
                    part.operations += 1;
                    open = None;
                    moved = true;
                }
                Some(received) if E::RELIABLE => bail!(unexpected(received.mark)),
                // The answer to a repeated question.
                Some(_) => moved = true,
                None if !E::RELIABLE => {
                    part.lost += u64::from(question.ask_again(&mut lanes[1], short, now)?)
                }
                None => {}
            },
        }
        if moved {
            idle_timeout = IdleTimeout::start();
        } else {
            idle_timeout.idle()?;
        }
    }
    std::hint::black_box(sum);
    // The transfer's last message may be half sent. It is finished, and then a marked one is sent.
    lanes[0].send(long, Mark::DATA)?;
    lanes[0].send(long, Mark::new(Kind::End, block.tag))?;
    part.sent_bytes += 2 * long as u64;
    part.reading = (part.operations > 0).then(|| round_trips.value_at_quantile(0.5) as f64 / 2.0);
    let sent = block_loop.clock.now_ns();
    ask(&mut lanes[1], short, Kind::End, Kind::Ended, block.tag)?;
    // As for a stream: the time includes the delivery where messages cannot be lost.
    let finished = if E::RELIABLE { block_loop.clock.now_ns() } else { sent };
    part.seconds = (finished - started) as f64 * 1e-9;
    Ok(part)
}

impl Question {
    /// Repeats the request if its answer may have been lost, because the long transfer never waits for it. Returns true
    /// if it did.
    fn ask_again<E: Endpoint>(&mut self, lane: &mut E, length: usize, now_ns: u64) -> Result<bool> {
        let waited_ns = |since_ns: u64| u128::from(now_ns.saturating_sub(since_ns));
        if waited_ns(self.asked_again_ns) < ASK_AGAIN.as_nanos() {
            return Ok(false);
        }
        let is_late = waited_ns(self.asked_ns) >= TIMEOUT.as_nanos();
        ensure!(!is_late, "the peer has not answered for {} s", TIMEOUT.as_secs());
        lane.send(length, self.mark)?;
        self.asked_again_ns = now_ns;
        Ok(true)
    }
}

fn receive_both<E: Endpoint>(block_loop: &BlockLoop, lanes: &mut [E], block: Block) -> Result<Part> {
    let long = block_loop.plan.lengths(0).forward;
    let short = block_loop.plan.lengths(1).forward;
    let back = block_loop.plan.lengths(1).back;
    let started = block_loop.clock.now_ns();
    let (mut part, mut arrivals) = (Part::default(), Arrivals::default());
    let mut idle_timeout = IdleTimeout::start();
    let (mut long_ended, mut short_ended) = (false, false);
    let mut sum = 0u64;
    while !(long_ended && short_ended) {
        let mut moved = false;
        if let Some(received) = lanes[0].try_receive()? {
            whole(&received, long)?;
            let is_end = received.mark.kind() == Kind::End;
            long_ended |= is_end;
            if !E::RELIABLE && !is_end {
                arrivals.note(block_loop.clock.now_ns());
            }
            part.received_bytes += received.length as u64;
            sum = sum.wrapping_add(received.sum);
            moved = true;
        }
        if let Some(received) = lanes[1].try_receive()? {
            whole(&received, short)?;
            match received.mark.kind() {
                Kind::Data => {
                    lanes[1].send(back, received.mark)?;
                    part.operations += 1;
                }
                Kind::End => short_ended = true,
                _ => answer_again(&mut lanes[1], back, received.mark, block)?,
            }
            moved = true;
        }
        if moved {
            idle_timeout = IdleTimeout::start();
        } else {
            // If the end of the long transfer may be lost, it is over once nothing of it is left to read.
            long_ended |= short_ended && !E::RELIABLE;
            idle_timeout.idle()?;
        }
    }
    std::hint::black_box(sum);
    part.seconds = (block_loop.clock.now_ns() - started) as f64 * 1e-9;
    part.arrival_seconds = arrivals.seconds();
    lanes[1].send(back, Mark::new(Kind::Ended, block.tag))?;
    Ok(part)
}
