//! Several connections of the message layer as its users have them: one port with many peers, in one thread.
//!
//! The hub receives from all others (`streams`, `hotspot`, `fanin`) or sends to them (`fanout`). At the other end of each
//! connection is a process with the test's usual end; it is taken through the same blocks.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bywire::{Confirm, Event, FRAGMENT_BYTES, Peer, Port, PortName, Priority, SendError, TransferId};
use bywire_results::cell::CpuEnd;

use crate::cpu::Snapshot;
use crate::endpoint::{Kind, Mark, NAP, PATIENCE};
use crate::pace::Pace;
use crate::payload::{Reader, Writer};
use crate::plan::{Details, End, Outcome, Part, Plan, Test};
use crate::transport::msg::{self, spoke_name};
use crate::workload::course::{monotonic_ns, patient_until_ns, stride, thread_seconds, unexpected, whole};

/// Long messages under way to or from one peer at a time.
const BUFFERS: usize = 2;

/// Peers that have been let go may take so long to leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// Which end of a test the hub is.
pub fn end(test: Test) -> End {
    if test == Test::Fanout { End::Source } else { End::Target }
}

/// Plays the hub of so many connections, and tells by `listening` where it may be connected to; an outcome for each.
pub fn run(
    plan: &Plan,
    core: Option<u32>,
    connections: u32,
    listening: impl FnOnce(String),
) -> Result<Vec<Outcome>> {
    let end = end(plan.test);
    let port = msg::open(plan, Some(&end.to_string()))?;
    let mut hub = Hub::new(plan, end, core, port, connections)?;
    match end {
        End::Target => {
            listening(format!("localhost/{end}"));
            hub.receive_from_all()?;
            let outcomes = hub.outcomes()?;
            hub.wait_for_all_to_leave();
            Ok(outcomes)
        }
        End::Source => {
            hub.connect_to_all()?;
            hub.send_to_all()?;
            hub.outcomes()
        }
    }
}

struct Hub<'a> {
    plan: &'a Plan,
    port: Port,
    spokes: Vec<Spoke>,
    numbers: HashMap<Peer, usize>,
    transfers: HashMap<TransferId, usize>,
    sent_length: usize,
    received_length: usize,
    moved_ns: u64,
    core: Option<u32>,
    /// At the beginning of the first block, and at the end of the last one.
    accounts: [Option<Account>; 2],
}

/// The accounts of the hub's thread at one moment.
struct Account {
    at_ns: u64,
    cpu_seconds: f64,
    snapshot: Snapshot,
}

/// One connection.
struct Spoke {
    /// Absent until it has connected.
    peer: Option<Peer>,
    has_left: bool,
    reader: Reader,
    writer: Writer,
    /// What is to be sent next.
    due: VecDeque<Mark>,
    /// A short message, and whether it is written already.
    short: Vec<u8>,
    is_written: bool,
    /// Memory of long messages that is free, and one that is written and not sent.
    free: Vec<Vec<u8>>,
    unsent: Option<Vec<u8>>,
    /// When it is to end its block; absent while it does not send one.
    stop_ns: Option<u64>,
    part: Part,
    pace: Pace,
    blocks: Vec<Part>,
    is_finished: bool,
}

impl<'a> Hub<'a> {
    fn new(plan: &'a Plan, end: End, core: Option<u32>, mut port: Port, connections: u32) -> Result<Self> {
        let lengths = plan.lengths(0);
        let (sent_length, received_length) = (lengths.sent_by(end), lengths.received_by(end));
        if received_length > FRAGMENT_BYTES {
            for _ in 0..2 * BUFFERS as u32 * connections {
                let posted = port.post_receive(Priority::Low, vec![0; received_length]);
                posted.map_err(|_| anyhow!("no receive token for the test's own buffers"))?;
            }
        }
        let long = if sent_length > FRAGMENT_BYTES { BUFFERS } else { 0 };
        let spoke = |_| Spoke {
            peer: None,
            has_left: false,
            reader: Reader::of(plan, true),
            writer: Writer::of(plan),
            due: VecDeque::new(),
            short: vec![0; sent_length.min(FRAGMENT_BYTES)],
            is_written: false,
            free: (0..long).map(|_| vec![0; sent_length]).collect(),
            unsent: None,
            stop_ns: None,
            part: Part::default(),
            pace: Pace::new(plan),
            blocks: Vec::new(),
            is_finished: false,
        };
        Ok(Self {
            plan,
            port,
            spokes: (0..connections).map(spoke).collect(),
            numbers: HashMap::new(),
            transfers: HashMap::new(),
            sent_length,
            received_length,
            moved_ns: monotonic_ns(),
            core,
            accounts: [None, None],
        })
    }

