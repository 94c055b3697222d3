//! One-way rate: the source sends as fast as the level accepts, and the target reads.

use anyhow::Result;

use super::block_loop::{
    BlockLoop, Blocks, Results, Tally, Workload, answer_again, ask, stride, transfer_seconds, whole,
};
use crate::block_progress::BlockProgress;
use crate::endpoint::{Endpoint, Kind, Mark, receive_in_time};
use crate::plan::{Part, Plan};

/// One-way rate.
pub struct Stream;

impl Workload for Stream {
    /// The sending end. A block ends with a marked message. Its time includes the delivery of all messages. On a level
    /// that may lose messages, it is the send time, and the target's receive time counts beside it.
    fn source<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let length = block_loop.plan.lengths(0).forward;
        let stride = stride(length);
        let BlockLoop { clock, stop_ns, tag, .. } = *block_loop;
        let end = &mut block_loop.lanes[0];
        let errors_before = end.send_errors();
        let mut operations = 0;
        while clock.now_ns() < stop_ns {
            for _ in 0..stride {
                end.send(length, Mark::DATA)?;
            }
            operations += stride;
        }
        let sent = clock.now_ns();
        ask(end, length, Kind::End, Kind::Ended, tag)?;
        operations += 1;
        let send_errors = end.send_errors() - errors_before;
        let seconds = block_loop.seconds_until(if E::RELIABLE { clock.now_ns() } else { sent });
        let sent_bytes = operations * length as u64;
        Ok(Part { seconds, operations, sent_bytes, send_errors, ..Part::default() })
    }

    fn target<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let lengths = block_loop.plan.lengths(0);
        let stride = stride(lengths.forward);
        let BlockLoop { clock, started_ns, tag, .. } = *block_loop;
        let end = &mut block_loop.lanes[0];
        let (mut tally, mut progress) = (Tally::default(), BlockProgress::new(block_loop.plan));
        let mut operations = 0u64;
        let mut is_over = false;
        while !is_over {
            let received = receive_in_time(end)?;
            whole(&received, lengths.forward)?;
            match received.mark.kind() {
                Kind::Data if E::RELIABLE => {}
                Kind::Data => tally.arrived(clock.now_ns()),
                Kind::End => is_over = true,
                _ => {
                    answer_again(end, lengths.back, received.mark, tag)?;
                    continue;
                }
            }
            operations += 1;
            if progress.is_wanted() && operations.is_multiple_of(stride) {
                progress.note(clock.now_ns() - started_ns, operations);
            }
            tally.read(&received);
        }
        let part = tally.part(block_loop.seconds_until(clock.now_ns()));
        block_loop.lanes[0].send(lengths.back, Mark::new(Kind::Ended, tag))?;
        Ok(Part { operations, notes: progress.into_notes(), ..part })
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
        let received_bytes = blocks.target(|part| part.received_bytes as f64);
        details.set("sent_bytes_per_second", blocks.source(|part| part.sent_bytes as f64) / seconds);
        details.set("received_bytes_per_second", received_bytes / there_seconds);
        details.set("messages_per_second", sent / seconds);
        details.count("messages_sent", sent);
        details.count("messages_received", received);
        if plan.level.carrier().is_lossy {
            details.count("send_errors", blocks.source(|part| part.send_errors as f64));
        }
    }
}
