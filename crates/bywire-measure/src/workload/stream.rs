//! One-way rate: the source sends as fast as the level takes, the target reads.

use anyhow::Result;

use super::course::{
    Arrivals, Blocks, Course, Results, Turn, Workload, answer_again, ask, stride, way_seconds, whole,
};
use crate::endpoint::{Endpoint, Kind, Mark, receive_patiently};
use crate::pace::Pace;
use crate::plan::{Outcome, Part, Plan};

/// One-way rate.
pub struct Stream;

impl Workload for Stream {
    /// The sending end. A block ends with a marked message; its time covers the delivery of all of it, except where
    /// messages may be lost: there it covers the sending, in which what arrived did so too, but for what had to be read later.
    fn source<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        course.run(lanes, |course, lanes, turn| send(course, &mut lanes[0], turn))
    }

    /// The receiving end.
    fn target<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        course.run(lanes, |course, lanes, turn| receive(course, &mut lanes[0], turn))
    }

    fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
        Some(match plan.level.carrier().is_lossy {
            true => target.received_bytes as f64 / way_seconds(source, target),
            false => source.sent_bytes as f64 / source.seconds,
        })
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let (seconds, there_seconds) = (blocks.source(|part| part.seconds), blocks.sum(way_seconds));
        let [sent, received] =
            [blocks.source(|part| part.operations as f64), blocks.target(|part| part.operations as f64)];
        details.set("sent_bytes_per_second", blocks.source(|part| part.sent_bytes as f64) / seconds);
        details.set(
            "received_bytes_per_second",
            blocks.target(|part| part.received_bytes as f64) / there_seconds,
        );
        details.set("messages_per_second", sent / seconds);
        details.count("messages_sent", sent);
        details.count("messages_received", received);
        if plan.level.carrier().is_lossy {
            details.count("send_errors", blocks.source(|part| part.send_errors as f64));
        }
    }
}

fn send<E: Endpoint>(course: &Course, end: &mut E, turn: Turn) -> Result<Part> {
    let length = course.plan.lengths(0).forward;
    let stride = stride(length);
    let errors_before = end.send_errors();
    let started = course.clock.now_ns();
    let stop = course.stop_ns(turn);
    let mut operations = 0;
    while course.clock.now_ns() < stop {
        for _ in 0..stride {
            end.send(length, Mark::DATA)?;
        }
        operations += stride;
    }
    let sent = course.clock.now_ns();
    ask(end, length, Kind::End, Kind::Ended, turn.tag)?;
    operations += 1;
    let finished = if E::RELIABLE { course.clock.now_ns() } else { sent };
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        sent_bytes: operations * length as u64,
        send_errors: end.send_errors() - errors_before,
        ..Part::default()
    })
}

fn receive<E: Endpoint>(course: &Course, end: &mut E, turn: Turn) -> Result<Part> {
    let length = course.plan.lengths(0).forward;
    let answer_length = course.plan.lengths(0).back;
    let stride = stride(length);
    let started = course.clock.now_ns();
    let mut pace = Pace::new(course.plan);
    let mut arrivals = Arrivals::default();
    let (mut operations, mut received_bytes, mut sum) = (0u64, 0, 0u64);
    loop {
        let received = receive_patiently(end)?;
        whole(&received, length)?;
        let ended = match received.mark.kind() {
            Kind::Data => {
                if !E::RELIABLE {
                    arrivals.note(course.clock.now_ns());
                }
                false
            }
            Kind::End => true,
            _ => {
                answer_again(end, answer_length, received.mark, turn)?;
                continue;
            }
        };
        operations += 1;
        if pace.is_wanted() && operations.is_multiple_of(stride) {
            pace.look(course.clock.now_ns() - started, operations);
        }
        received_bytes += received.length as u64;
        sum = sum.wrapping_add(received.sum);
        if ended {
            break;
        }
    }
    let finished = course.clock.now_ns();
    std::hint::black_box(sum);
    end.send(answer_length, Mark::new(Kind::Ended, turn.tag))?;
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        received_bytes,
        arrival_seconds: arrivals.seconds(),
        notes: pace.into_notes(),
        ..Part::default()
    })
}
