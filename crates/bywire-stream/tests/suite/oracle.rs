//! Two machines agree with a model of every byte under any sequence of calls, whatever the order of the lanes. Each call
//! succeeds exactly when the model says so. In the end all streams are complete, and no slot and no credit is left.
//!
//! Random: `PROPTEST_CASES`, 64 by default, 4,096 in a soak.

use bywire_stream::{
    CallError, Event, Lane, Limits, MESSAGE_BYTES_MAX, OpenError, Refusal, ResetReason, StreamId,
};
use proptest::prelude::*;

use crate::fixture::{Heard, LANES, Pair, are};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The end does not know of the stream yet.
    Unknown,
    Opening,
    Offered,
    Open,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Half,
    Back,
}

/// One direction, as its writer knows it.
#[derive(Clone, Debug, Default)]
struct Writer {
    started: Option<u64>,
    queued: u64,
    ending: Option<Ending>,
    asked: Option<u64>,
    drained: u64,
}

/// One direction, as its reader knows it.
#[derive(Clone, Debug, Default)]
struct Reader {
    started: Option<u64>,
    received: u64,
    drained: u64,
    is_asking: bool,
    end: Option<u64>,
    limit: u64,
}

#[derive(Clone, Debug)]
struct End {
    phase: Phase,
    writer: Writer,
    reader: Reader,
    /// How this end has reset the stream.
    reset: Option<ResetReason>,
}

struct Stream {
    id: StreamId,
    ends: [End; 2],
}

#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Accept(usize, usize),
    Refuse(usize, usize),
    Start(usize, usize, u64),
    Queue(usize, usize, u64),
    Drain(usize, usize, u64, u64),
    Half(usize, usize),
    Back(usize, usize, u64),
    AskBack(usize, usize),
    Reset(usize, usize),
    Close(usize, usize),
    Transmit(usize, usize, usize),
    Deliver(usize, usize),
    Flush(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (side, lane, name) = (0..2usize, 0..2usize, 0..64usize);
    let length = prop_oneof![3 => 1..300u64, 1 => 1..9_000u64];
    let room = prop_oneof![1 => 0..500u64, 3 => Just(20_000u64)];
    let message = prop_oneof![Just(1024usize), Just(4096), Just(MESSAGE_BYTES_MAX)];
    let step = prop_oneof![
        6 => side.clone().prop_map(Step::Open),
        8 => (side.clone(), name.clone()).prop_map(|(side, name)| Step::Accept(side, name)),
        1 => (side.clone(), name.clone()).prop_map(|(side, name)| Step::Refuse(side, name)),
        8 => (side.clone(), name.clone(), 0..3u64).prop_map(|(side, name, at)| Step::Start(side, name, at * 1000)),
        30 => (side.clone(), name.clone(), length.clone()).prop_map(|(side, name, length)| Step::Queue(side, name, length)),
        20 => (side.clone(), name.clone(), length, room).prop_map(|(side, name, length, room)| Step::Drain(side, name, length, room)),
        2 => (side.clone(), name.clone()).prop_map(|(side, name)| Step::Half(side, name)),
        3 => (side.clone(), name.clone(), 0..6_000u64).prop_map(|(side, name, at)| Step::Back(side, name, at)),
        2 => (side.clone(), name.clone()).prop_map(|(side, name)| Step::AskBack(side, name)),
        1 => (side.clone(), name.clone()).prop_map(|(side, name)| Step::Reset(side, name)),
        4 => (side.clone(), name).prop_map(|(side, name)| Step::Close(side, name)),
        40 => (side.clone(), lane.clone(), message).prop_map(|(side, lane, length)| Step::Transmit(side, lane, length)),
        60 => (side.clone(), lane).prop_map(|(side, lane)| Step::Deliver(side, lane)),
        1 => side.prop_map(Step::Flush),
    ];
    prop::collection::vec(step, 0..700)
}

struct Model {
    pair: Pair,
    streams: Vec<Stream>,
}

const LIMITS: Limits = Limits {
    streams_max: 4,
    opens_max: 2,
    window_bytes_max: 12_000,
    bytes_max: 60_000,
    early_bytes_max: 1 << 18,
};

