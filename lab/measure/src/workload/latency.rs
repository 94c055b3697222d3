//! Ping-pong: every round trip is timed on its own. The test `rr` counts the same in transactions per second.

use anyhow::{Result, bail, ensure};

use super::block_loop::{BlockLoop, Blocks, Results, Tally, Workload, answer_again, ask, unexpected, whole};
use crate::block_progress::BlockProgress;
use crate::endpoint::{Endpoint, Kind, Mark, Received, TIMEOUT, receive_in_time};
use crate::plan::{Part, Plan};

/// Half-RTT of each round trip.
pub type Latency = PingPong<false>;
/// Requests and responses of given lengths, one at a time.
pub type Rr = PingPong<true>;

/// Ping-pong, which may be counted in transactions.
pub struct PingPong<const COUNTS_TRANSACTIONS: bool>;

impl<const COUNTS_TRANSACTIONS: bool> Workload for PingPong<COUNTS_TRANSACTIONS> {
    /// The requesting end. A block's `reading` is the median half-RTT.
    fn source<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        ping(block_loop)
    }

    fn target<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        pong(block_loop)
    }

    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        let per_second = source.operations as f64 / source.seconds;
        if COUNTS_TRANSACTIONS { Some(per_second) } else { source.reading }
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        if COUNTS_TRANSACTIONS {
            details.quantiles("round_trip", blocks, &[("p50", 0.5), ("p99", 0.99), ("p999", 0.999)]);
        }
        details.count_lost(plan, blocks);
    }
}

fn ping<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
    let lengths = block_loop.plan.lengths(0);
    let BlockLoop { clock, started_ns, stop_ns, tag, .. } = *block_loop;
    let (end, round_trips) = (&mut block_loop.lanes[0], &mut block_loop.record.round_trips);
    let (mut tally, mut progress) = (Tally::default(), BlockProgress::new(block_loop.plan));
    let (mut operations, mut lost) = (0, 0);
    let finished = loop {
        let mark = Mark::new(Kind::Data, operations as u32);
        let sent = clock.now_ns();
        end.send(lengths.forward, mark)?;
        let received = echo(end, lengths.forward, mark, &mut lost)?;
        let now = clock.now_ns();
        whole(&received, lengths.back)?;
        round_trips.saturating_record(now - sent);
        tally.read(&received);
        operations += 1;
        progress.note(now - started_ns, operations);
        if now >= stop_ns {
            break now;
        }
    };
    ask(end, lengths.forward, Kind::End, Kind::Ended, tag)?;
    Ok(Part {
        operations,
        sent_bytes: operations * lengths.forward as u64,
        reading: Some(round_trips.value_at_quantile(0.5) as f64 / 2.0),
        lost,
        notes: progress.into_notes(),
        ..tally.part(block_loop.seconds_until(finished))
    })
}

/// Waits for the echo of `mark`. On a level that may lose messages, a missing echo is requested again.
fn echo<E: Endpoint>(end: &mut E, length: usize, mark: Mark, lost: &mut u64) -> Result<Received> {
    if E::RELIABLE {
        let received = receive_in_time(end)?;
        ensure!(received.mark == mark, unexpected(received.mark));
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

fn pong<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
    let lengths = block_loop.plan.lengths(0);
    let (end, mut tally) = (&mut block_loop.lanes[0], Tally::default());
    loop {
        let received = receive_in_time(end)?;
        whole(&received, lengths.forward)?;
        match received.mark.kind() {
            Kind::Data => {
                end.send(lengths.back, received.mark)?;
                tally.part.operations += 1;
                tally.read(&received);
            }
            Kind::End => break,
            _ => answer_again(end, lengths.back, received.mark, block_loop.tag)?,
        }
    }
    let part = tally.part(block_loop.seconds_until(block_loop.clock.now_ns()));
    block_loop.lanes[0].send(lengths.back, Mark::new(Kind::Ended, block_loop.tag))?;
    Ok(Part { sent_bytes: part.operations * lengths.back as u64, ..part })
}
