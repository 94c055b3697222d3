//! One-way rate: the source sends as fast as the level accepts, and the target reads.

use anyhow::Result;

use super::block_loop::{
    Arrivals, Block, BlockLoop, Blocks, Results, Workload, answer_again, ask, stride, transfer_seconds, whole,
};
use crate::block_progress::BlockProgress;
use crate::endpoint::{Endpoint, Kind, Mark, receive_in_time};
use crate::plan::{Outcome, Part, Plan};

/// One-way rate.
pub struct Stream;

impl Workload for Stream {
    /// The sending end. A block ends with a marked message. Its time includes the delivery of all messages. On a level
    /// that may lose messages, it is the send time, and the target's receive time counts beside it.
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run(lanes, |block_loop, lanes, block| send(block_loop, &mut lanes[0], block))
    }

    /// The receiving end.
    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        block_loop.run(lanes, |block_loop, lanes, block| receive(block_loop, &mut lanes[0], block))
    }

    fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
        Some(match plan.level.carrier().is_lossy {
            true => target.received_bytes as f64 / transfer_seconds(source, target),
            false => source.sent_bytes as f64 / source.seconds,
        })
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        let (seconds, there_seconds) = (blocks.source(|part| part.seconds), blocks.sum(transfer_seconds));
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

fn send<E: Endpoint>(block_loop: &BlockLoop, end: &mut E, block: Block) -> Result<Part> {
    let length = block_loop.plan.lengths(0).forward;
    let stride = stride(length);
    let errors_before = end.send_errors();
    let started = block_loop.clock.now_ns();
    let stop = block_loop.stop_ns(block);
    let mut operations = 0;
    while block_loop.clock.now_ns() < stop {
        for _ in 0..stride {
            end.send(length, Mark::DATA)?;
        }
        operations += stride;
    }
    let sent = block_loop.clock.now_ns();
    ask(end, length, Kind::End, Kind::Ended, block.tag)?;
    operations += 1;
    let finished = if E::RELIABLE { block_loop.clock.now_ns() } else { sent };
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        sent_bytes: operations * length as u64,
        send_errors: end.send_errors() - errors_before,
        ..Part::default()
    })
}

fn receive<E: Endpoint>(block_loop: &BlockLoop, end: &mut E, block: Block) -> Result<Part> {
    let length = block_loop.plan.lengths(0).forward;
    let answer_length = block_loop.plan.lengths(0).back;
    let stride = stride(length);
    let started = block_loop.clock.now_ns();
    let mut progress = BlockProgress::new(block_loop.plan);
    let mut arrivals = Arrivals::default();
    let (mut operations, mut received_bytes, mut sum) = (0u64, 0, 0u64);
    loop {
        let received = receive_in_time(end)?;
        whole(&received, length)?;
        let ended = match received.mark.kind() {
            Kind::Data => {
                if !E::RELIABLE {
                    arrivals.note(block_loop.clock.now_ns());
                }
                false
            }
            Kind::End => true,
            _ => {
                answer_again(end, answer_length, received.mark, block)?;
                continue;
            }
        };
        operations += 1;
        if progress.is_wanted() && operations.is_multiple_of(stride) {
            progress.note(block_loop.clock.now_ns() - started, operations);
        }
        received_bytes += received.length as u64;
        sum = sum.wrapping_add(received.sum);
        if ended {
            break;
        }
    }
    let finished = block_loop.clock.now_ns();
    std::hint::black_box(sum);
    end.send(answer_length, Mark::new(Kind::Ended, block.tag))?;
    Ok(Part {
        seconds: (finished - started) as f64 * 1e-9,
        operations,
        received_bytes,
        arrival_seconds: arrivals.seconds(),
        notes: progress.into_notes(),
        ..Part::default()
    })
}