    fn connect_to_all(&mut self) -> Result<()> {
        for number in 0..self.spokes.len() {
            let address = format!("localhost/{}", spoke_name(End::Target, number as u32));
            let peer = self.port.connect(&address.parse()?, PATIENCE).context("cannot connect to a peer")?;
            self.spokes[number].peer = Some(peer);
            self.numbers.insert(peer, number);
        }
        Ok(())
    }

    /// Finds out which connection a peer that has come is.
    fn admit(&mut self, peer: Peer) -> Result<()> {
        let info = self.port.peer_info(peer).context("a peer is gone already")?;
        let is_it = |number: &usize| *info.port() == PortName::Name(spoke_name(End::Source, *number as u32));
        let number = (0..self.spokes.len()).find(is_it).context("a stranger has connected")?;
        self.spokes[number].peer = Some(peer);
        self.numbers.insert(peer, number);
        Ok(())
    }

    fn account(&self) -> Account {
        Account { at_ns: monotonic_ns(), cpu_seconds: thread_seconds(), snapshot: Snapshot::take(self.core) }
    }

    /// A block begins: with the first one the accounts do.
    fn begin(&mut self, number: usize) {
        if self.accounts[0].is_none() {
            self.accounts[0] = Some(self.account());
        }
        self.spokes[number].part = Part { began_ns: monotonic_ns(), ..Part::default() };
        self.spokes[number].pace = Pace::new(self.plan);
    }

    /// All blocks begin, and are to end, at one moment.
    fn begin_all(&mut self) {
        let stop_ns = monotonic_ns() + self.plan.block_us * 1000;
        for number in 0..self.spokes.len() {
            self.begin(number);
            self.spokes[number].stop_ns = Some(stop_ns);
        }
    }

    /// A block is over: with the last one the accounts are.
    fn complete(&mut self, number: usize) {
        let spoke = &mut self.spokes[number];
        let mut part = std::mem::take(&mut spoke.part);
        part.seconds = monotonic_ns().saturating_sub(part.began_ns) as f64 * 1e-9;
        part.notes = std::mem::replace(&mut spoke.pace, Pace::new(self.plan)).into_notes();
        spoke.blocks.push(part);
        if self.spokes.iter().all(|spoke| !spoke.blocks.is_empty()) {
            self.accounts[1] = Some(self.account());
        }
    }

    fn receive_from_all(&mut self) -> Result<()> {
        let hotspot = self.plan.test == Test::Hotspot;
        let stride = stride(self.received_length);
        while !self.spokes.iter().all(|spoke| spoke.is_finished && spoke.due.is_empty()) {
            let Some((number, mark)) = self.next(true)? else {
                // Room may have come for what is due.
                for number in 0..self.spokes.len() {
                    self.flush(number)?;
                }
                continue;
            };
            let spoke = &mut self.spokes[number];
            let part = &mut spoke.part;
            let is_payload = mark.kind() == Kind::Data || (mark.kind() == Kind::End && !hotspot);
            if is_payload {
                part.operations += 1;
                part.received_bytes += self.received_length as u64;
                // Of a hotspot's connections the clients' own accounts count.
                if !hotspot && part.operations.is_multiple_of(stride) {
                    spoke.pace.look(monotonic_ns() - part.began_ns, part.operations);
                }
            }
            match mark.kind() {
                Kind::Begin => {
                    self.begin(number);
                    self.spokes[number].due.push_back(Mark::new(Kind::Begun, mark.tag()));
                }
                Kind::Data if hotspot => {
                    part.sent_bytes += self.sent_length as u64;
                    spoke.due.push_back(mark);
                }
                Kind::Data => {}
                Kind::End => {
                    self.complete(number);
                    self.spokes[number].due.push_back(Mark::new(Kind::Ended, mark.tag()));
                }
                Kind::Finish => {
                    spoke.is_finished = true;
                    spoke.due.push_back(Mark::new(Kind::Finished, 0));
                }
                _ => bail!(unexpected(mark)),
            }
            self.flush(number)?;
        }
        Ok(())
    }

