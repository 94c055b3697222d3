//! The message layer: two ports with their defaults, and idle peers connected to both.
//!
//! Lane 0 is low priority, lane 1 high; both belong to one port. Messages of up to a fragment are sent by
//! `Port::send`, longer ones by `Port::send_buffer`, lent ones from a heap shared with the peer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bywire::{
    Confirm, Event, FRAGMENT_BYTES, Heap, LendBuffer, LendError, Message, Peer, Port, PortName, PortOptions,
    Priority, Reach, SendError, TransferId,
};

use super::{Transport, gone};
use crate::endpoint::{Endpoint, Interest, Mark, NAP, Received, TIMEOUT};
use crate::fabric_pair::node_name;
use crate::payload::{Reader, Writer};
use crate::plan::{Details, End, Plan};
use crate::scratch_directory::directory;

/// Idle peers in shared memory that stay connected to either end unless the plan says otherwise.
const IDLE_PEERS: u32 = 16;
/// Long messages to or from a peer that are under way at a time: one fills while the other travels.
pub(crate) const BUFFERS: usize = 2;
/// Up to here a payload lies in the event itself, and there is no memory to give back.
const INLINE_BYTES: usize = 56;
/// Characters of the cookie in the name of a port.
const COOKIE_SHOWN: usize = 12;
/// Blocks of the heap that lent messages come from.
const BLOCKS: u32 = 4;
const PRIORITIES: [Priority; 2] = [Priority::Low, Priority::High];

/// The message layer.
pub struct Msg;

/// One lane of a port.
pub struct MsgEnd {
    state: Rc<RefCell<State>>,
    outbox: Outbox,
    spin: bool,
}

/// The next message to a peer.
pub(crate) struct Outbox {
    priority: Priority,
    writer: Writer,
    next: Next,
    is_filled: bool,
    /// The transfer of the last long message.
    pub(crate) transfer: Option<TransferId>,
}

enum Next {
    Short(Vec<u8>),
    /// A long message has memory of its own. `None` while all memory is under way.
    Long(Option<Vec<u8>>),
    Lent(Option<LendBuffer>),
}

struct State {
    port: Port,
    peer: Peer,
    readers: [Reader; 2],
    /// Messages that have arrived and been read, by lane.
    inbox: [VecDeque<Received>; 2],
    /// Memory of long messages that is free again.
    free: Vec<Vec<u8>>,
    heap: Option<Heap>,
    /// The port has said that there is room, by lane.
    room: [bool; 2],
    _idle: Vec<Port>,
}

/// The port name of an end with this number.
pub fn peer_name(end: End, peer_number: u32) -> String {
    format!("{end}-{peer_number}")
}

/// The name of an end's only port. A node serves several pairs one after another, so its ports have the pair's cookie.
fn port_name(plan: &Plan, end: End) -> String {
    match plan.request.joins_nodes() {
        true => format!("{end}-{}", &plan.cookie[..COOKIE_SHOWN]),
        false => end.to_string(),
    }
}

/// The name of this process's own port, which may be one of several peers of the other end's.
fn own_name(plan: &Plan, end: End) -> String {
    plan.peer_number.map_or_else(|| port_name(plan, end), |number| peer_name(end, number))
}

fn address(plan: &Plan, end: End, name: &str) -> String {
    let node = plan.runtime_directories.as_ref().map_or("localhost".to_owned(), |_| node_name(end));
    format!("{node}/{name}")
}

impl Transport for Msg {
    type Listener = Port;
    type Endpoint = MsgEnd;

    fn listen(plan: &Plan) -> Result<(Port, String)> {
        let name = own_name(plan, End::Target);
        let port = open(plan, End::Target, Some(&name))?;
        // Another machine's node has a name of its own.
        let address = match plan.request.joins_nodes() {
            true => port.address().to_string(),
            false => address(plan, End::Target, &name),
        };
        Ok((port, address))
    }

    fn accept(mut port: Port, plan: &Plan) -> Result<Vec<MsgEnd>> {
        let peers = await_connected(&mut port, 1 + idle_peers(plan))?;
        let source = port_name(plan, End::Source);
        let is_source = |peer: &Peer| {
            port.peer_info(*peer).is_some_and(|info| *info.port() == PortName::Name(source.clone()))
        };
        let peer = *peers.iter().find(|peer| is_source(peer)).context("the source has not connected")?;
        let idle = open_idle(plan, End::Target)?;
        ends(plan, End::Target, port, peer, idle)
    }