impl Model {
    fn new() -> Self {
        Self { pair: Pair::ready(LIMITS), streams: Vec::new() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open(side) => self.open(side),
            Step::Accept(side, name) => self.accept(side, self.pick(name)),
            Step::Refuse(side, name) => {
                let Some((id, end)) = self.end(side, self.pick(name)) else { return };
                let wanted = answerable(end);
                assert_eq!(self.pair.machines[side].refuse(id, Refusal::Unknown), wanted);
                if wanted.is_ok() {
                    self.named(id).ends[side].phase = Phase::Gone;
                }
            }
            Step::Start(side, name, at) => self.start(side, self.pick(name), at),
            Step::Queue(side, name, length) => self.queue(side, self.pick(name), length),
            Step::Drain(side, name, length, room) => self.drain(side, self.pick(name), length, room),
            Step::Half(side, name) => self.half(side, self.pick(name)),
            Step::Back(side, name, at) => self.back(side, self.pick(name), at),
            Step::AskBack(side, name) => self.ask_back(side, self.pick(name)),
            Step::Reset(side, name) => {
                let Some((id, end)) = self.end(side, self.pick(name)) else { return };
                let wanted = if end.phase == Phase::Gone { Err(CallError::Gone) } else { Ok(()) };
                assert_eq!(self.pair.machines[side].reset(id, ResetReason::Aborted), wanted);
                if wanted.is_ok() {
                    let end = &mut self.named(id).ends[side];
                    (end.phase, end.reset) = (Phase::Gone, Some(ResetReason::Aborted));
                }
            }
            Step::Close(side, name) => self.close(side, self.pick(name)),
            Step::Transmit(side, lane, length) => {
                self.pair.transmit(side, LANES[lane], length);
            }
            Step::Deliver(side, lane) => self.deliver(side, LANES[lane]),
            Step::Flush(side) => self.pair.machines[side].flush(),
        }
    }

    /// The stream that a step names: one that lives, or sometimes the first one that has been.
    fn pick(&self, name: usize) -> usize {
        let lives = |stream: &&Stream| stream.ends.iter().any(|end| end.phase != Phase::Gone);
        let live: Vec<usize> =
            self.streams.iter().filter(lives).map(|stream| self.place(stream.id)).collect();
        if live.is_empty() { 0 } else { live.get(name % (live.len() + 1)).copied().unwrap_or(0) }
    }

    fn place(&self, id: StreamId) -> usize {
        self.streams.iter().position(|stream| stream.id == id).expect("a stream of the model")
    }

    /// A stream that the side has known, and its end there.
    fn end(&self, side: usize, place: usize) -> Option<(StreamId, &End)> {
        let stream = self.streams.get(place)?;
        let end = &stream.ends[side];
        (end.phase != Phase::Unknown).then_some((stream.id, end))
    }

    fn named(&mut self, id: StreamId) -> &mut Stream {
        let place = self.place(id);
        &mut self.streams[place]
    }

