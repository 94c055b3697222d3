//! One end of one stream: a program that writes and reads, and the library and kernel behind it.

use bywire_stream::{ResetReason, StreamId, Streams};
use rand::Rng;
use rand::rngs::StdRng;

use super::book::{Ending, Entry, byte};
use super::scenario::{HEALED_AT_NS, Scenario};
use super::tally::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Opening,
    Offered,
    Open,
}

/// The direction that the program writes.
#[derive(Debug)]
struct Writer {
    /// The bytes that it will have written. `None`: the direction stays in the kernel.
    length: Option<u64>,
    /// The room for what was not sent, or not drained if bytes are kept.
    ring_bytes: u64,
    keeps: bool,
    ending: Ending,
    started: Option<u64>,
    queued: u64,
    drained: u64,
    asked: Option<u64>,
    has_ended: bool,
}

/// The direction that it reads.
#[derive(Debug)]
struct Reader {
    room_bytes: u64,
    /// The reader stands still until then.
    stands_until_ns: u64,
    /// It asks for the return once it has drained so much.
    asks_after: Option<u64>,
    started: Option<u64>,
    received: u64,
    drained: u64,
    limit: u64,
    is_asking: bool,
    end: Option<(Ending, u64)>,
}

#[derive(Debug)]
pub struct Program {
    pub stream: StreamId,
    /// The number of the stream's entry in the book, and its part there.
    pub number: usize,
    pub part: usize,
    pub phase: Phase,
    writer: Writer,
    reader: Reader,
    resets_at_ns: Option<u64>,
    /// When it acts next.
    pub due_ns: u64,
}

impl Program {
    pub fn new(
        stream: StreamId,
        number: usize,
        part: usize,
        now_ns: u64,
        scenario: &Scenario,
        random: &mut StdRng,
    ) -> Self {
        let mut happens = |chance: u32| random.random_range(0..1000) < chance;
        let (stands, asks, resets, returns, is_kept) = (
            happens(scenario.standing),
            happens(scenario.returned),
            happens(scenario.reset),
            happens(scenario.returned),
            happens(scenario.kept),
        );
        let length = (!is_kept).then(|| random.random_range(0..=scenario.bytes_max));
        let writer = Writer {
            length,
            ring_bytes: scenario.bytes_max / 64 + random.random_range(1..=scenario.bytes_max.max(1)),
            keeps: scenario.flushes && random.random_bool(0.5),
            ending: if returns { Ending::Back } else { Ending::Half },
            started: None,
            queued: 0,
            drained: 0,
            asked: None,
            has_ended: false,
        };
        let reader = Reader {
            room_bytes: scenario.bytes_max / 64 + random.random_range(1..=scenario.room_bytes),
            stands_until_ns: if stands { HEALED_AT_NS } else { 0 },
            asks_after: asks.then(|| random.random_range(0..=scenario.bytes_max)),
            started: None,
            received: 0,
            drained: 0,
            limit: 0,
            is_asking: false,
            end: None,
        };
        let resets_at_ns = resets.then(|| now_ns + random.random_range(0..HEALED_AT_NS / 4));
        let phase = if part == 0 { Phase::Opening } else { Phase::Offered };
        let mut program = Self { stream, number, part, phase, writer, reader, resets_at_ns, due_ns: now_ns };
        program.reader.limit = program.reader.room_bytes;
        program
    }

    pub fn room_bytes(&self) -> u64 {
        self.reader.room_bytes
    }