    fn send_to_all(&mut self) -> Result<()> {
        if let Some(left_ns) = self.plan.begin_ns.and_then(|begin_ns| begin_ns.checked_sub(monotonic_ns())) {
            std::thread::sleep(Duration::from_nanos(left_ns));
        }
        for spoke in &mut self.spokes {
            spoke.due.push_back(Mark::new(Kind::Begin, 0));
        }
        let mut unready = self.spokes.len();
        while !self.spokes.iter().all(|spoke| spoke.is_finished) {
            let now_ns = monotonic_ns();
            let mut has_sent = false;
            for number in 0..self.spokes.len() {
                let spoke = &mut self.spokes[number];
                if let Some(stop_ns) = spoke.stop_ns.filter(|_| spoke.due.is_empty()) {
                    let is_over = now_ns >= stop_ns;
                    spoke.due.push_back(if is_over { Mark::new(Kind::End, 0) } else { Mark::DATA });
                    spoke.stop_ns = spoke.stop_ns.filter(|_| !is_over);
                }
                has_sent |= self.flush(number)?;
            }
            let Some((number, mark)) = self.next(!has_sent)? else { continue };
            match mark.kind() {
                Kind::Begun => {
                    unready = unready.checked_sub(1).with_context(|| unexpected(mark))?;
                    // Peers that share a core answer by turns; whoever began at once might be done before the last one.
                    if unready == 0 {
                        self.begin_all();
                    }
                }
                Kind::Ended => {
                    self.complete(number);
                    self.spokes[number].due.push_back(Mark::new(Kind::Finish, 0));
                }
                Kind::Finished => self.spokes[number].is_finished = true,
                _ => bail!(unexpected(mark)),
            }
        }
        Ok(())
    }

    /// What came next, and from whom. Where nothing is there, it `may_wait` in the port's own way.
    fn next(&mut self, may_wait: bool) -> Result<Option<(usize, Mark)>> {
        let event = match may_wait && !self.plan.spin {
            true => self.port.wait(Some(NAP))?,
            false => self.port.poll(),
        };
        let Some(event) = event else {
            let is_patient = monotonic_ns() < patient_until_ns(self.plan, self.moved_ns);
            ensure!(is_patient, "nothing has moved for {} s", PATIENCE.as_secs());
            return Ok(None);
        };
        self.moved_ns = monotonic_ns();
        match event {
            Event::Message(message) => {
                let number = *self.numbers.get(&message.peer).context("a stranger sent a message")?;
                let received = self.spokes[number].reader.read(&message.payload)?;
                whole(&received, self.received_length)?;
                if message.payload.len() <= FRAGMENT_BYTES {
                    self.port.recycle(message.payload);
                } else if let Some(buffer) = message.payload.into_buffer() {
                    let _surplus = self.port.post_receive(Priority::Low, buffer);
                }
                Ok(Some((number, received.mark)))
            }
            Event::Sent { id, buffer, result } => {
                result?;
                if let Some(number) = self.transfers.remove(&id) {
                    self.spokes[number].free.push(buffer.into_vec());
                }
                Ok(None)
            }
            Event::Disconnected { peer, .. } => {
                let number = *self.numbers.get(&peer).context("a stranger has left")?;
                let spoke = &mut self.spokes[number];
                ensure!(spoke.is_finished, "a peer closed its connection in the middle of the test");
                spoke.has_left = true;
                Ok(None)
            }
            Event::Connected(peer) => self.admit(peer).map(|()| None),
            Event::BufferNeeded { length_bytes, .. } => {
                bail!("no buffer for a message of {length_bytes} bytes")
            }
            _ => Ok(None),
        }
    }

