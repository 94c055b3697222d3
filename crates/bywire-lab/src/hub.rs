//! Several connections of the message layer as its users have them: one port with many peers, in one thread.
//!
//! The hub receives from all others (`streams`, `hotspot`, `fanin`) or sends to them (`fanout`). At the other end of each
//! connection is a process with the test's usual end; it is taken through the same blocks.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bywire::{Confirm, Event, FRAGMENT_BYTES, Peer, Port, PortName, Priority, SendError, TransferId};

use crate::cell::CpuEnd;
use crate::cpu::Snapshot;
use crate::endpoint::{Kind, Mark, NAP, PATIENCE};
use crate::level::msg;
use crate::payload::{Reader, Writer};
use crate::plan::{Details, End, Outcome, Part, Plan, Test};
use crate::test::{monotonic_ns, thread_seconds, unexpected, whole};

/// Long messages under way to or from one peer at a time.
const BUFFERS: usize = 2;

/// Peers that have been let go may take so long to leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// Which end of a test the hub is.
pub fn end(test: Test) -> End {
    if test == Test::Fanout { End::Source } else { End::Target }
}

/// What the port of end number `spoke` is called.
pub fn name(end: End, spoke: u32) -> String {
    format!("{end}-{spoke}")
}

/// Plays the hub of so many connections, and tells by `listening` where it may be connected to; an outcome for each.
pub fn run(
    plan: &Plan,
    core: Option<u32>,
    connections: u32,
    listening: impl FnOnce(String),
) -> Result<Vec<Outcome>> {
    let end = end(plan.test);
    let mut port = msg::open(plan, Some(&end.to_string()))?;
    let mut peers = HashMap::new();
    match end {
        End::Target => {
            listening(format!("localhost/{end}"));
            for peer in msg::await_connected(&mut port, connections)? {
                let info = port.peer_info(peer).context("a peer is gone already")?;
                let number =
                    (0..connections).find(|spoke| *info.port() == PortName::Name(name(End::Source, *spoke)));
                peers.insert(number.context("a stranger has connected")?, peer);
            }
        }
        End::Source => {
            for spoke in 0..connections {
                let address = format!("localhost/{}", name(End::Target, spoke));
                let peer = port.connect(&address.parse()?, PATIENCE).context("cannot connect to a peer")?;
                peers.insert(spoke, peer);
            }
        }
    }
    let mut hub = Hub::new(plan, end, port, connections, &peers)?;
    let (before, cpu_before) = (Snapshot::take(core), thread_seconds());
    match end {
        End::Target => hub.receive_from_all()?,
        End::Source => hub.send_to_all()?,
    }
    let (after, cpu_seconds) = (Snapshot::take(core), thread_seconds() - cpu_before);
    let whole = before.until(&after);
    let cpu = CpuEnd { attributed: whole.attributed.map(|share| share / f64::from(connections)), ..whole };
    let outcomes = hub.outcomes(&cpu, cpu_seconds, &before.disturbed_since(&after));
    hub.part();
    Ok(outcomes)
}

struct Hub<'a> {
    plan: &'a Plan,
    port: Port,
    spokes: Vec<Spoke>,
    numbers: HashMap<Peer, usize>,
    transfers: HashMap<TransferId, usize>,
    sent_length: usize,
    received_length: usize,
    moved: Instant,
    began_ns: u64,
}

/// One connection.
struct Spoke {
    peer: Peer,
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
    blocks: Vec<Part>,
    is_finished: bool,
}

impl<'a> Hub<'a> {
    fn new(
        plan: &'a Plan,
        end: End,
        mut port: Port,
        connections: u32,
        peers: &HashMap<u32, Peer>,
    ) -> Result<Self> {
        let lengths = plan.lengths(0);
        let (sent_length, received_length) = (lengths.sent_by(end), lengths.received_by(end));
        let mut spokes = Vec::new();
        for number in 0..connections {
            let peer = *peers.get(&number).with_context(|| format!("peer {number} has not connected"))?;
            if received_length > FRAGMENT_BYTES {
                for _ in 0..2 * BUFFERS {
                    let posted = port.post_receive(Priority::Low, vec![0; received_length]);
                    posted.map_err(|_| anyhow!("no receive token for the test's own buffers"))?;
                }
            }
            let long = if sent_length > FRAGMENT_BYTES { BUFFERS } else { 0 };
            spokes.push(Spoke {
                peer,
                reader: Reader::new(plan.verify, true),
                writer: Writer::default(),
                due: VecDeque::new(),
                short: vec![0; sent_length.min(FRAGMENT_BYTES)],
                is_written: false,
                free: (0..long).map(|_| vec![0; sent_length]).collect(),
                unsent: None,
                stop_ns: None,
                part: Part::default(),
                blocks: Vec::new(),
                is_finished: false,
            });
        }
        let numbers = spokes.iter().enumerate().map(|(number, spoke)| (spoke.peer, number)).collect();
        Ok(Self {
            plan,
            port,
            spokes,
            numbers,
            transfers: HashMap::new(),
            sent_length,
            received_length,
            moved: Instant::now(),
            began_ns: monotonic_ns(),
        })
    }

