//! Host CPU for each message, for sending and receiving separately.
//!
//! The target asks for a burst and leaves its endpoint alone while the burst arrives. The source times the sending
//! while there is room for all of it. The target times the receiving of what has arrived. Neither time includes
//! waiting, and nothing is received outside of it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::block_loop::{BlockLoop, Blocks, Results, Tally, Workload, answer_again, ask, whole};
use crate::endpoint::{Endpoint, Interest, Kind, Mark, TIMEOUT, receive_in_time};
use crate::plan::{Part, Plan};

const BURST_MAX: u64 = 64;
/// The most bytes of a burst. Every level's default buffers have room for it.
pub const BURST_BYTES_MAX: u64 = 64 << 10;
/// How long a target waits for a burst to arrive. It is many times the time of sending it.
const ARRIVAL: Duration = Duration::from_micros(200);

fn burst(length: u64) -> u64 {
    (BURST_BYTES_MAX / length).clamp(1, BURST_MAX)
}

/// Host CPU for each message.
pub struct Overhead;

impl Workload for Overhead {
    /// The sending end. A block's `reading` is the time of one send.
    fn source<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let length = block_loop.plan.lengths(0).forward;
        let burst = burst(block_loop.plan.size_bytes);
        let BlockLoop { clock, stop_ns, tag, .. } = *block_loop;
        let (mut spent_ns, mut operations, mut count) = (0, 0, 0u32);
        // At least one burst, even if another thread had the core when the block began.
        while count == 0 || clock.now_ns() < stop_ns {
            let (control, control_length) = block_loop.control();
            ask(control, control_length, Kind::Data, Kind::Data, count)?;
            let before = clock.now_ns();
            for _ in 0..burst {
                ensure!(
                    block_loop.lanes[0].try_send(length, Mark::DATA)?,
                    "no room for a burst of {burst} messages of {length} bytes: choose a smaller --size"
                );
            }
            spent_ns += clock.now_ns() - before;
            operations += burst;
            count += 1;
        }
        let seconds = block_loop.seconds_until(clock.now_ns());
        let (control, control_length) = block_loop.control();
        ask(control, control_length, Kind::End, Kind::Ended, tag)?;
        let (sent_bytes, reading) = (operations * length as u64, Some(spent_ns as f64 / operations as f64));
        Ok(Part { seconds, operations, sent_bytes, reading, ..Part::default() })
    }

    /// The receiving end. A block's `reading` is the time of one receive.
    fn target<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let BlockLoop { clock, tag, .. } = *block_loop;
        let (mut spent_ns, mut tally, mut asked) = (0, Tally::default(), None);
        loop {
            let (control, length) = block_loop.control();
            let mark = match asked.take() {
                Some(mark) => mark,
                None => receive_in_time(control)?.mark,
            };
            match mark.kind() {
                Kind::Data => {
                    control.send(length, mark)?;
                    let arrived_ns = clock.now_ns() + ARRIVAL.as_nanos() as u64;
                    while clock.now_ns() < arrived_ns {
                        std::hint::spin_loop();
                    }
                    spent_ns += receive_burst(block_loop, &mut tally, &mut asked)?;
                }
                Kind::End => {
                    control.send(length, Mark::new(Kind::Ended, tag))?;
                    break;
                }
                _ => answer_again(control, length, mark, tag)?,
            }
        }
        let part = tally.part(block_loop.seconds_until(clock.now_ns()));
        let reading = (part.operations > 0).then(|| spent_ns as f64 / part.operations as f64);
        Ok(Part { reading, ..part })
    }

    fn value(_plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
        Some(source.reading? + target.reading?)
    }

    fn details(_plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let spent = |part: &Part| part.reading.unwrap_or(0.0) * part.operations as f64;
        let operations = |part: &Part| part.operations as f64;
        details.set("send_ns", blocks.source(spent) / blocks.source(operations));
        details.set("receive_ns", blocks.target(spent) / blocks.target(operations));
    }
}

/// The time in ns for receiving a burst, without waiting for messages. On a level that may lose messages, missing ones
/// count as lost once the source has `asked` the next question. Until then the source may have been held up.
fn receive_burst<E: Endpoint>(
    block_loop: &mut BlockLoop<E>,
    tally: &mut Tally,
    asked: &mut Option<Mark>,
) -> Result<u64> {
    let BlockLoop { plan, clock, .. } = *block_loop;
    let (length, mut remaining) = (plan.lengths(0).forward, burst(plan.size_bytes));
    let (mut spent_ns, waiting) = (0, Instant::now());
    while remaining > 0 {
        let before = clock.now_ns();
        let mut received_count = 0;
        while remaining > 0
            && let Some(received) = block_loop.lanes[0].try_receive()?
        {
            whole(&received, length)?;
            remaining -= 1;
            received_count += 1;
            tally.read(&received);
        }
        tally.part.operations += received_count;
        if received_count > 0 {
            spent_ns += clock.now_ns() - before;
        } else if asked.is_some() {
            break;
        } else if !E::RELIABLE {
            *asked = block_loop.control().0.try_receive()?.map(|received| received.mark);
        }
        if remaining > 0 && asked.is_none() {
            ensure!(waiting.elapsed() <= TIMEOUT, "a burst has not arrived for {} s", TIMEOUT.as_secs());
            block_loop.lanes[0].wait(Interest::Receive, Duration::from_millis(1))?;
        }
    }
    Ok(spent_ns)
}