    /// Sends what is due to one peer, as far as there is room; true where anything went.
    fn flush(&mut self, number: usize) -> Result<bool> {
        let spoke = &mut self.spokes[number];
        let Some(peer) = spoke.peer else { return Ok(false) };
        let mut has_sent = false;
        while let Some(&mark) = spoke.due.front() {
            if self.sent_length <= FRAGMENT_BYTES {
                if !std::mem::replace(&mut spoke.is_written, true) {
                    spoke.writer.fill(&mut spoke.short, mark);
                }
                match self.port.send(peer, Priority::Low, &spoke.short) {
                    Ok(()) => spoke.is_written = false,
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            } else {
                let Some(buffer) = spoke.written(mark) else { break };
                match self.port.send_buffer(peer, Priority::Low, buffer, Confirm::Copied) {
                    Ok(id) => self.transfers.insert(id, number),
                    Err(unsent) if unsent.error == SendError::NoToken => {
                        spoke.unsent = Some(unsent.buffer.into_vec());
                        break;
                    }
                    Err(unsent) => return Err(unsent.error.into()),
                };
            }
            spoke.due.pop_front();
            has_sent = true;
            let is_payload = matches!(mark.kind(), Kind::Data | Kind::End);
            if is_payload && self.plan.test == Test::Fanout {
                spoke.part.operations += 1;
                spoke.part.sent_bytes += self.sent_length as u64;
            }
        }
        Ok(has_sent)
    }

    /// What was sent to them last would be gone with this port.
    fn wait_for_all_to_leave(mut self) {
        let until = Instant::now() + FAREWELL;
        while !self.spokes.iter().all(|spoke| spoke.has_left) && Instant::now() < until {
            if self.next(true).is_err() {
                return;
            }
        }
    }

    /// Each connection's own; of the one thread's time everyone has had the same share.
    fn outcomes(&mut self) -> Result<Vec<Outcome>> {
        let [Some(before), Some(after)] = &self.accounts else { bail!("no block was begun and ended") };
        let connections = self.spokes.len();
        let whole = before.snapshot.until(&after.snapshot);
        let cpu = CpuEnd { attributed: whole.attributed.map(|share| share / connections as f64), ..whole };
        let disturbed = before.snapshot.disturbed_since(&after.snapshot);
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        let span_seconds = (after.at_ns - before.at_ns) as f64 * 1e-9;
        let mut details = Details::new();
        details.insert("sleeps".into(), self.port.statistics().sleeps.into());
        details.insert("peers_of_one_port".into(), connections.into());
        let outcome = |spoke: &mut Spoke| {
            let mut blocks = std::mem::take(&mut spoke.blocks);
            let shares = (connections * blocks.len().max(1)) as f64;
            for part in &mut blocks {
                part.cpu_seconds = cpu_seconds / shares;
                part.disturbed.clone_from(&disturbed);
            }
            Outcome {
                blocks,
                cpu: cpu.clone(),
                cpu_seconds: span_seconds,
                details: details.clone(),
                ..Outcome::of(end(self.plan.test))
            }
        };
        Ok(self.spokes.iter_mut().map(outcome).collect())
    }
}

impl Spoke {
    /// The next long message, if there is memory for it.
    fn written(&mut self, mark: Mark) -> Option<Vec<u8>> {
        self.unsent.take().or_else(|| {
            let mut buffer = self.free.pop()?;
            self.writer.fill(&mut buffer, mark);
            Some(buffer)
        })
    }
}
