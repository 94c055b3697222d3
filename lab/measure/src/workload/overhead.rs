//! Host CPU for each message, for sending and receiving separately.
//!
//! The target asks for a burst and leaves its endpoint alone while the burst arrives. The source times the sending
//! while there is room for all of it. The target times the receiving of what has arrived. Neither time includes
//! waiting, and nothing is received outside of it.

use anyhow::{Result, bail};

use super::block_loop::{Block, BlockLoop, Blocks, Results, Workload, answer_again, ask, whole};
use crate::endpoint::{Endpoint, Interest, Kind, Mark, TIMEOUT, receive_in_time};
use crate::plan::{Outcome, Part, Plan};
use std::time::{Duration, Instant};

/// The most messages of a burst.
const BURST_MAX: u64 = 64;

/// The most bytes of a burst. Every level's default buffers have room for it.
pub const BURST_BYTES_MAX: u64 = 64 << 10;

/// How long a target waits for a burst to arrive. It is many times the time of sending it.
const ARRIVAL: Duration = Duration::from_micros(200);

/// Messages of `length` bytes in a burst.
fn burst(length: u64) -> u64 {
    (BURST_BYTES_MAX / length).clamp(1, BURST_MAX)
}

/// Host CPU for each message.
pub struct Overhead;

impl Workload for Overhead {
    /// The sending end. A block's `reading` is the time of one send.
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run(lanes, send_bursts)
    }

    /// The receiving end. A block's `reading` is the time of one receive.
    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run(lanes, receive_bursts)
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

fn send_bursts<E: Endpoint>(block_loop: &BlockLoop, lanes: &mut [E], block: Block) -> Result<Part> {
    let length = block_loop.plan.lengths(0).forward;
    let burst = burst(block_loop.plan.size_bytes);
    let started = block_loop.clock.now_ns();
    let stop = block_loop.stop_ns(block);
    let (mut spent_ns, mut operations, mut count) = (0, 0, 0u32);
    // At least one burst, even if another thread had the core when the block began.
    while count == 0 || block_loop.clock.now_ns() < stop {
        let (control, control_length) = block_loop.control(lanes);
        ask(control, control_length, Kind::Data, Kind::Data, count)?;
        let before = block_loop.clock.now_ns();
        for _ in 0..burst {
            if !lanes[0].try_send(length, Mark::DATA)? {
                bail!("no room for a burst of {burst} messages of {length} bytes: choose a smaller --size");
            }
        }
        spent_ns += block_loop.clock.now_ns() - before;
        operations += burst;
        count += 1;
    }
    let finished = block_loop.clock.now_ns();
    let (control, control_length) = block_loop.control(lanes);
    ask(control, control_length, Kind::End, Kind::Ended, block.tag)?;
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        sent_bytes: operations * length as u64,
        reading: Some(spent_ns as f64 / operations as f64),
        ..Part::default()
    })
}

fn receive_bursts<E: Endpoint>(block_loop: &BlockLoop, lanes: &mut [E], block: Block) -> Result<Part> {
    let burst = burst(block_loop.plan.size_bytes);
    let started = block_loop.clock.now_ns();
    let (mut spent_ns, mut part) = (0, Part::default());
    let mut asked = None;
    loop {
        let (control, length) = block_loop.control(lanes);
        let mark = match asked.take() {
            Some(mark) => mark,
            None => receive_in_time(control)?.mark,
        };
        match mark.kind() {
            Kind::Data => {
                control.send(length, mark)?;
                let arrived_ns = block_loop.clock.now_ns() + ARRIVAL.as_nanos() as u64;
                while block_loop.clock.now_ns() < arrived_ns {
                    std::hint::spin_loop();
                }
                spent_ns += receive_burst(block_loop, lanes, burst, &mut part, &mut asked)?;
            }
            Kind::End => {
                control.send(length, Mark::new(Kind::Ended, block.tag))?;
                break;
            }
            _ => answer_again(control, length, mark, block)?,
        }
    }
    part.seconds = (block_loop.clock.now_ns() - started) as f64 * 1e-9;
    part.reading = (part.operations > 0).then(|| spent_ns as f64 / part.operations as f64);
    Ok(part)
}

/// The time in ns for receiving a burst, without waiting for messages. On a level that may lose messages, missing ones
/// count as lost once the source has `asked` the next question. Until then the source may have been held up.
fn receive_burst<E: Endpoint>(
    block_loop: &BlockLoop,
    lanes: &mut [E],
    burst: u64,
    part: &mut Part,
    asked: &mut Option<Mark>,
) -> Result<u64> {
    let length = block_loop.plan.lengths(0).forward;
    let (mut spent_ns, mut remaining, mut sum) = (0, burst, 0u64);
    let waiting = Instant::now();
    while remaining > 0 {
        let before = block_loop.clock.now_ns();
        let mut received_count = 0;
        while remaining > 0
            && let Some(received) = lanes[0].try_receive()?
        {
            whole(&received, length)?;
            remaining -= 1;
            received_count += 1;
            part.received_bytes += received.length as u64;
            sum = sum.wrapping_add(received.sum);
        }
        part.operations += received_count;
        if received_count > 0 {
            spent_ns += block_loop.clock.now_ns() - before;
        } else if asked.is_some() {
            break;
        } else if !E::RELIABLE {
            *asked = block_loop.control(lanes).0.try_receive()?.map(|received| received.mark);
        }
        if remaining > 0 && asked.is_none() {
            if waiting.elapsed() > TIMEOUT {
                bail!("a burst has not arrived for {} s", TIMEOUT.as_secs());
            }
            lanes[0].wait(Interest::Receive, Duration::from_millis(1))?;
        }
    }
    std::hint::black_box(sum);
    Ok(spent_ns)
}