    fn open(&mut self, side: usize) {
        let description = self.streams.len().to_le_bytes();
        match self.pair.machines[side].open(&description, 10_000) {
            Ok(id) => {
                assert!(self.streams.iter().all(|stream| stream.id != id), "{id:?} is used again");
                let end =
                    |phase| End { phase, writer: Writer::default(), reader: Reader::default(), reset: None };
                let mut ends = [end(Phase::Unknown), end(Phase::Unknown)];
                ends[side].phase = Phase::Opening;
                ends[side].reader.limit = 10_000;
                self.streams.push(Stream { id, ends });
            }
            Err(OpenError::Pending) => {
                let waiting = self.streams.iter().filter(|stream| stream.ends[side].phase == Phase::Opening);
                assert_eq!(waiting.count(), LIMITS.opens_max as usize);
            }
            Err(OpenError::Full) => {
                assert!(self.pair.machines[side].occupied() >= LIMITS.streams_max as usize);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn accept(&mut self, side: usize, place: usize) {
        let Some((id, end)) = self.end(side, place) else { return };
        let wanted = answerable(end);
        assert_eq!(self.pair.machines[side].accept(id, 10_000), wanted);
        if wanted.is_ok() {
            let end = &mut self.named(id).ends[side];
            end.phase = Phase::Open;
            end.reader.limit = 10_000;
        }
    }

    fn start(&mut self, side: usize, place: usize, at: u64) {
        let Some((id, end)) = self.end(side, place) else { return };
        let Writer { started, ending, asked, .. } = end.writer;
        let wanted = open(end, started.is_none() && ending.is_none() && asked.is_none());
        assert_eq!(self.pair.machines[side].start(id, at), wanted);
        if wanted.is_ok() {
            let writer = &mut self.named(id).ends[side].writer;
            (writer.started, writer.queued, writer.drained) = (Some(at), at, at);
        }
    }

    fn queue(&mut self, side: usize, place: usize, length: u64) {
        let Some((id, end)) = self.end(side, place) else { return };
        let wanted = open(end, end.writer.started.is_some() && end.writer.ending.is_none());
        let queued = end.writer.queued + length;
        assert_eq!(self.pair.machines[side].queue(id, queued), wanted);
        if wanted.is_ok() {
            self.named(id).ends[side].writer.queued = queued;
        }
    }

    fn drain(&mut self, side: usize, place: usize, length: u64, room: u64) {
        let Some((id, end)) = self.end(side, place) else { return };
        let reader = &end.reader;
        let offset = reader.drained + length;
        let most = match reader.end {
            Some(end) => reader.received.min(end),
            None if reader.is_asking => reader.drained,
            None => reader.received,
        };
        let wanted = match open(end, reader.started.is_some()) {
            Ok(()) if offset > most => Err(CallError::Offset),
            other => other,
        };
        assert_eq!(self.pair.machines[side].drain(id, offset, room), wanted);
        if wanted.is_ok() {
            let reader = &mut self.named(id).ends[side].reader;
            reader.drained = offset;
            reader.limit = reader.limit.max(offset + room);
        }
    }

    fn half(&mut self, side: usize, place: usize) {
        let Some((id, end)) = self.end(side, place) else { return };
        let Writer { started, ending, asked, .. } = end.writer;
        let wanted = open(end, started.is_some() && ending.is_none() && asked.is_none());
        assert_eq!(self.pair.machines[side].half(id), wanted);
        if wanted.is_ok() {
            self.named(id).ends[side].writer.ending = Some(Ending::Half);
        }
    }

    fn back(&mut self, side: usize, place: usize, at: u64) {
        let Some((id, end)) = self.end(side, place) else { return };
        let sent = self.pair.machines[side].progress(id).map_or(0, |progress| progress.sent);
        let writer = &end.writer;
        let least = writer.asked.unwrap_or(sent);
        let offset = writer.queued.saturating_sub(at);
        let wanted = match open(end, writer.ending.is_none()) {
            Ok(()) if !(least..=writer.queued).contains(&offset) => Err(CallError::Offset),
            other => other,
        };
        assert_eq!(self.pair.machines[side].back(id, offset), wanted);
        if wanted.is_ok() {
            let writer = &mut self.named(id).ends[side].writer;
            (writer.ending, writer.queued) = (Some(Ending::Back), offset);
        }
    }

    fn ask_back(&mut self, side: usize, place: usize) {
        let Some((id, end)) = self.end(side, place) else { return };
        let wanted =
            open(end, end.reader.end.is_none() && !end.reader.is_asking).map(|()| end.reader.drained);
        assert_eq!(self.pair.machines[side].ask_back(id), wanted);
        if wanted.is_ok() {
            self.named(id).ends[side].reader.is_asking = true;
        }
    }

    fn close(&mut self, side: usize, place: usize) {
        let Some((id, end)) = self.end(side, place) else { return };
        let over = self.pair.machines[side].progress(id).is_some_and(|progress| progress.is_over);
        if over {
            assert!(end.reader.end.is_some_and(|end_at| end.reader.received >= end_at), "bytes are missing");
            assert!(end.writer.ending.is_some(), "the direction has not ended");
        }
        let wanted = open(end, over);
        assert_eq!(self.pair.machines[side].close(id), wanted);
        if wanted.is_ok() {
            self.named(id).ends[side].phase = Phase::Gone;
        }
    }

    fn deliver(&mut self, from: usize, lane: Lane) {
        for event in self.pair.deliver(from, lane) {
            self.hear(1 - from, event);
        }
    }

    /// Whether an event is one that the other end has caused, and fits what this end knows.
    fn hear(&mut self, side: usize, event: Heard) {
        match event {
            Heard::Opened(id, description) => {
                let name = usize::from_le_bytes(description.try_into().expect("eight bytes"));
                let stream = &mut self.streams[name];
                assert_eq!((stream.id, stream.ends[side].phase), (id, Phase::Unknown));
                stream.ends[side].phase = Phase::Offered;
            }
            Heard::Bytes(id, offset, bytes) => {
                let (end, other) = self.both(id, side);
                let reader = &mut end.reader;
                assert!(end.phase == Phase::Open && reader.started.is_some());
                assert_eq!(offset, reader.received);
                assert!(are(id, 1 - side, offset, &bytes), "{id:?}: bytes are not those that were sent");
                reader.received += bytes.len() as u64;
                assert!(reader.received <= reader.limit, "beyond the reader's room");
                assert!(reader.end.is_none_or(|end| reader.received <= end), "behind the end");
                let was_cut = other.writer.ending == Some(Ending::Back) || other.phase == Phase::Gone;
                assert!(reader.received <= other.writer.queued || was_cut, "more than was queued");
            }
            Heard::Other(event) => self.hear_other(side, event),
        }
    }

    fn hear_other(&mut self, side: usize, event: Event<'static>) {
        match event {
            Event::Accepted { stream } => {
                let (end, other) = self.both(stream, side);
                assert_eq!(end.phase, Phase::Opening);
                assert!(matches!(other.phase, Phase::Open | Phase::Gone));
                end.phase = Phase::Open;
            }
            Event::Refused { stream, reason } => {
                let (end, other) = self.both(stream, side);
                assert_eq!((end.phase, other.phase, reason), (Phase::Opening, Phase::Gone, Refusal::Unknown));
                end.phase = Phase::Gone;
            }
            Event::Started { stream, offset } => {
                let (end, other) = self.both(stream, side);
                assert_eq!(
                    (end.phase, other.writer.started, end.reader.started),
                    (Phase::Open, Some(offset), None)
                );
                let reader = &mut end.reader;
                (reader.started, reader.received, reader.drained) = (Some(offset), offset, offset);
                reader.limit += offset;
            }
            Event::Half { stream, offset } => {
                let (end, other) = self.both(stream, side);
                assert_eq!((end.phase, other.writer.ending), (Phase::Open, Some(Ending::Half)));
                assert_eq!(
                    (end.reader.received, other.writer.queued, end.reader.end),
                    (offset, offset, None)
                );
                end.reader.end = Some(offset);
            }
            Event::Back { stream, offset } => {
                let (end, other) = self.both(stream, side);
                assert_eq!((end.phase, other.writer.ending), (Phase::Open, Some(Ending::Back)));
                assert_eq!((other.writer.queued, end.reader.end), (offset, None));
                assert!(offset >= end.reader.drained, "drained bytes are void");
                assert!(offset >= end.reader.received || end.reader.is_asking, "cut without being asked");
                end.reader.end = Some(offset);
            }
            Event::BackAsked { stream, offset } => {
                let (end, other) = self.both(stream, side);
                assert_eq!((end.phase, end.writer.asked), (Phase::Open, None));
                assert!(other.reader.is_asking);
                assert!(offset >= other.reader.drained && end.writer.ending != Some(Ending::Back));
                // A half that has not left is void.
                (end.writer.asked, end.writer.ending) = (Some(offset), None);
            }
            Event::Drained { stream, offset } => {
                let (end, other) = self.both(stream, side);
                assert!(
                    end.phase == Phase::Open && end.writer.drained < offset && offset <= other.reader.drained
                );
                end.writer.drained = offset;
            }
            Event::Reset { stream, reason } => {
                let (end, other) = self.both(stream, side);
                assert!(!matches!(end.phase, Phase::Unknown | Phase::Gone));
                assert_eq!(other.reset, Some(reason));
                end.phase = Phase::Gone;
            }
            event => panic!("{event:?}"),
        }
    }

    /// The end of a stream at a side, and a copy of the other one.
    fn both(&mut self, id: StreamId, side: usize) -> (&mut End, End) {
        let stream = self.named(id);
        let other = stream.ends[1 - side].clone();
        (&mut stream.ends[side], other)
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            for name in 0..self.streams.len() {
                for side in [0, 1] {
                    self.finish_end(side, name);
                }
            }
            let mut moved = false;
            for (side, lane) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                while self.pair.transmit(side, LANES[lane], MESSAGE_BYTES_MAX) > 0 {}
                while !self.pair.lanes[side][lane].is_empty() {
                    moved = true;
                    self.deliver(side, LANES[lane]);
                }
            }
            let is_over =
                self.streams.iter().all(|stream| stream.ends.iter().all(|end| end.phase == Phase::Gone));
            if is_over && !moved {
                break;
            }
        }
        for stream in &self.streams {
            for side in [0, 1] {
                let (end, other) = (&stream.ends[side], &stream.ends[1 - side]);
                assert_eq!(
                    (end.phase, other.phase),
                    (Phase::Gone, Phase::Gone),
                    "{:?} did not end",
                    stream.id
                );
                if end.reader.end.is_some() && end.reset.is_none() && other.reset.is_none() {
                    assert_eq!(end.reader.end, Some(other.writer.queued), "{:?} has another end", stream.id);
                }
            }
        }
        for machine in &self.pair.machines {
            assert_eq!((machine.occupied(), machine.shared_credit()), (0, 0), "something is left");
            assert!(
                !machine.has_output(Lane::High) && !machine.has_output(Lane::Low),
                "it does not become silent"
            );
        }
    }

    fn finish_end(&mut self, side: usize, place: usize) {
        let end = self.streams[place].ends[side].clone();
        match end.phase {
            Phase::Offered => self.accept(side, place),
            Phase::Open => {
                if end.writer.asked.is_some() && end.writer.ending.is_none() || end.writer.started.is_none() {
                    if end.writer.ending.is_none() {
                        self.back(side, place, 0);
                    }
                } else if end.writer.ending.is_none() {
                    self.half(side, place);
                }
                let most = end.reader.end.map_or(end.reader.received, |last| last.min(end.reader.received));
                if end.reader.started.is_some() && (!end.reader.is_asking || end.reader.end.is_some()) {
                    self.drain(side, place, most - end.reader.drained, 20_000);
                }
                self.close(side, place);
            }
            _ => {}
        }
    }
}

/// The result of a call that needs an open stream, and something more.
fn open(end: &End, is_allowed: bool) -> Result<(), CallError> {
    match end.phase {
        Phase::Gone | Phase::Unknown => Err(CallError::Gone),
        Phase::Open if is_allowed => Ok(()),
        _ => Err(CallError::State),
    }
}

fn answerable(end: &End) -> Result<(), CallError> {
    match end.phase {
        Phase::Offered => Ok(()),
        Phase::Gone => Err(CallError::Gone),
        _ => Err(CallError::State),
    }
}

/// How many sequences are drawn, unless `PROPTEST_CASES` says it. The fixtures that know of tiers are above this crate.
pub fn cases() -> ProptestConfig {
    let is_soak = std::env::var("BYWIRE_TESTS").is_ok_and(|tier| tier == "soak");
    let cases = std::env::var("PROPTEST_CASES")
        .map_or(if is_soak { 4096 } else { 64 }, |cases| cases.parse().expect("a number"));
    ProptestConfig::with_cases(cases)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn two_machines_agree_with_a_model_of_every_byte(steps in steps()) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| model.step(step));
        model.finish();
    }
}