    /// Does what is due. The result says when it acts next, and `None` once the stream is gone here.
    pub fn act(
        &mut self,
        now_ns: u64,
        machine: &mut Streams,
        entry: &mut Entry,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<Option<u64>, String> {
        let stream = self.stream;
        let failed = |what: &str, error: bywire_stream::CallError| {
            format!("{stream:?} of an honest program: {what}: {error}")
        };
        if self.resets_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            counts.note(if self.phase == Phase::Open {
                "streams: reset while open"
            } else {
                "streams: reset while opening"
            });
            let reason = if random.random_bool(0.5) { ResetReason::Aborted } else { ResetReason::Died };
            machine.reset(self.stream, reason).map_err(|error| failed("reset", error))?;
            entry.parts[self.part].reset = Some(reason);
            return Ok(None);
        }
        if self.phase == Phase::Offered {
            if random.random_range(0..1000) < scenario.refused {
                counts.note("streams: refused");
                let reason = bywire_stream::Refusal::NotExported;
                machine.refuse(self.stream, reason).map_err(|error| failed("refuse", error))?;
                entry.parts[self.part].refused = Some(reason);
                return Ok(None);
            }
            machine.accept(self.stream, self.reader.room_bytes).map_err(|error| failed("accept", error))?;
            self.phase = Phase::Open;
        }
        if self.phase == Phase::Open {
            self.write(machine, entry, scenario, random, counts).map_err(|error| failed("writer", error))?;
            self.read(now_ns, machine, entry, random, counts).map_err(|error| failed("reader", error))?;
            if self.is_over() {
                let progress = machine.progress(self.stream).ok_or("a stream is gone without an event")?;
                if progress.is_over {
                    machine.close(self.stream).map_err(|error| failed("close", error))?;
                    entry.parts[self.part].is_closed = true;
                    counts.note("streams: closed");
                    return Ok(None);
                }
            }
        }
        let pause_ns = random.random_range(scenario.pause_ns / 2..=scenario.pause_ns);
        let stands = self.reader.stands_until_ns > now_ns && self.writer.has_ended;
        Ok(Some(if stands { self.reader.stands_until_ns } else { now_ns + pause_ns }))
    }

    fn write(
        &mut self,
        machine: &mut Streams,
        entry: &mut Entry,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), bywire_stream::CallError> {
        let (writer, part) = (&mut self.writer, &mut entry.parts[self.part]);
        if writer.has_ended {
            return Ok(());
        }
        if let Some(asked) = writer.asked {
            // The reader's own offset, or any up to the end.
            let offset =
                if random.random_bool(0.5) { asked } else { random.random_range(asked..=writer.queued) };
            counts.note(if offset == asked {
                "returns: where the reader stopped"
            } else {
                "returns: behind it"
            });
            machine.back(self.stream, offset)?;
            part.ending = Some((Ending::Back, offset));
            writer.has_ended = true;
            return Ok(());
        }
        let Some(length) = writer.length else {
            counts.note("returns: never started");
            machine.back(self.stream, 0)?;
            part.ending = Some((Ending::Back, 0));
            writer.has_ended = true;
            return Ok(());
        };
        let started = match writer.started {
            Some(started) => started,
            None => {
                let started = random.random_range(0..100_000);
                machine.start(self.stream, started)?;
                (writer.started, writer.queued, writer.drained) = (Some(started), started, started);
                (part.started, part.queued) = (Some(started), started);
                started
            }
        };
        let left = started + length - writer.queued;
        if left == 0 {
            match writer.ending {
                Ending::Half => machine.half(self.stream)?,
                Ending::Back => {
                    counts.note("returns: unasked");
                    machine.back(self.stream, writer.queued)?;
                }
            }
            part.ending = Some((writer.ending, writer.queued));
            writer.has_ended = true;
            return Ok(());
        }
        let sent = machine.progress(self.stream).map_or(0, |progress| progress.sent);
        let free_from = if writer.keeps { writer.drained } else { sent };
        let room = (free_from + writer.ring_bytes).saturating_sub(writer.queued);
        let piece = left.min(room).min(random.random_range(1..=scenario.piece_bytes_max));
        if piece > 0 {
            writer.queued += piece;
            machine.queue(self.stream, writer.queued)?;
            part.queued = writer.queued;
        }
        Ok(())
    }

