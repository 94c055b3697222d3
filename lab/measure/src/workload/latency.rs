//! Ping-pong: every round trip is timed on its own.

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

use super::block_loop::{
    Block, BlockLoop, Blocks, Results, Workload, answer_again, ask, count_lost, unexpected, whole,
};
use crate::block_progress::BlockProgress;
use crate::endpoint::{Endpoint, Kind, Mark, Received, TIMEOUT, receive_in_time};
use crate::plan::{Outcome, Part, Plan};

/// Ping-pong: every round trip is timed on its own.
pub struct Latency;

impl Workload for Latency {
    /// The requesting end. A block's `reading` is the median half-RTT.
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run_timed(lanes, |block_loop, lanes, block, round_trips| {
            ping(block_loop, &mut lanes[0], block, round_trips)
        })
    }

    /// The responding end.
    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run(lanes, |block_loop, lanes, block| pong(block_loop, &mut lanes[0], block))
    }

    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        source.reading
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        count_lost(plan, blocks, details);
    }
}

fn ping<E: Endpoint>(
    block_loop: &BlockLoop,
    end: &mut E,
    block: Block,
    round_trips: &mut Histogram<u64>,
) -> Result<Part> {
    let length = block_loop.plan.lengths(0).forward;
    let back = block_loop.plan.lengths(0).back;
    let clock = block_loop.clock;
    let started = clock.now_ns();
    let stop = block_loop.stop_ns(block);
    let (mut operations, mut lost, mut sum) = (0, 0, 0u64);
    let mut progress = BlockProgress::new(block_loop.plan);
    let finished = loop {
        let mark = Mark::new(Kind::Data, operations as u32);
        let sent = clock.now_ns();
        end.send(length, mark)?;
        let received = echo(end, length, mark, &mut lost)?;
        let now = clock.now_ns();
        whole(&received, back)?;
        round_trips.saturating_record(now - sent);
        sum = sum.wrapping_add(received.sum);
        operations += 1;
        progress.note(now - started, operations);
        if now >= stop {
            break now;
        }
    };
    std::hint::black_box(sum);
    ask(end, length, Kind::End, Kind::Ended, block.tag)?;
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        sent_bytes: operations * length as u64,
        received_bytes: operations * back as u64,
        reading: Some(round_trips.value_at_quantile(0.5) as f64 / 2.0),
        lost,
        notes: progress.into_notes(),
        ..Part::default()
    })
}

/// Waits for the echo of `mark`. On a level that may lose messages, a missing echo is requested again.
fn echo<E: Endpoint>(end: &mut E, length: usize, mark: Mark, lost: &mut u64) -> Result<Received> {
    if E::RELIABLE {
        let received = receive_in_time(end)?;
        if received.mark != mark {
            bail!(unexpected(received.mark));
        }
        return Ok(received);
    }
    let started = std::time::Instant::now();
    while started.elapsed() < TIMEOUT {
        match end.receive()? {
            Some(received) if received.mark == mark => return Ok(received),
            Some(_) => {}
            None => {
                *lost += 1;
                end.send(length, mark)?;
            }
        }
    }
    bail!("the peer has not answered for {} s", TIMEOUT.as_secs())
}

fn pong<E: Endpoint>(block_loop: &BlockLoop, end: &mut E, block: Block) -> Result<Part> {
    let length = block_loop.plan.lengths(0).back;
    let due = block_loop.plan.lengths(0).forward;
    let started = block_loop.clock.now_ns();
    let mut part = Part::default();
    let mut sum = 0u64;
    loop {
        let received = receive_in_time(end)?;
        whole(&received, due)?;
        match received.mark.kind() {
            Kind::Data => {
                end.send(length, received.mark)?;
                part.operations += 1;
                part.received_bytes += received.length as u64;
                sum = sum.wrapping_add(received.sum);
            }
            Kind::End => break,
            _ => answer_again(end, length, received.mark, block)?,
        }
    }
    std::hint::black_box(sum);
    part.seconds = (block_loop.clock.now_ns() - started) as f64 * 1e-9;
    part.sent_bytes = part.operations * length as u64;
    end.send(length, Mark::new(Kind::Ended, block.tag))?;
    Ok(part)
}
