//! One end of a connection between two engines: its machine, and the programs that it serves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bywire_stream::record::{Header, Record};
use bywire_stream::{Event, Lane, OpenError, StreamId, Streams};
use rand::Rng;
use rand::rngs::StdRng;

use super::book::{Ending, Entry, byte};
use super::program::{Phase, Program};
use super::scenario::Scenario;
use super::tally::{Counts, transitions};

/// Bytes that a stream may send by the low lane while others wait.
const TURN_BYTES: usize = 16 * 1024;

/// The things that all ends use.
pub struct World {
    pub scenario: Scenario,
    pub random: StdRng,
    pub now_ns: u64,
    /// Every stream, by its number.
    pub book: Vec<Entry>,
    pub counts: Counts,
}

pub struct End {
    pub engine: usize,
    /// `None`: the connection has ended here.
    pub machine: Option<Streams>,
    /// By the slots of their streams.
    programs: Vec<Option<Program>>,
    /// When programs act, with the slot and the number of each.
    due: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Streams that are still to be opened, and when the next one is.
    to_open: usize,
    opens_ns: u64,
    buffer: Vec<u8>,
}

impl End {
    pub fn new(engine: usize, streams: usize) -> Self {
        Self {
            engine,
            machine: None,
            programs: Vec::new(),
            due: BinaryHeap::new(),
            to_open: streams,
            opens_ns: 0,
            buffer: Vec::new(),
        }
    }

    /// Takes a message, and checks what it means. The result says whether the peer has ended the connection.
    pub fn receive(&mut self, lane: Lane, message: &[u8], world: &mut World) -> Result<bool, String> {
        let Self { machine, programs, due, .. } = self;
        let Some(machine) = machine else { return Ok(false) };
        let (mut result, mut is_closed) = (Ok(()), false);
        let received = machine.receive(lane, message, |event| {
            is_closed |= matches!(event, Event::Closed { .. });
            if result.is_ok() {
                result = hear(event, programs, due, world).map_err(|reason| format!("{reason}: {event:?}"));
            }
        });
        received.map_err(|violation| format!("an honest peer broke a rule: {violation}"))?;
        result.map(|()| is_closed)
    }

