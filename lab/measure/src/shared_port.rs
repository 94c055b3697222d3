//! Several connections of the message layer at one port with many peers, in one thread, as programs use it.
//!
//! The shared port receives from all others (`streams`, `hotspot`, `fanin`) or sends to them (`fanout`). At the other end of
//! each connection is a process with the test's usual end. It goes through the same blocks.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire::{Event, Peer, Port, PortName, Priority, TransferId};
use bywire_results::cell::CpuEnd;

use crate::block_progress::BlockProgress;
use crate::clock::monotonic_ns;
use crate::cpu::Snapshot;
use crate::disturbance;
use crate::endpoint::{Kind, Mark, NAP, TIMEOUT};
use crate::payload::Reader;
use crate::plan::{Details, End, Outcome, Part, Plan, Test};
use crate::transport::msg::{self, BUFFERS, Outbox, give_back, peer_name, post_receives};
use crate::workload::block_loop::{idle_deadline_ns, stride, unexpected, whole};

/// How long to wait for peers to leave at the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// Which end of a test the shared port is.
pub fn end(test: Test) -> End {
    if test == Test::Fanout { End::Source } else { End::Target }
}

/// Plays the shared port of `connections`, and reports its address by `listening`. Returns an outcome for each connection.
pub fn run(
    plan: &Plan,
    core: Option<u32>,
    connections: u32,
    listening: impl FnOnce(String),
) -> Result<Vec<Outcome>> {
    let end = end(plan.test);
    let port = msg::open(plan, end, Some(&end.to_string()))?;
    let mut shared_port = SharedPort::new(plan, end, core, port, connections)?;
    match end {
        End::Target => {
            listening(format!("localhost/{end}"));
            shared_port.receive_from_all()?;
            let outcomes = shared_port.outcomes()?;
            shared_port.wait_for_all_to_leave();
            Ok(outcomes)
        }
        End::Source => {
            shared_port.connect_to_all()?;
            shared_port.send_to_all()?;
            shared_port.outcomes()
        }
    }
}

struct SharedPort<'a> {
    plan: &'a Plan,
    port: Port,
    slots: Vec<Slot>,
    numbers: HashMap<Peer, usize>,
    transfers: HashMap<TransferId, usize>,
    sent_length: usize,
    received_length: usize,
    moved_ns: u64,
    core: Option<u32>,
    /// The CPU accounts at the beginning of the first block and at the end of the last.
    accounts: [Option<Snapshot>; 2],
}

struct Slot {
    peer: Option<Peer>,
    has_left: bool,
    reader: Reader,
    due: VecDeque<Mark>,
    outbox: Outbox,
    free: Vec<Vec<u8>>,
    /// When to end its block. Absent while it does not send one.
    stop_ns: Option<u64>,
    part: Part,
    progress: BlockProgress,
    blocks: Vec<Part>,
    is_finished: bool,
}