    fn connect(plan: &Plan, address: &str) -> Result<Vec<MsgEnd>> {
        let mut port = open(plan, End::Source, Some(&own_name(plan, End::Source)))?;
        let peer = port.connect(&address.parse()?, TIMEOUT).context("cannot connect to the target's port")?;
        let idle = open_idle(plan, End::Source)?;
        await_connected(&mut port, idle_peers(plan))?;
        ends(plan, End::Source, port, peer, idle)
    }
}

pub(crate) fn idle_peers(plan: &Plan) -> u32 {
    plan.request.nodes.unwrap_or(if plan.request.joins_nodes() { 0 } else { IDLE_PEERS })
}

pub(crate) fn open(plan: &Plan, end: End, name: Option<&str>) -> Result<Port> {
    let defaults = PortOptions::default();
    let joins_nodes = plan.request.joins_nodes();
    // The node of this machine is where ports look for it by themselves.
    let of_node = plan.runtime_directories.as_ref().map(|nodes| nodes.of(end).to_owned());
    let options = PortOptions {
        name: name.map(str::parse).transpose()?,
        integrity: plan.request.integrity.unwrap_or(defaults.integrity),
        runtime_directory: of_node.or_else(|| (!joins_nodes).then(|| directory(&plan.cookie))),
        reach: if joins_nodes { Reach::Fabric } else { defaults.reach },
        spin: if plan.sleep { Duration::ZERO } else { defaults.spin },
        ..defaults
    };
    Port::open(options).context("cannot open a port")
}

/// Idle peers at `end`, connected to the other one.
fn open_idle(plan: &Plan, end: End) -> Result<Vec<Port>> {
    let other = if end == End::Source { End::Target } else { End::Source };
    let address = address(plan, other, &port_name(plan, other)).parse()?;
    (0..idle_peers(plan))
        .map(|_| {
            let mut port = open(plan, end, None)?;
            port.connect(&address, TIMEOUT).context("an idle peer cannot connect")?;
            Ok(port)
        })
        .collect()
}

fn await_connected(port: &mut Port, count: u32) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    let started = Instant::now();
    while (peers.len() as u32) < count {
        match port.wait(Some(TIMEOUT))? {
            Some(Event::Connected(peer)) => peers.push(peer),
            Some(other) => bail!("{other:?} before the pair was complete"),
            None if started.elapsed() > TIMEOUT => {
                bail!("the peers have not connected for {} s", TIMEOUT.as_secs())
            }
            None => {}
        }
    }
    Ok(peers)
}

/// Gives the port memory for `count` messages at a time, if they are long.
pub(crate) fn post_receives(port: &mut Port, priority: Priority, length: usize, count: usize) -> Result<()> {
    let posts = if length > FRAGMENT_BYTES { count } else { 0 };
    for _ in 0..posts {
        let posted = port.post_receive(priority, vec![0; length]);
        posted.map_err(|_| anyhow!("no receive token for the test's own buffers"))?;
    }
    Ok(())
}

/// Gives the port back the memory of a message that has been read.
#[inline(never)]
pub(crate) fn give_back(port: &mut Port, message: Message) {
    if message.payload.len() <= FRAGMENT_BYTES {
        port.recycle(message.payload);
    } else if let Some(buffer) = message.payload.into_buffer() {
        let _surplus = port.post_receive(message.priority, buffer);
    }
}

fn ends(plan: &Plan, end: End, mut port: Port, peer: Peer, idle: Vec<Port>) -> Result<Vec<MsgEnd>> {
    let lengths = |lane| plan.lengths(lane);
    let lanes: Vec<(usize, Priority)> = PRIORITIES.into_iter().enumerate().take(plan.lanes()).collect();
    for &(lane, priority) in &lanes {
        post_receives(&mut port, priority, lengths(lane).received_by(end), 2 * BUFFERS)?;
    }
    let longest = lanes.iter().map(|&(lane, _)| lengths(lane).sent_by(end)).max().unwrap_or(0);
    let state = State {
        peer,
        readers: [Reader::of(plan, true), Reader::of(plan, true)],
        inbox: Default::default(),
        free: Vec::new(),
        heap: plan.request.lent.then(|| port.heap(peer, longest.max(64), BLOCKS)).transpose()?,
        room: [false; 2],
        port,
        _idle: idle,
    };
    let state = Rc::new(RefCell::new(state));
    let end_of = |(lane, priority)| {
        let (length, lent) = (lengths(lane).sent_by(end), plan.request.lent);
        let outbox = Outbox::new(plan, priority, length, lent, &mut state.borrow_mut().free);
        MsgEnd { state: state.clone(), outbox, spin: plan.spin }
    };
    Ok(lanes.into_iter().map(end_of).collect())
}