    /// Does what is due: of programs, and of those to come.
    pub fn act(&mut self, world: &mut World) -> Result<(), String> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        while let Some(Reverse((due_ns, slot, number))) = self.due.peek().copied()
            && due_ns <= world.now_ns
        {
            self.due.pop();
            let place = &mut self.programs[slot];
            let is_due = |program: &&mut Program| program.number == number && program.due_ns == due_ns;
            let Some(program) = place.as_mut().filter(is_due) else { continue };
            let World { scenario, random, now_ns, book, counts } = world;
            match program.act(*now_ns, machine, &mut book[number], scenario, random, counts)? {
                Some(due_ns) => {
                    program.due_ns = due_ns;
                    self.due.push(Reverse((due_ns, slot, number)));
                }
                None => *place = None,
            }
        }
        self.open(world);
        // It looks at every slot.
        if world.random.random_bool(0.02) { self.check_live() } else { Ok(()) }
    }

    /// Opens the next streams.
    fn open(&mut self, world: &mut World) {
        let Some(machine) = &mut self.machine else { return };
        while self.to_open > 0 && self.opens_ns <= world.now_ns {
            let pause_ns = world.random.random_range(world.scenario.pause_ns / 2..=world.scenario.pause_ns);
            self.opens_ns = if world.scenario.streams > 100 { 0 } else { world.now_ns + pause_ns };
            let number = world.book.len();
            let World { scenario, random, now_ns, .. } = world;
            // The stream is not known yet.
            let mut program = Program::new(StreamId::from_bits(0), number, 0, *now_ns, scenario, random);
            let description = vec![number as u8; random.random_range(0..500)];
            let description = [&(number as u64).to_le_bytes()[..], &description].concat();
            match machine.open(&description, program.room_bytes()) {
                Ok(stream) => {
                    program.stream = stream;
                    world.book.push(Entry::default());
                    self.to_open -= 1;
                    place(program, &mut self.programs, &mut self.due);
                    continue;
                }
                Err(OpenError::Full) => world.counts.note("streams: none free"),
                Err(OpenError::Pending) => world.counts.note("streams: unanswered at their limit"),
                Err(_) => {}
            }
            self.opens_ns = world.now_ns + 4 * pause_ns;
        }
    }

    /// Makes the next message of a lane, if there is one.
    pub fn transmit(&mut self, lane: Lane, world: &World) -> Result<Option<Vec<u8>>, String> {
        let Self { machine, programs, buffer, .. } = self;
        let Some(machine) = machine else { return Ok(None) };
        buffer.resize(world.scenario.message_bytes, 0);
        let (mut result, has_output) = (Ok(()), machine.has_output(lane));
        let length = machine.transmit(lane, buffer, |stream, offset, target| {
            let program = programs.get(stream.slot()).and_then(Option::as_ref);
            let Some(program) = program.filter(|program| program.stream == stream) else {
                result = Err(format!("{stream:?} is gone, and its bytes are sent"));
                return;
            };
            let part = &world.book[program.number].parts[program.part];
            let end = part.ending.map_or(part.queued, |(_, end)| end);
            if offset + target.len() as u64 > end {
                result = Err(format!("{stream:?} has bytes up to {end}, and {offset} and more are sent"));
            }
            for (place, offset) in target.iter_mut().zip(offset..) {
                *place = byte(program.number, program.part, offset);
            }
        });
        result?;
        if length == 0 {
            return Ok(None);
        }
        if !has_output {
            return Err("a message leaves, and the machine said that it has none".to_owned());
        }
        check_message(lane, &buffer[..length])?;
        Ok(Some(buffer[..length].to_vec()))
    }

    /// Returns whether a lane seems to have a message.
    pub fn has_output(&self, lane: Lane) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.has_output(lane))
    }

    /// When a program acts next, or a stream is opened.
    pub fn next_ns(&self) -> Option<u64> {
        self.machine.as_ref()?;
        let due_ns = self.due.peek().map(|Reverse((due_ns, ..))| *due_ns);
        let opens_ns = (self.to_open > 0).then_some(self.opens_ns);
        due_ns.into_iter().chain(opens_ns).min()
    }

    /// The machine knows exactly the streams that have programs.
    fn check_live(&self) -> Result<(), String> {
        let Some(machine) = &self.machine else { return Ok(()) };
        let machines = machine.live();
        let programs = self.programs.iter().flatten().map(|program| program.stream);
        if machines.eq(programs) {
            Ok(())
        } else {
            Err("the machine has other streams than programs".to_owned())
        }
    }

    /// The connection is lost, and all of its streams.
    pub fn lose(&mut self, world: &mut World) -> Result<(), String> {
        self.check_live()?;
        if let Some(machine) = self.machine.take() {
            world.counts.add_all(transitions(machine.counts()));
        }
        for program in self.programs.drain(..).flatten() {
            world.counts.note("engines: streams lost");
            world.book[program.number].is_lost = true;
        }
        self.due.clear();
        Ok(())
    }

    /// Checks that nothing is left, and notes the counts.
    pub fn finish(&mut self, world: &mut World) -> Result<(), String> {
        if self.to_open > 0 || self.programs.iter().any(Option::is_some) {
            return Err("nothing happens any more, and not all streams have ended".to_owned());
        }
        let Some(machine) = self.machine.take() else { return Ok(()) };
        world.counts.add_all(transitions(machine.counts()));
        if machine.occupied() > 0 || machine.shared_credit() > 0 {
            return Err(format!(
                "{} slots and {} bytes of credit are left",
                machine.occupied(),
                machine.shared_credit()
            ));
        }
        Ok(())
    }
}