impl<'a> SharedPort<'a> {
    fn new(plan: &'a Plan, end: End, core: Option<u32>, mut port: Port, connections: u32) -> Result<Self> {
        let lengths = plan.lengths(0);
        let (sent_length, received_length) = (lengths.sent_by(end), lengths.received_by(end));
        post_receives(&mut port, Priority::Low, received_length, 2 * BUFFERS * connections as usize)?;
        let slot = |_| {
            let mut free = Vec::new();
            Slot {
                peer: None,
                has_left: false,
                reader: Reader::of(plan, true),
                due: VecDeque::new(),
                outbox: Outbox::new(plan, Priority::Low, sent_length, false, &mut free),
                free,
                stop_ns: None,
                part: Part::default(),
                progress: BlockProgress::new(plan),
                blocks: Vec::new(),
                is_finished: false,
            }
        };
        Ok(Self {
            plan,
            port,
            slots: (0..connections).map(slot).collect(),
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
        for number in 0..self.slots.len() {
            let address = format!("localhost/{}", peer_name(End::Target, number as u32));
            let peer = self.port.connect(&address.parse()?, TIMEOUT).context("cannot connect to a peer")?;
            self.join(number, peer);
        }
        Ok(())
    }

    fn join(&mut self, number: usize, peer: Peer) {
        self.slots[number].peer = Some(peer);
        self.numbers.insert(peer, number);
    }

    /// Finds the connection of a new peer.
    fn admit(&mut self, peer: Peer) -> Result<()> {
        let info = self.port.peer_info(peer).context("a peer is gone already")?;
        let is_it = |number: &usize| *info.port() == PortName::Name(peer_name(End::Source, *number as u32));
        let number = (0..self.slots.len()).find(is_it);
        self.join(number.context("a port that does not belong to the test has connected")?, peer);
        Ok(())
    }

    /// Begins a block. The accounts begin with the first one.
    fn begin(&mut self, number: usize) {
        self.accounts[0].get_or_insert_with(|| Snapshot::take(self.core));
        self.slots[number].part = Part { began_ns: monotonic_ns(), ..Part::default() };
        self.slots[number].progress = BlockProgress::new(self.plan);
    }

    /// Ends a block. The accounts end with the last one.
    fn complete(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let mut part = std::mem::take(&mut slot.part);
        part.seconds = monotonic_ns().saturating_sub(part.began_ns) as f64 * 1e-9;
        part.notes = std::mem::replace(&mut slot.progress, BlockProgress::new(self.plan)).into_notes();
        slot.blocks.push(part);
        if self.slots.iter().all(|slot| !slot.blocks.is_empty()) {
            self.accounts[1] = Some(Snapshot::take(self.core));
        }
    }

    fn receive_from_all(&mut self) -> Result<()> {
        let hotspot = self.plan.test == Test::Hotspot;
        let stride = stride(self.received_length);
        while !self.slots.iter().all(|slot| slot.is_finished && slot.due.is_empty()) {
            let Some((number, mark)) = self.next(true)? else {
                // There may be room for due messages now.
                for number in 0..self.slots.len() {
                    self.flush(number)?;
                }
                continue;
            };
            let slot = &mut self.slots[number];
            let part = &mut slot.part;
            let is_payload = mark.kind() == Kind::Data || (mark.kind() == Kind::End && !hotspot);
            if is_payload {
                part.operations += 1;
                part.received_bytes += self.received_length as u64;
                // In a hotspot, the clients' own accounts count.
                if !hotspot && part.operations.is_multiple_of(stride) {
                    slot.progress.note(monotonic_ns() - part.began_ns, part.operations);
                }
            }
            match mark.kind() {
                Kind::Begin => {
                    self.begin(number);
                    self.slots[number].due.push_back(Mark::new(Kind::Begun, mark.tag()));
                }
                Kind::Data if hotspot => {
                    part.sent_bytes += self.sent_length as u64;
                    slot.due.push_back(mark);
                }
                Kind::Data => {}
                Kind::End => {
                    self.complete(number);
                    self.slots[number].due.push_back(Mark::new(Kind::Ended, mark.tag()));
                }
                Kind::Finish => {
                    slot.is_finished = true;
                    slot.due.push_back(Mark::new(Kind::Finished, 0));
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
        for slot in &mut self.slots {
            slot.due.push_back(Mark::new(Kind::Begin, 0));
        }
        let mut unready = self.slots.len();
        while !self.slots.iter().all(|slot| slot.is_finished) {
            let now_ns = monotonic_ns();
            let mut has_sent = false;
            for number in 0..self.slots.len() {
                let slot = &mut self.slots[number];
                if let Some(stop_ns) = slot.stop_ns.filter(|_| slot.due.is_empty()) {
                    let is_over = now_ns >= stop_ns;
                    slot.due.push_back(if is_over { Mark::new(Kind::End, 0) } else { Mark::DATA });
                    slot.stop_ns = slot.stop_ns.filter(|_| !is_over);
                }
                has_sent |= self.flush(number)?;
            }
            let Some((number, mark)) = self.next(!has_sent)? else { continue };
            match mark.kind() {
                Kind::Begun => {
                    unready = unready.checked_sub(1).with_context(|| unexpected(mark))?;
                    // Peers that share a core answer one after the other. A peer that began at once might end before
                    // the last one begins, so all begin at one moment, to end at one moment.
                    let stop_ns = monotonic_ns() + self.plan.block_us * 1000;
                    for number in (0..self.slots.len()).filter(|_| unready == 0) {
                        self.begin(number);
                        self.slots[number].stop_ns = Some(stop_ns);
                    }
                }
                Kind::Ended => {
                    self.complete(number);
                    self.slots[number].due.push_back(Mark::new(Kind::Finish, 0));
                }
                Kind::Finished => self.slots[number].is_finished = true,
                _ => bail!(unexpected(mark)),
            }
        }
        Ok(())
    }

    /// The next message and the number of its connection. Without one, the port waits if `may_wait`.
    fn next(&mut self, may_wait: bool) -> Result<Option<(usize, Mark)>> {
        let event = match may_wait && !self.plan.spin {
            true => self.port.wait(Some(NAP))?,
            false => self.port.poll(),
        };
        let Some(event) = event else {
            let is_in_time = monotonic_ns() < idle_deadline_ns(self.plan, self.moved_ns);
            ensure!(is_in_time, "nothing has moved for {} s", TIMEOUT.as_secs());
            return Ok(None);
        };
        self.moved_ns = monotonic_ns();
        match event {
            Event::Message(message) => {
                let number = self.numbers.get(&message.peer);
                let number = *number.context("a port that does not belong to the test sent a message")?;
                let received = self.slots[number].reader.read(&message.payload)?;
                whole(&received, self.received_length)?;
                give_back(&mut self.port, message);
                Ok(Some((number, received.mark)))
            }
            Event::Sent { id, buffer, result } => {
                result?;
                if let Some(number) = self.transfers.remove(&id) {
                    self.slots[number].free.push(buffer.into_vec());
                }
                Ok(None)
            }
            Event::Disconnected { peer, .. } => {
                let number = self.numbers.get(&peer);
                let number = number.context("a port that does not belong to the test has left")?;
                let slot = &mut self.slots[*number];
                ensure!(slot.is_finished, "a peer closed its connection in the middle of the test");
                slot.has_left = true;
                Ok(None)
            }
            Event::Connected(peer) => self.admit(peer).map(|()| None),
            Event::BufferNeeded { length_bytes, .. } => {
                bail!("no buffer for a message of {length_bytes} bytes")
            }
            _ => Ok(None),
        }
    }

    /// Sends due messages to one peer while there is room. Returns true if it sent any.
    fn flush(&mut self, number: usize) -> Result<bool> {
        let slot = &mut self.slots[number];
        let Some(peer) = slot.peer else { return Ok(false) };
        let mut has_sent = false;
        while let Some(&mark) = slot.due.front()
            && slot.outbox.fill(self.sent_length, mark, &mut slot.free, None)
            && slot.outbox.submit(self.sent_length, &mut self.port, peer)?
        {
            self.transfers.extend(slot.outbox.transfer.take().map(|id| (id, number)));
            slot.due.pop_front();
            has_sent = true;
            let is_payload = matches!(mark.kind(), Kind::Data | Kind::End);
            if is_payload && self.plan.test == Test::Fanout {
                slot.part.operations += 1;
                slot.part.sent_bytes += self.sent_length as u64;
            }
        }
        Ok(has_sent)
    }

    /// Waits for all peers to leave. Dropping the port earlier would lose the last messages to them.
    fn wait_for_all_to_leave(mut self) {
        let until = Instant::now() + FAREWELL;
        while !self.slots.iter().all(|slot| slot.has_left) && Instant::now() < until {
            if self.next(true).is_err() {
                return;
            }
        }
    }

    /// The outcome of each connection. The thread's CPU time is divided evenly.
    fn outcomes(&mut self) -> Result<Vec<Outcome>> {
        let [Some(before), Some(after)] = &self.accounts else { bail!("no block was begun and ended") };
        let connections = self.slots.len();
        let whole = before.until(after);
        let cpu = CpuEnd { attributed: whole.attributed.map(|share| share / connections as f64), ..whole };
        let disturbed = disturbance::reasons(before, after);
        let cpu_seconds = after.thread_seconds_since(before);
        let span_seconds = before.lost_until(after).wall_seconds;
        let mut details = Details::default();
        details.insert("sleeps".into(), self.port.statistics().sleeps.into());
        details.insert("peers_of_one_port".into(), connections.into());
        let outcome = |slot: &mut Slot| {
            let mut blocks = std::mem::take(&mut slot.blocks);
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
        Ok(self.slots.iter_mut().map(outcome).collect())
    }
}