impl State {
    /// Reads a short message for `lane` in place, because moving it costs more than reading it.
    #[inline(always)]
    fn glance(&mut self, event: &Option<Event>, lane: usize) -> Result<Option<Received>> {
        match event {
            Some(Event::Message(message))
                if message.payload.len() <= INLINE_BYTES
                    && message.priority as usize == lane
                    && self.inbox[lane].is_empty() =>
            {
                self.readers[lane].read(&message.payload).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Handles an event. Returns the oldest unread message of `lane`.
    #[inline(always)]
    fn take(&mut self, event: Event, lane: usize) -> Result<Option<Received>> {
        let Event::Message(message) = &event else { return self.take_other(event, lane) };
        let came_on = message.priority as usize;
        let received = self.readers[came_on].read(&message.payload)?;
        if message.payload.len() > INLINE_BYTES
            && let Event::Message(message) = event
        {
            give_back(&mut self.port, message);
        }
        if came_on == lane && self.inbox[lane].is_empty() {
            return Ok(Some(received));
        }
        self.inbox[came_on].push_back(received);
        Ok(self.inbox[lane].pop_front())
    }

    /// Keeps a message until it is asked for.
    fn keep(&mut self, event: Event, lane: usize) -> Result<()> {
        if let Some(received) = self.take(event, lane)? {
            self.inbox[lane].push_front(received);
        }
        Ok(())
    }

    /// Polls for a message for `lane`, for about [`NAP`].
    #[inline(always)]
    fn poll_for(&mut self, lane: usize) -> Result<Option<Received>> {
        let mut started = None;
        loop {
            // Looking at the clock costs about as much as a message.
            for _ in 0..1_000_000 {
                let event = self.port.poll();
                if event.is_none() {
                    continue;
                }
                if let Some(received) = self.glance(&event, lane)? {
                    return Ok(Some(received));
                }
                if let Some(event) = event
                    && let Some(received) = self.take(event, lane)?
                {
                    return Ok(Some(received));
                }
            }
            if started.get_or_insert_with(Instant::now).elapsed() >= NAP {
                return Ok(None);
            }
        }
    }

    #[inline(never)]
    fn take_other(&mut self, event: Event, lane: usize) -> Result<Option<Received>> {
        match event {
            Event::Lent(lent) => {
                let lane = lent.priority as usize;
                // SAFETY: the peer is the other end of this very measurement, and writes to a block only
                // after it has come back.
                let received = self.readers[lane].read(unsafe { lent.as_slice() })?;
                self.inbox[lane].push_back(received);
            }
            Event::Sent { buffer, result, .. } => {
                result?;
                self.free.push(buffer.into_vec());
            }
            Event::Disconnected { peer, .. } if peer == self.peer => return Err(gone()),
            Event::BufferNeeded { length_bytes, .. } => {
                bail!("no buffer for a message of {length_bytes} bytes")
            }
            Event::Room { priority, .. } => self.room[priority as usize] = true,
            // Idle peers come and go.
            _ => {}
        }
        Ok(self.inbox[lane].pop_front())
    }
}

impl Outbox {
    /// An outbox for messages of `length` bytes, which may be lent. Memory for long ones goes to `free`.
    pub(crate) fn new(
        plan: &Plan,
        priority: Priority,
        length: usize,
        is_lent: bool,
        free: &mut Vec<Vec<u8>>,
    ) -> Self {
        let next = if is_lent {
            Next::Lent(None)
        } else if length <= FRAGMENT_BYTES {
            Next::Short(vec![0; FRAGMENT_BYTES])
        } else {
            free.extend((0..BUFFERS).map(|_| vec![0; length]));
            Next::Long(None)
        };
        Self { priority, writer: Writer::of(plan), next, is_filled: false, transfer: None }
    }

    /// Writes the next message, unless it is written. Returns whether there is memory for it.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        length: usize,
        mark: Mark,
        free: &mut Vec<Vec<u8>>,
        heap: Option<&Heap>,
    ) -> bool {
        if self.is_filled {
            return true;
        }
        match &mut self.next {
            Next::Short(bytes) => self.writer.fill(&mut bytes[..length], mark),
            Next::Long(place) => {
                let index = free.iter().position(|buffer| buffer.len() == length);
                let Some(index) = index else { return false };
                let buffer = place.insert(free.swap_remove(index));
                self.writer.fill(buffer, mark);
            }
            Next::Lent(place) => {
                let Some(block) = heap.and_then(Heap::block) else { return false };
                self.writer.fill(&mut place.insert(block)[..length], mark);
            }
        }
        self.is_filled = true;
        true
    }

    /// Returns whether another try is worthwhile. The port reports room only once.
    fn has_room(&self, state: &mut State) -> bool {
        let told = std::mem::take(&mut state.room[self.priority as usize]);
        match &self.next {
            Next::Long(None) => !state.free.is_empty(),
            Next::Lent(None) => told || state.heap.as_ref().and_then(Heap::block).is_some(),
            _ => told,
        }
    }

    /// Sends the message that has been written. Returns whether there was room for it.
    #[inline(always)]
    pub(crate) fn submit(&mut self, length: usize, port: &mut Port, peer: Peer) -> Result<bool> {
        let is_sent = match &mut self.next {
            Next::Short(bytes) => match port.send(peer, self.priority, &bytes[..length]) {
                Ok(()) => true,
                Err(SendError::Full) => false,
                Err(error) => return Err(error.into()),
            },
            Next::Long(place) => {
                let buffer = place.take().context("a long message that was never written")?;
                match port.send_buffer(peer, self.priority, buffer, Confirm::Copied) {
                    Ok(id) => self.transfer = Some(id),
                    Err(unsent) if unsent.error == SendError::NoToken => {
                        *place = Some(unsent.buffer.into_vec());
                    }
                    Err(unsent) => return Err(unsent.error.into()),
                }
                place.is_none()
            }
            Next::Lent(place) => {
                let block = place.take().context("a lent message that was never written")?;
                match port.send_lent(self.priority, block, length) {
                    Ok(()) => {}
                    Err((LendError::Send(SendError::Full), block)) => *place = Some(block),
                    Err((error, _)) => return Err(error.into()),
                }
                place.is_none()
            }
        };
        self.is_filled = !is_sent;
        Ok(is_sent)
    }
}

impl Endpoint for MsgEnd {
    #[inline(always)]
    fn try_send(&mut self, length: usize, mark: Mark) -> Result<bool> {
        let Self { state, outbox, .. } = self;
        let state = &mut *state.borrow_mut();
        if outbox.fill(length, mark, &mut state.free, state.heap.as_ref())
            && outbox.submit(length, &mut state.port, state.peer)?
        {
            return Ok(true);
        }
        // Polling advances transfers.
        if let Some(event) = state.port.poll() {
            state.keep(event, outbox.priority as usize)?;
        }
        Ok(false)
    }

    #[inline(always)]
    fn try_receive(&mut self) -> Result<Option<Received>> {
        let state = &mut *self.state.borrow_mut();
        let lane = self.outbox.priority as usize;
        if let Some(received) = state.inbox[lane].pop_front() {
            return Ok(Some(received));
        }
        match state.port.poll() {
            Some(event) => state.take(event, lane),
            None => Ok(None),
        }
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<Option<Received>> {
        let state = &mut *self.state.borrow_mut();
        let lane = self.outbox.priority as usize;
        if let Some(received) = state.inbox[lane].pop_front() {
            return Ok(Some(received));
        }
        if self.spin {
            return state.poll_for(lane);
        }
        loop {
            let event = state.port.wait(Some(NAP))?;
            if let Some(received) = state.glance(&event, lane)? {
                return Ok(Some(received));
            }
            let Some(event) = event else { return Ok(None) };
            if let Some(received) = state.take(event, lane)? {
                return Ok(Some(received));
            }
        }
    }

    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<()> {
        let state = &mut *self.state.borrow_mut();
        let lane = self.outbox.priority as usize;
        let has_come = interest != Interest::Send && !state.inbox[lane].is_empty();
        let has_room = interest != Interest::Receive && self.outbox.has_room(state);
        if self.spin || has_come || has_room {
            std::hint::spin_loop();
            return Ok(());
        }
        // A block that comes back makes no event.
        let is_exhausted = matches!(self.outbox.next, Next::Lent(None)) && interest != Interest::Receive;
        let timeout = if is_exhausted { timeout.min(Duration::from_millis(1)) } else { timeout };
        match state.port.wait(Some(timeout))? {
            Some(event) => state.keep(event, lane),
            None => Ok(()),
        }
    }

    fn spins(&self) -> bool {
        self.spin
    }

    fn details(&self) -> Details {
        let mut details = Details::default();
        details.insert("sleeps".into(), self.state.borrow().port.statistics().sleeps.into());
        details.insert("idle_peers".into(), self.state.borrow()._idle.len().into());
        details.insert("lent".into(), matches!(self.outbox.next, Next::Lent(_)).into());
        details
    }
}