    fn receive_from_all(&mut self) -> Result<()> {
        let hotspot = self.plan.test == Test::Hotspot;
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
            }
            match mark.kind() {
                Kind::Begin => {
                    *part = Part { began_ns: monotonic_ns(), ..Part::default() };
                    spoke.due.push_back(Mark::new(Kind::Begun, mark.tag()));
                }
                Kind::Data if hotspot => {
                    part.sent_bytes += self.sent_length as u64;
                    spoke.due.push_back(mark);
                }
                Kind::Data => {}
                Kind::End => {
                    spoke.complete();
                    spoke.due.push_back(Mark::new(Kind::Ended, mark.tag()));
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
            let spoke = &mut self.spokes[number];
            match mark.kind() {
                Kind::Begun => {
                    let now_ns = monotonic_ns();
                    spoke.part = Part { began_ns: now_ns, ..Part::default() };
                    spoke.stop_ns = Some(now_ns + self.plan.block_us * 1000);
                }
                Kind::Ended => {
                    spoke.complete();
                    spoke.due.push_back(Mark::new(Kind::Finish, 0));
                }
                Kind::Finished => spoke.is_finished = true,
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
            ensure!(self.moved.elapsed() < PATIENCE, "nothing has moved for {} s", PATIENCE.as_secs());
            return Ok(None);
        };
        self.moved = Instant::now();
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
                let number = self.numbers.get(&peer);
                let has_left = number.is_some_and(|&number| self.spokes[number].is_finished);
                ensure!(has_left, "a peer closed its connection in the middle of the test");
                Ok(None)
            }
            Event::BufferNeeded { length_bytes, .. } => {
                bail!("no buffer for a message of {length_bytes} bytes")
            }
            _ => Ok(None),
        }
    }

    /// Sends what is due to one peer, as far as there is room; true where anything went.
    fn flush(&mut self, number: usize) -> Result<bool> {
        let spoke = &mut self.spokes[number];
        let mut has_sent = false;
        while let Some(&mark) = spoke.due.front() {
            if self.sent_length <= FRAGMENT_BYTES {
                if !std::mem::replace(&mut spoke.is_written, true) {
                    spoke.writer.fill(&mut spoke.short, mark);
                }
                match self.port.send(spoke.peer, Priority::Low, &spoke.short) {
                    Ok(()) => spoke.is_written = false,
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            } else {
                let Some(buffer) = spoke.written(mark) else { break };
                match self.port.send_buffer(spoke.peer, Priority::Low, buffer, Confirm::Copied) {
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

    /// Waits for the others to leave: what was sent to them last would be gone with this port.
    fn part(mut self) {
        let until = Instant::now() + FAREWELL;
        let mut left = 0;
        while left < self.spokes.len() && Instant::now() < until {
            match self.port.wait(Some(Duration::from_millis(50))) {
                Ok(Some(Event::Disconnected { .. })) => left += 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Each connection's own; of the one thread's time everyone has had the same share.
    fn outcomes(&mut self, cpu: &CpuEnd, cpu_seconds: f64, disturbed: &[String]) -> Vec<Outcome> {
        let connections = self.spokes.len();
        let span_seconds = (monotonic_ns() - self.began_ns) as f64 * 1e-9;
        let mut details = Details::new();
        details.insert("sleeps".into(), self.port.statistics().sleeps.into());
        details.insert("peers_of_one_port".into(), connections.into());
        let outcome = |spoke: &mut Spoke| {
            let mut blocks = std::mem::take(&mut spoke.blocks);
            let shares = (connections * blocks.len().max(1)) as f64;
            for part in &mut blocks {
                part.cpu_seconds = cpu_seconds / shares;
                part.disturbed = disturbed.to_vec();
            }
            Outcome {
                end: end(self.plan.test),
                blocks,
                warmup: Vec::new(),
                round_trips: Vec::new(),
                cpu: cpu.clone(),
                cpu_seconds: span_seconds,
                details: details.clone(),
            }
        };
        self.spokes.iter_mut().map(outcome).collect()
    }
}

impl Spoke {
    fn complete(&mut self) {
        let mut part = std::mem::take(&mut self.part);
        part.seconds = monotonic_ns().saturating_sub(part.began_ns) as f64 * 1e-9;
        self.blocks.push(part);
    }

    /// The next long message, if there is memory for it.
    fn written(&mut self, mark: Mark) -> Option<Vec<u8>> {
        self.unsent.take().or_else(|| {
            let mut buffer = self.free.pop()?;
            self.writer.fill(&mut buffer, mark);
            Some(buffer)
        })
    }
}
