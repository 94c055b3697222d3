//! Host CPU per message, send and receive apart.
//!
//! The target asks for a burst and then leaves its endpoint alone while the burst arrives; the source times the
//! sending while there is room for all of it, the target the receiving of what has arrived. Neither time contains
//! waiting, and nothing is received outside of it.

use anyhow::{Result, bail};

use super::course::{Blocks, Course, Results, Turn, Workload, answer_again, ask, whole};
use crate::endpoint::{Endpoint, Interest, Kind, Mark, PATIENCE, receive_patiently};
use crate::plan::{Outcome, Part, Plan};
use std::time::{Duration, Instant};

/// A burst never holds more messages.
const BURST_MAX: u64 = 64;

/// A burst never holds more bytes: every level's default buffers have room for it.
pub const BURST_BYTES_MAX: u64 = 64 << 10;

/// How long a target leaves a burst to arrive: many times what sending it takes.
const ARRIVAL: Duration = Duration::from_micros(200);

/// Messages of `length` bytes in a burst.
fn burst(length: u64) -> u64 {
    (BURST_BYTES_MAX / length).clamp(1, BURST_MAX)
}

/// Host CPU per message.
pub struct Overhead;

impl Workload for Overhead {
    /// The sending end; a block's `reading` is the time for one send.
    fn source<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        course.run(lanes, send_bursts)
    }

    /// The receiving end; a block's `reading` is the time for one receive.
    fn target<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        course.run(lanes, receive_bursts)
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

fn send_bursts<E: Endpoint>(course: &Course, lanes: &mut [E], turn: Turn) -> Result<Part> {
    let length = course.plan.lengths(0).forward;
    let burst = burst(course.plan.size_bytes);
    let started = course.clock.now_ns();
    let stop = course.stop_ns(turn);
    let (mut spent_ns, mut operations, mut count) = (0, 0, 0u32);
    // At least one, whoever had the core when the block began.
    while count == 0 || course.clock.now_ns() < stop {
        let (control, control_length) = course.control(lanes);
        ask(control, control_length, Kind::Data, Kind::Data, count)?;
        let before = course.clock.now_ns();
        for _ in 0..burst {
            if !lanes[0].try_send(length, Mark::DATA)? {
                bail!("no room for a burst of {burst} messages of {length} bytes: choose a smaller --size");
            }
        }
        spent_ns += course.clock.now_ns() - before;
        operations += burst;
        count += 1;
    }
    let finished = course.clock.now_ns();
    let (control, control_length) = course.control(lanes);
    ask(control, control_length, Kind::End, Kind::Ended, turn.tag)?;
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        sent_bytes: operations * length as u64,
        reading: Some(spent_ns as f64 / operations as f64),
        ..Part::default()
    })
}

fn receive_bursts<E: Endpoint>(course: &Course, lanes: &mut [E], turn: Turn) -> Result<Part> {
    let burst = burst(course.plan.size_bytes);
    let started = course.clock.now_ns();
    let (mut spent_ns, mut part) = (0, Part::default());
    let mut asked = None;
    loop {
        let (control, length) = course.control(lanes);
        let mark = match asked.take() {
            Some(mark) => mark,
            None => receive_patiently(control)?.mark,
        };
        match mark.kind() {
            Kind::Data => {
                control.send(length, mark)?;
                let arrived_ns = course.clock.now_ns() + ARRIVAL.as_nanos() as u64;
                while course.clock.now_ns() < arrived_ns {
                    std::hint::spin_loop();
                }
                spent_ns += receive_burst(course, lanes, burst, &mut part, &mut asked)?;
            }
            Kind::End => {
                control.send(length, Mark::new(Kind::Ended, turn.tag))?;
                break;
            }
            _ => answer_again(control, length, mark, turn)?,
        }
    }
    part.seconds = (course.clock.now_ns() - started) as f64 * 1e-9;
    part.reading = (part.operations > 0).then(|| spent_ns as f64 / part.operations as f64);
    Ok(part)
}

/// The time in ns for receiving a burst, without the waiting for messages that have not arrived yet. Where some may be
/// lost, they are once the source has `asked` the next question: until then it may have been held up.
fn receive_burst<E: Endpoint>(
    course: &Course,
    lanes: &mut [E],
    burst: u64,
    part: &mut Part,
    asked: &mut Option<Mark>,
) -> Result<u64> {
    let length = course.plan.lengths(0).forward;
    let (mut spent_ns, mut remaining, mut sum) = (0, burst, 0u64);
    let waiting = Instant::now();
    while remaining > 0 {
        let before = course.clock.now_ns();
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
            spent_ns += course.clock.now_ns() - before;
        } else if asked.is_some() {
            break;
        } else if !E::RELIABLE {
            *asked = course.control(lanes).0.try_receive()?.map(|received| received.mark);
        }
        if remaining > 0 && asked.is_none() {
            if waiting.elapsed() > PATIENCE {
                bail!("a burst has not arrived for {} s", PATIENCE.as_secs());
            }
            lanes[0].wait(Interest::Receive, Duration::from_millis(1))?;
        }
    }
    std::hint::black_box(sum);
    Ok(spent_ns)
}