fn place(
    program: Program,
    programs: &mut Vec<Option<Program>>,
    due: &mut BinaryHeap<Reverse<(u64, usize, usize)>>,
) {
    let slot = program.stream.slot();
    if programs.len() <= slot {
        programs.resize_with(slot + 1, || None);
    }
    due.push(Reverse((program.due_ns, slot, program.number)));
    programs[slot] = Some(program);
}

/// Checks an event against the book, and lets its program act.
fn hear(
    event: Event,
    programs: &mut Vec<Option<Program>>,
    due: &mut BinaryHeap<Reverse<(u64, usize, usize)>>,
    world: &mut World,
) -> Result<(), String> {
    let stream = match event {
        Event::Ready | Event::Closed { .. } => return Ok(()),
        Event::Opened { stream, description } => {
            let (number, rest) = description.split_first_chunk().ok_or("a description is too short")?;
            let number = u64::from_le_bytes(*number) as usize;
            if rest.iter().any(|byte| *byte != number as u8) || number >= world.book.len() {
                return Err("a description is another one".to_owned());
            }
            if programs.get(stream.slot()).is_some_and(Option::is_some) {
                return Err("the slot has a stream".to_owned());
            }
            let World { scenario, random, now_ns, .. } = world;
            let mut program = Program::new(stream, number, 1, *now_ns, scenario, random);
            program.due_ns += random.random_range(0..=scenario.pause_ns);
            place(program, programs, due);
            return Ok(());
        }
        Event::Accepted { stream }
        | Event::Refused { stream, .. }
        | Event::Started { stream, .. }
        | Event::Bytes { stream, .. }
        | Event::Half { stream, .. }
        | Event::Back { stream, .. }
        | Event::BackAsked { stream, .. }
        | Event::Drained { stream, .. }
        | Event::Reset { stream, .. } => stream,
    };
    let place = programs.get_mut(stream.slot()).ok_or("the slot was never used")?;
    let program = place.as_mut().filter(|program| program.stream == stream).ok_or("the stream is gone")?;
    let entry = &mut world.book[program.number];
    let (part, other) = (program.part, entry.parts[1 - program.part].clone());
    match event {
        Event::Accepted { .. } if program.phase == Phase::Opening => program.phase = Phase::Open,
        Event::Refused { reason, .. } if other.refused == Some(reason) => {
            *place = None;
            return Ok(());
        }
        Event::Reset { reason, .. } if other.reset == Some(reason) => {
            *place = None;
            return Ok(());
        }
        Event::Started { offset, .. } => program.on_started(offset, &other)?,
        Event::Bytes { offset, bytes, .. } => program.on_bytes(offset, bytes, &other)?,
        Event::Half { offset, .. } => program.on_end(Ending::Half, offset, &other)?,
        Event::Back { offset, .. } => program.on_end(Ending::Back, offset, &other)?,
        Event::BackAsked { offset, .. } => program.on_back_asked(offset, entry)?,
        Event::Drained { offset, .. } => program.on_drained(offset, &other)?,
        _ => return Err("the peer has not done this".to_owned()),
    }
    let part = &mut entry.parts[part];
    (part.drained, part.other_end) = program.read_so_far();
    Ok(())
}

/// A message can be read, and no stream has more than its turn while another one waits.
fn check_message(lane: Lane, message: &[u8]) -> Result<(), String> {
    let (header, records) = Header::parse(message).map_err(|error| error.to_string())?;
    if header.after.is_some() && lane == Lane::High {
        return Err("a message of the high lane waits for another".to_owned());
    }
    let mut run: Option<(StreamId, usize)> = None;
    for record in records {
        let Record::Bytes { stream, bytes, .. } = record.map_err(|error| error.to_string())? else {
            continue;
        };
        run = match run {
            Some((last, length)) if last == stream => Some((stream, length + bytes.len())),
            Some((_, length)) if lane == Lane::Low && length > TURN_BYTES => {
                return Err(format!("a stream sends {length} bytes while another one waits"));
            }
            _ => Some((stream, bytes.len())),
        };
    }
    Ok(())
}
