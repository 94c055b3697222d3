//! Ping-pong: every round trip timed on its own.

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

use super::course::{
    Blocks, Course, Results, Turn, Workload, answer_again, ask, count_lost, unexpected, whole,
};
use crate::endpoint::{Endpoint, Kind, Mark, PATIENCE, Received, receive_patiently};
use crate::pace::Pace;
use crate::plan::{Outcome, Part, Plan};

/// Ping-pong: every round trip timed on its own.
pub struct Latency;

impl Workload for Latency {
    /// The asking end. A block's `reading` is the median half-RTT.
    fn source<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        course.run_timed(lanes, |course, lanes, turn, block| ping(course, &mut lanes[0], turn, block))
    }

    /// The answering end.
    fn target<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
        course.run(lanes, |course, lanes, turn| pong(course, &mut lanes[0], turn))
    }

    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        source.reading
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        count_lost(plan, blocks, details);
    }
}

fn ping<E: Endpoint>(
    course: &Course,
    end: &mut E,
    turn: Turn,
    round_trips: &mut Histogram<u64>,
) -> Result<Part> {
    let length = course.plan.lengths(0).forward;
    let back = course.plan.lengths(0).back;
    let clock = course.clock;
    let started = clock.now_ns();
    let stop = course.stop_ns(turn);
    let (mut operations, mut lost, mut sum) = (0, 0, 0u64);
    let mut pace = Pace::new(course.plan);
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
        pace.look(now - started, operations);
        if now >= stop {
            break now;
        }
    };
    std::hint::black_box(sum);
    ask(end, length, Kind::End, Kind::Ended, turn.tag)?;
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        sent_bytes: operations * length as u64,
        received_bytes: operations * back as u64,
        reading: Some(round_trips.value_at_quantile(0.5) as f64 / 2.0),
        lost,
        notes: pace.into_notes(),
        ..Part::default()
    })
}

/// The echo of `mark`; where messages may be lost, one that stays out is asked for again.
fn echo<E: Endpoint>(end: &mut E, length: usize, mark: Mark, lost: &mut u64) -> Result<Received> {
    if E::RELIABLE {
        let received = receive_patiently(end)?;
        if received.mark != mark {
            bail!(unexpected(received.mark));
        }
        return Ok(received);
    }
    let started = std::time::Instant::now();
    while started.elapsed() < PATIENCE {
        match end.receive()? {
            Some(received) if received.mark == mark => return Ok(received),
            Some(_) => {}
            None => {
                *lost += 1;
                end.send(length, mark)?;
            }
        }
    }
    bail!("the peer has not answered for {} s", PATIENCE.as_secs())
}

fn pong<E: Endpoint>(course: &Course, end: &mut E, turn: Turn) -> Result<Part> {
    let length = course.plan.lengths(0).back;
    let due = course.plan.lengths(0).forward;
    let started = course.clock.now_ns();
    let mut part = Part::default();
    let mut sum = 0u64;
    loop {
        let received = receive_patiently(end)?;
        whole(&received, due)?;
        match received.mark.kind() {
            Kind::Data => {
                end.send(length, received.mark)?;
                part.operations += 1;
                part.received_bytes += received.length as u64;
                sum = sum.wrapping_add(received.sum);
            }
            Kind::End => break,
            _ => answer_again(end, length, received.mark, turn)?,
        }
    }
    std::hint::black_box(sum);
    part.seconds = (course.clock.now_ns() - started) as f64 * 1e-9;
    part.sent_bytes = part.operations * length as u64;
    end.send(length, Mark::new(Kind::Ended, turn.tag))?;
    Ok(part)
}
