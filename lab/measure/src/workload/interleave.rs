//! Half-RTT of short messages while a long transfer runs beside them. Both ends poll both lanes in one thread.

use anyhow::{Result, bail, ensure};

use super::block_loop::{
    ASK_AGAIN, BlockLoop, Blocks, IdleTimeout, Results, Tally, Workload, answer_again, ask, transfer_seconds,
    unexpected, whole,
};
use crate::endpoint::{Endpoint, Kind, Mark, TIMEOUT};
use crate::plan::{Part, Plan};

/// Short messages beside a long transfer.
pub struct Interleave;

impl Workload for Interleave {
    /// The end that sends the long transfer and asks; `sent_bytes` counts the long transfer.
    fn source<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let [long, short] = [0, 1].map(|lane| block_loop.plan.lengths(lane).forward);
        let BlockLoop { clock, stop_ns, tag, .. } = *block_loop;
        let (lanes, round_trips) = (&mut *block_loop.lanes, &mut block_loop.record.round_trips);
        let (mut tally, mut idle_timeout) = (Tally::default(), IdleTimeout::default());
        let mut open: Option<Question> = None;
        loop {
            let now = clock.now_ns();
            // At least one request, even if another thread had the core when the block began.
            if now >= stop_ns && open.is_none() && tally.part.operations > 0 {
                break;
            }
            let mut has_moved = false;
            if lanes[0].try_send(long, Mark::DATA)? {
                tally.part.sent_bytes += long as u64;
                has_moved = true;
            }
            match &mut open {
                None => {
                    let now = clock.now_ns();
                    let mark = Mark::new(Kind::Data, tally.part.operations as u32);
                    if lanes[1].try_send(short, mark)? {
                        open = Some(Question { mark, asked_ns: now, asked_again_ns: now });
                        has_moved = true;
                    }
                }
                Some(question) => match lanes[1].try_receive()? {
                    Some(received) if received.mark == question.mark => {
                        round_trips.saturating_record(clock.now_ns() - question.asked_ns);
                        tally.read(&received);
                        tally.part.operations += 1;
                        open = None;
                        has_moved = true;
                    }
                    Some(received) if E::RELIABLE => bail!(unexpected(received.mark)),
                    // The answer to a repeated question.
                    Some(_) => has_moved = true,
                    None if !E::RELIABLE => {
                        tally.part.lost += u64::from(question.ask_again(&mut lanes[1], short, now)?)
                    }
                    None => {}
                },
            }
            idle_timeout.round(has_moved)?;
        }
        // The transfer's last message may be half sent. It is finished, and then a marked one is sent.
        lanes[0].send(long, Mark::DATA)?;
        lanes[0].send(long, Mark::new(Kind::End, tag))?;
        tally.part.sent_bytes += 2 * long as u64;
        let reading = (tally.part.operations > 0).then(|| round_trips.value_at_quantile(0.5) as f64 / 2.0);
        let sent = clock.now_ns();
        ask(&mut lanes[1], short, Kind::End, Kind::Ended, tag)?;
        // As for a stream: the time includes the delivery where messages cannot be lost.
        let seconds = block_loop.seconds_until(if E::RELIABLE { clock.now_ns() } else { sent });
        Ok(Part { reading, received_bytes: 0, ..tally.part(seconds) })
    }

    /// The end that reads the long transfer and answers; `received_bytes` counts the long transfer.
    fn target<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let [long, short] = [0, 1].map(|lane| block_loop.plan.lengths(lane).forward);
        let back = block_loop.plan.lengths(1).back;
        let BlockLoop { clock, tag, .. } = *block_loop;
        let (lanes, mut tally) = (&mut *block_loop.lanes, Tally::default());
        let mut idle_timeout = IdleTimeout::default();
        let (mut long_ended, mut short_ended) = (false, false);
        while !(long_ended && short_ended) {
            let mut has_moved = false;
            if let Some(received) = lanes[0].try_receive()? {
                whole(&received, long)?;
                let is_end = received.mark.kind() == Kind::End;
                long_ended |= is_end;
                if !E::RELIABLE && !is_end {
                    tally.arrived(clock.now_ns());
                }
                tally.read(&received);
                has_moved = true;
            }
            if let Some(received) = lanes[1].try_receive()? {
                whole(&received, short)?;
                match received.mark.kind() {
                    Kind::Data => {
                        lanes[1].send(back, received.mark)?;
                        tally.part.operations += 1;
                    }
                    Kind::End => short_ended = true,
                    _ => answer_again(&mut lanes[1], back, received.mark, tag)?,
                }
                has_moved = true;
            }
            // If the end of the long transfer may be lost, it is over once nothing of it is left to read.
            long_ended |= !has_moved && short_ended && !E::RELIABLE;
            idle_timeout.round(has_moved)?;
        }
        let part = tally.part(block_loop.seconds_until(clock.now_ns()));
        block_loop.lanes[1].send(back, Mark::new(Kind::Ended, tag))?;
        Ok(part)
    }

    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        source.reading
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let received = blocks.target(|part| part.received_bytes as f64);
        details.set("long_transfer_bytes_per_second", received / blocks.sum(transfer_seconds));
        details.count_lost(plan, blocks);
    }
}

/// A short message that waits for its answer.
struct Question {
    mark: Mark,
    asked_ns: u64,
    asked_again_ns: u64,
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