    fn read(
        &mut self,
        now_ns: u64,
        machine: &mut Streams,
        entry: &mut Entry,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), bywire_stream::CallError> {
        let (reader, part) = (&mut self.reader, &mut entry.parts[self.part]);
        let has_answer = !reader.is_asking || reader.end.is_some();
        let drained = reader.drained - reader.started.unwrap_or(0);
        if reader.asks_after.is_some_and(|after| drained >= after)
            && !reader.is_asking
            && reader.end.is_none()
        {
            counts.note(if reader.started.is_some() {
                "returns: asked"
            } else {
                "returns: asked before the start"
            });
            machine.ask_back(self.stream)?;
            reader.is_asking = true;
            part.is_asking = true;
            return Ok(());
        }
        if now_ns < reader.stands_until_ns || reader.started.is_none() || !has_answer {
            return Ok(());
        }
        let most = reader.end.map_or(reader.received, |(_, end)| end.min(reader.received));
        if most > reader.drained {
            let all = most - reader.drained;
            reader.drained += if random.random_bool(0.6) { all } else { random.random_range(1..=all) };
            reader.limit = reader.limit.max(reader.drained + reader.room_bytes);
            part.drained = reader.drained;
            machine.drain(self.stream, reader.drained, reader.room_bytes)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let is_read = self
            .reader
            .end
            .is_some_and(|(_, end)| end == self.reader.drained || self.reader.started.is_none());
        is_read && self.writer.has_ended
    }

    pub fn on_started(&mut self, offset: u64, other: &super::book::Part) -> Result<(), String> {
        if self.phase != Phase::Open || self.reader.started.is_some() || other.started != Some(offset) {
            return Err(format!("a direction starts at {offset}, and not at {:?}", other.started));
        }
        let reader = &mut self.reader;
        (reader.started, reader.received, reader.drained) = (Some(offset), offset, offset);
        reader.limit += offset;
        Ok(())
    }

    pub fn on_bytes(&mut self, offset: u64, bytes: &[u8], other: &super::book::Part) -> Result<(), String> {
        let (number, writer) = (self.number, 1 - self.part);
        let reader = &mut self.reader;
        if self.phase != Phase::Open || reader.started.is_none() || offset != reader.received {
            return Err(format!("bytes come at {offset}, and not at {}", reader.received));
        }
        if bytes.iter().zip(offset..).any(|(found, offset)| *found != byte(number, writer, offset)) {
            return Err(format!("other bytes than were written come at {offset}"));
        }
        reader.received += bytes.len() as u64;
        let end = reader.end.map(|(_, end)| end).unwrap_or(u64::MAX);
        let most = if matches!(other.ending, Some((Ending::Back, _))) { u64::MAX } else { other.queued };
        if reader.received > reader.limit.min(end).min(most) {
            return Err(format!(
                "bytes up to {} come, with room up to {}, an end at {end}, and {most} written",
                reader.received, reader.limit
            ));
        }
        Ok(())
    }

    pub fn on_end(&mut self, ending: Ending, offset: u64, other: &super::book::Part) -> Result<(), String> {
        let reader = &mut self.reader;
        if other.ending != Some((ending, offset)) || reader.end.is_some() {
            return Err(format!("a direction ends by {ending:?} at {offset}, and not as {:?}", other.ending));
        }
        if ending == Ending::Half && reader.received != offset || offset < reader.drained {
            return Err(format!("a direction ends at {offset} while {} has come", reader.received));
        }
        if offset < reader.received && !reader.is_asking {
            return Err("a direction is cut without being asked".to_owned());
        }
        reader.end = Some((ending, offset));
        Ok(())
    }

    pub fn on_back_asked(&mut self, offset: u64, entry: &mut Entry) -> Result<(), String> {
        let other_asks = entry.parts[1 - self.part].is_asking;
        if !other_asks || self.writer.asked.is_some() || offset > self.writer.queued {
            return Err(format!("a return is asked for at {offset}, which the peer has not done"));
        }
        self.writer.asked = Some(offset);
        // An end that has not left is void.
        self.writer.has_ended = false;
        entry.parts[self.part].ending = None;
        Ok(())
    }

    pub fn on_drained(&mut self, offset: u64, other: &super::book::Part) -> Result<(), String> {
        if offset <= self.writer.drained || offset > other.drained {
            return Err(format!("the peer says that it has drained {offset}, and it has {}", other.drained));
        }
        self.writer.drained = offset;
        Ok(())
    }

    /// The reader's knowledge of its direction: how much it has drained, and the end.
    pub fn read_so_far(&self) -> (u64, Option<(Ending, u64)>) {
        (self.reader.drained, self.reader.end)
    }
}
