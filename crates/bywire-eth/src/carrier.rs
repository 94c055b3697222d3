//! The loop that carries frames from one TAP device's queue straight into another's.
//!
//! It sleeps until something can be read, reads up to a bound from each interface, and sleeps again when nothing is
//! left. There is no timer for merging: a frame waits to be merged only while there are more frames to read. A burst
//! costs one wake-up.

use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bywire_sys::clock;
use bywire_sys::poller::Poller;
use bywire_sys::socket::Socket;
use bywire_sys::spin::Spin;
use bywire_sys::tap::Queue;

use crate::address::MacAddress;
use crate::backlog::HOLD_BACK_MS;
use crate::capture::{self, CaptureSender};
use crate::checksum;
use crate::confinement;
use crate::drops::Cause;
use crate::fabric::{Arrival, Content, Fabric};
use crate::frame::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use crate::gather::{BATCH_FRAMES, Gatherer, MERGED_BYTES_MAX, Taken};
use crate::merge::Merger;
use crate::offload::{self, Descriptor, VnetHeader};
use crate::order::{
    self, Answer, CarrierSettings, Confinement, ExchangeError, InterfaceId, Join, NewInterface, Order,
};
use crate::rejection::BadFrame;
use crate::switch::{Attachment, Switch, SwitchPortId, Verdict};
use crate::tap_port::{PortQueue, TapPort};

/// The most interfaces of one process.
pub const INTERFACES_MAX: usize = 1024;
/// The most interfaces reported as vanished that the other part has not yet released.
const UNRELEASED_MAX: usize = 32;
/// The most queues of one interface that one loop serves.
const QUEUES_MAX: usize = 256;
/// A turn takes three frames of other machines where it takes one of this machine. Most frames of other machines are single
/// segments, which are merged into few superframes.
const SEGMENTS_FOR_A_FRAME: usize = 3;
/// The tag of the socket that carries orders; queues have the tags of [`tag_of`].
const ORDERS: u64 = u64::MAX;
/// The tag of the port.
const PORT: u64 = u64::MAX - 1;

/// One carrying loop, with some queues of every interface.
pub struct Carrier {
    orders: Socket,
    confinement: Confinement,
    poller: Poller,
    ready: Vec<u64>,
    paths: Paths,
    gatherer: Gatherer,
    merger: Merger,
    spin: Spin,
    batch_frames: usize,
    /// How long a process without room holds back its senders.
    hold_back: Duration,
    /// The tags of queues that are held back, because there is no room where their frames go.
    held_back: Vec<u64>,
    began: Instant,
    /// True when the interfaces have changed since they were last announced.
    is_changed: bool,
    /// Interfaces that have vanished and are not yet reported.
    unreported: Vec<InterfaceId>,
    /// How many were reported and not yet released by the other part.
    unreleased_count: usize,
}

/// Everything that a frame touches.
struct Paths {
    switch: Switch,
    /// The interfaces, by their numbers.
    tap_ports: Vec<Option<TapPort>>,
    fabric: Option<Fabric>,
    /// The program that captures frames, if one runs.
    capture: Option<CaptureSender>,
    /// A buffer for one segment cut out of a superframe.
    segment: Box<[u8]>,
    /// True if a long frame has passed in this turn.
    carries_stream: bool,
}

/// Carries frames until the other end of `orders` is closed. `confinement` says what this process has given up, and
/// is reported on request.
///
/// # Errors
/// [`ExchangeError`], when orders cannot be understood or the kernel refuses what the loop needs.
pub fn run(orders: Socket, confinement: Confinement) -> Result<(), ExchangeError> {
    let mut carrier = Carrier::new(orders, confinement)?;
    loop {
        match carrier.turn() {
            Ok(()) => {}
            Err(ExchangeError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Carrier {
    fn new(orders: Socket, confinement: Confinement) -> Result<Self, ExchangeError> {
        let poller = Poller::new()?;
        poller.add(&orders, ORDERS)?;
        let paths = Paths {
            switch: Switch::new(0),
            tap_ports: Vec::with_capacity(INTERFACES_MAX),
            fabric: None,
            capture: None,
            segment: vec![0; VnetHeader::BYTES + FRAME_BYTES_MAX].into(),
            carries_stream: false,
        };
        Ok(Self {
            orders,
            confinement,
            poller,
            ready: Vec::with_capacity(INTERFACES_MAX),
            paths,
            gatherer: Gatherer::default(),
            merger: Merger::default(),
            spin: Spin::new(Duration::ZERO),
            batch_frames: BATCH_FRAMES,
            hold_back: Duration::from_millis(HOLD_BACK_MS.into()),
            held_back: Vec::with_capacity(INTERFACES_MAX),
            began: Instant::now(),
            is_changed: false,
            unreported: Vec::new(),
            unreleased_count: 0,
        })
    }

    /// Sleeps until there is something to do, and does it.
    fn turn(&mut self) -> Result<(), ExchangeError> {
        let mut arrival = self.wait()?;
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut rest = self.batch_frames * SEGMENTS_FOR_A_FRAME;
        while rest > 0 {
            let Some(arrived) = arrival.take().or_else(|| self.paths.next_arrival()) else { break };
            rest = rest.saturating_sub(self.take_arrival(arrived, now_ms));
        }
        self.pass_on_arrivals(now_ms);
        for index in 0..self.ready.len() {
            match self.ready[index] {
                ORDERS => self.take_orders()?,
                // The port was asked already.
                PORT => {}
                tag => self.read_queue(tag, now_ms)?,
            }
        }
        if std::mem::take(&mut self.paths.carries_stream) {
            self.spin.abstain();
        }
        self.announce();
        // Here as well as in `wait`: a loop that always has work may never sleep.
        self.paths.reconnect_when_due();
        self.report_vanished()
    }

    /// Takes a frame of another process. One of another machine may be held until the end of the turn, to be merged. Returns
    /// what it counts for.
    fn take_arrival(&mut self, arrived: Arrival, now_ms: u64) -> usize {
        let paths = &mut self.paths;
        let is_remote = paths.fabric.as_ref().is_some_and(|fabric| fabric.is_remote(arrived.port));
        let is_merged = is_remote && self.batch_frames > 1;
        let done = if is_merged {
            self.merger.push(arrived, |port, content| paths.carry_arrival(port, content, now_ms))
        } else {
            paths.carry_arrival(arrived.port, &arrived.content, now_ms);
            Some(arrived)
        };
        done.into_iter().for_each(|arrival| paths.recycle(arrival));
        if is_merged { 1 } else { SEGMENTS_FOR_A_FRAME }
    }

    /// Passes on the frames of other processes that were held to be merged.
    fn pass_on_arrivals(&mut self, now_ms: u64) {
        let paths = &mut self.paths;
        self.merger.flush(|port, content| paths.carry_arrival(port, content, now_ms));
        self.merger.taken().for_each(|arrival| paths.recycle(arrival));
    }

    /// Waits until something can be read or a frame arrives from the fabric. The frame is returned.
    fn wait(&mut self) -> Result<Option<Arrival>, ExchangeError> {
        let budget = self.spin.budget_cycles();
        let start = clock::cycles();
        let mut looked = start;
        loop {
            if let Some(found) = self.poll_once()? {
                self.spin.paid();
                return Ok(found);
            }
            if budget == 0 {
                break;
            }
            // A program that wants this core gets it at once. It may be the other end of our own conversations.
            std::thread::yield_now();
            let now = clock::cycles();
            if now.wrapping_sub(looked) > budget / 2 {
                self.spin.abstain();
                break;
            }
            if now.wrapping_sub(start) >= budget {
                self.spin.failed();
                break;
            }
            looked = now;
        }
        if let Some(fabric) = &mut self.paths.fabric
            && !fabric.is_alone()
            && !fabric.port.arm()
        {
            return Ok(self.paths.next_arrival());
        }
        let limit = [self.paths.reconnect_when_due(), self.until_next_release()].into_iter().flatten().min();
        let asleep = clock::cycles();
        self.ready.extend(self.poller.wait(limit)?);
        self.spin.woken_after(clock::cycles().wrapping_sub(asleep));
        Ok(None)
    }

    /// Looks once at everything, and returns `None` when there is nothing to do.
    fn poll_once(&mut self) -> Result<Option<Option<Arrival>>, ExchangeError> {
        self.ready.clear();
        let arrival = self.paths.next_arrival();
        // The call above may have received a notice of new room.
        self.resume_queues()?;
        self.ready.extend(self.poller.wait(Some(Duration::ZERO))?);
        Ok((arrival.is_some() || !self.ready.is_empty()).then_some(arrival))
    }

    fn read_queue(&mut self, tag: u64, now_ms: u64) -> Result<(), ExchangeError> {
        let (id, place) = place_of(tag);
        let paths = &mut self.paths;
        let Some(Some(its)) = paths.tap_ports.get(id) else { return Ok(()) };
        let Some(its_queue) = its.queues.get(place) else { return Ok(()) };
        let queue = Rc::clone(&its_queue.queue);
        // A paused queue is reported only for an error, such as its end.
        let is_paused = its_queue.held_back_by.is_some();
        self.gatherer.merge_datagrams(its.takes_udp);
        let carry = |packet: &mut [u8]| paths.carry(2 * id, place, packet, now_ms);
        let taken = self.gatherer.take(&queue, self.batch_frames, carry);
        if taken == Taken::Vanished {
            self.remove_interface(id);
            self.unreported.push(id);
        } else if !is_paused && self.paths.queue(tag).is_some_and(|queue| queue.held_back_by.is_some()) {
            // Paused and not removed: the poller's place could go to another descriptor before the queue is added
            // again.
            self.poller.pause(&*queue, tag)?;
            self.held_back.push(tag);
        }
        Ok(())
    }

    /// Resumes queues whose frames have room again, or whose hold-back time is over.
    fn resume_queues(&mut self) -> Result<(), ExchangeError> {
        if self.held_back.is_empty() {
            return Ok(());
        }
        let mut resumed = Ok(());
        let (poller, paths) = (&self.poller, &mut self.paths);
        let now = Instant::now();
        self.held_back.retain(|tag| {
            if paths.held_back_until(*tag).is_some_and(|until| now < until) {
                return true;
            }
            if let Some(queue) = paths.queue(*tag)
                && queue.held_back_by.is_some()
            {
                if let Err(error) = poller.resume(&*queue.queue, *tag) {
                    resumed = Err(error);
                    return true;
                }
                queue.held_back_by = None;
            }
            false
        });
        Ok(resumed?)
    }

    /// How long the loop may sleep before the next held-back queue is released, if there is one.
    fn until_next_release(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = self.held_back.iter().map(|tag| self.paths.held_back_until(*tag).unwrap_or(now));
        Some(until.min()?.saturating_duration_since(now))
    }

    /// Reports vanished interfaces, at most [`UNRELEASED_MAX`] at a time. The other part answers each report with a
    /// release, which makes room for another report. More reports would not fit into the socket, and this loop cannot
    /// wait.
    fn report_vanished(&mut self) -> Result<(), ExchangeError> {
        while self.unreleased_count < UNRELEASED_MAX
            && let Some(interface) = self.unreported.pop()
        {
            self.unreleased_count += 1;
            order::send(&self.orders, &Answer::Vanished(interface), None)?;
        }
        Ok(())
    }

    fn take_orders(&mut self) -> Result<(), ExchangeError> {
        while let Some((order, file)) = order::receive_order(&self.orders)? {
            let answer = match order {
                Order::Configure(settings) => self.configure(settings),
                Order::AddInterface(new) => match file {
                    Some(file) => self.add_interface(&new, Queue::from_descriptor(file)),
                    None => Some(Answer::Refused("an interface came without its queue".to_owned())),
                },
                Order::AddQueue(interface) => match file {
                    Some(file) => self.add_queue(interface, Queue::from_descriptor(file)),
                    None => Some(Answer::Refused("an interface came without one of its queues".to_owned())),
                },
                Order::RemoveInterface(interface) => {
                    self.unreleased_count = self.unreleased_count.saturating_sub(1);
                    self.cancel_report(interface);
                    self.remove_interface(interface)
                }
                Order::QueryCounts(interface) => Some(self.count(interface)),
                Order::SetMtu(interface, mtu_bytes) => self.set_mtu(interface, mtu_bytes),
                Order::SetAddresses(interface, addresses) => self.set_addresses(interface, addresses),
                Order::Join(join) => self.join(&join),
                Order::ReachFabric => match &mut self.paths.fabric {
                    Some(fabric) => {
                        fabric.reach_nodes().err().map(|error| Answer::Refused(error.to_string()))
                    }
                    None => Some(Answer::Refused("there is no port that nodes could reach".to_owned())),
                },
                Order::SeekNodes { nodes, is_first } => {
                    if let Some(fabric) = &mut self.paths.fabric {
                        fabric.seek_nodes(nodes, is_first, &mut self.paths.switch);
                    }
                    None
                }
                Order::QueryPeer(place) => {
                    let fabric = self.paths.fabric.as_ref();
                    let (report, places) = fabric.map_or((None, 0), |fabric| fabric.report(place));
                    Some(Answer::Peer(report.map(Box::new), places))
                }
                Order::Capture => {
                    let socket = file.and_then(|file| Socket::from_descriptor(file).ok());
                    self.paths.capture = socket.map(CaptureSender::new);
                    None
                }
                Order::QueryConfinement => Some(Answer::Confined(self.confinement.clone())),
                Order::Barrier => Some(Answer::Done),
            };
            if let Some(answer) = answer {
                order::send(&self.orders, &answer, None)?;
            }
        }
        Ok(())
    }

    fn configure(&mut self, settings: CarrierSettings) -> Option<Answer> {
        self.spin = Spin::new(Duration::from_micros(settings.spin_us.into()));
        self.batch_frames = if settings.coalesce { BATCH_FRAMES } else { 1 };
        self.paths.switch.allow_storms_of(settings.storm_frames_per_second);
        self.hold_back = Duration::from_millis(settings.hold_back_ms.into());
        if let Some(fabric) = &mut self.paths.fabric {
            fabric.hold_back_for(self.hold_back);
        }
        None
    }

    fn add_interface(&mut self, new: &NewInterface, queue: Queue) -> Option<Answer> {
        let id = new.interface;
        let attachment = Attachment::Interface { mac: MacAddress(new.mac), is_bridge: new.is_bridge };
        if id >= INTERFACES_MAX {
            return Some(Answer::Refused(format!("more than {INTERFACES_MAX} interfaces in one process")));
        }
        self.cancel_report(id);
        self.remove_interface(id);
        if !self.paths.switch.insert(2 * id, attachment) {
            return Some(Answer::Refused(format!("the address {} is taken", MacAddress(new.mac))));
        }
        if let Err(error) = self.poller.add(&queue, tag_of(id, 0)) {
            self.paths.switch.remove(2 * id);
            return Some(Answer::Refused(format!("a queue cannot be watched: {error}")));
        }
        if self.paths.tap_ports.len() <= id {
            self.paths.tap_ports.resize_with(id + 1, || None);
        }
        self.paths.tap_ports[id] = Some(TapPort::new(queue, new));
        self.is_changed = true;
        None
    }

    fn add_queue(&mut self, id: InterfaceId, queue: Queue) -> Option<Answer> {
        // If the interface does not exist, it was refused, and the refusal was reported.
        let Some(Some(tap_port)) = self.paths.tap_ports.get_mut(id) else { return None };
        if tap_port.queues.len() >= QUEUES_MAX {
            return Some(Answer::Refused(format!("more than {QUEUES_MAX} queues of one interface")));
        }
        if let Err(error) = self.poller.add(&queue, tag_of(id, tap_port.queues.len())) {
            return Some(Answer::Refused(format!("a queue cannot be watched: {error}")));
        }
        tap_port.add_queue(queue);
        None
    }

    /// Drops a pending report about this place, so that its next interface is not reported as vanished.
    fn cancel_report(&mut self, id: InterfaceId) {
        self.unreported.retain(|interface| *interface != id);
    }

    fn remove_interface(&mut self, id: InterfaceId) -> Option<Answer> {
        if let Some(tap_port) = self.paths.tap_ports.get_mut(id).and_then(Option::take) {
            tap_port.queues.iter().for_each(|queue| self.poller.remove(&*queue.queue));
            self.paths.switch.remove(2 * id);
            self.is_changed = true;
        }
        None
    }

    fn set_mtu(&mut self, id: InterfaceId, mtu_bytes: u32) -> Option<Answer> {
        if let Some(Some(tap_port)) = self.paths.tap_ports.get_mut(id) {
            tap_port.announced.mtu_bytes = mtu_bytes;
            self.is_changed = true;
        }
        None
    }

    fn set_addresses(&mut self, id: InterfaceId, addresses: Vec<IpAddr>) -> Option<Answer> {
        if let Some(Some(tap_port)) = self.paths.tap_ports.get_mut(id)
            && tap_port.announced.addresses != addresses
        {
            self.paths.switch.set_own_ips(2 * id, &addresses);
            tap_port.announced.addresses = addresses;
            self.is_changed = true;
        }
        None
    }

    fn join(&mut self, join: &Join) -> Option<Answer> {
        let directory = match self.confinement {
            Confinement::Absent => &join.directory,
            Confinement::Enforced { .. } => Path::new(confinement::ROOT),
        };
        let mut fabric = match Fabric::join(join, directory) {
            Ok(fabric) => fabric,
            Err(error) => return Some(Answer::Refused(error.to_string())),
        };
        if let Err(error) = self.poller.add(&fabric.port, PORT) {
            return Some(Answer::Refused(format!("a port cannot be watched: {error}")));
        }
        fabric.hold_back_for(self.hold_back);
        self.paths.fabric = Some(fabric);
        self.is_changed = true;
        None
    }

    /// Announces the interfaces to the other processes, once for all orders that arrived together.
    fn announce(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        if let Some(fabric) = &mut self.paths.fabric {
            fabric.announce(
                self.paths.tap_ports.iter().flatten().map(|tap_port| tap_port.announced.clone()).collect(),
            );
        }
    }

    fn count(&self, id: InterfaceId) -> Answer {
        match self.paths.tap_ports.get(id) {
            Some(Some(tap_port)) => Answer::Counts(Box::new(tap_port.counts.clone())),
            _ => Answer::Refused(format!("there is no interface {id}")),
        }
    }
}

impl Paths {
    fn queue(&mut self, tag: u64) -> Option<&mut PortQueue> {
        let (id, place) = place_of(tag);
        self.tap_ports.get_mut(id)?.as_mut()?.queues.get_mut(place)
    }

    /// When a queue's hold-back ends, if it is held back.
    fn held_back_until(&self, tag: u64) -> Option<Instant> {
        let (id, place) = place_of(tag);
        let target = self.tap_ports.get(id)?.as_ref()?.queues.get(place)?.held_back_by?;
        self.fabric.as_ref()?.holds_back_until(target)
    }

    /// Delivers or drops a header and frame from the interface `from`, read from the queue at `place`. Returns
    /// `false` when no more frames may be read from that queue for now.
    fn carry(&mut self, from: SwitchPortId, place: usize, packet: &mut [u8], now_ms: u64) -> bool {
        let Some(Some(tap_port)) = self.tap_ports.get_mut(from / 2) else { return true };
        let frame = packet.get(VnetHeader::BYTES..).unwrap_or_default();
        self.carries_stream |= frame.len() > MERGED_BYTES_MAX;
        tap_port.sends(frame.len(), packet.get(1).is_some_and(|kind| *kind != offload::GSO_NONE));
        if frame.len() == FRAME_BYTES_MAX {
            tap_port.counts.drops.count(Cause::Long);
            return true;
        }
        if let Some(capture) = &mut self.capture
            && !capture.send_copy(from, &tap_port.announced.label, frame)
        {
            self.capture = None;
        }
        match self.switch.judge(from, frame, now_ms) {
            Verdict::To(target) if is_fabric(target) => {
                self.send(from, target, packet);
                return !self.is_held_back(from, place, target);
            }
            Verdict::To(target) => self.deliver(from, target, packet),
            Verdict::Flood { is_unknown } => self.flood(from, is_unknown, packet),
            Verdict::Drop(cause) => tap_port.counts.drops.count(cause),
        }
        true
    }

    /// Holds a queue back if there is no room at the target of its frame. A queue is held back only for the targets
    /// that [`TapPort::queue_for`] assigns to it. On another queue, the frame is the first of its flow, or belongs to a
    /// flow without answers; other frames must not wait for those.
    fn is_held_back(&mut self, from: SwitchPortId, place: usize, target: SwitchPortId) -> bool {
        let (Some(Some(tap_port)), Some(fabric)) = (self.tap_ports.get_mut(from / 2), &mut self.fabric)
        else {
            return false;
        };
        let until = fabric.holds_back_until(target);
        if tap_port.queue_for(target) != place || until.is_none_or(|until| until <= Instant::now()) {
            return false;
        }
        // The rest of a burst finds the queue held back already.
        if tap_port.queues[place].held_back_by.replace(target).is_none() {
            fabric.note_held_back(target);
        }
        true
    }

    fn flood(&mut self, from: SwitchPortId, is_unknown: bool, packet: &mut [u8]) {
        // Interfaces first: `send` overwrites the header in place.
        for target in (0..self.switch.ports_count()).step_by(2) {
            if self.switch.floods(from, target, is_unknown) {
                self.deliver(from, target, packet);
            }
        }
        for target in (1..self.switch.ports_count()).step_by(2) {
            if self.switch.floods(from, target, is_unknown) {
                self.send(from, target, packet);
            }
        }
    }

    fn deliver(&mut self, from: SwitchPortId, target: SwitchPortId, packet: &[u8]) {
        if let Some(Some(tap_port)) = self.tap_ports.get_mut(target / 2)
            && let Some((header, frame)) = packet.split_first_chunk()
        {
            tap_port.deliver(from, *header, frame, &mut self.segment);
        }
    }

    /// Sends a frame to another process. The descriptor takes the place of the kernel's header, which is restored for
    /// the next target with the same meaning.
    fn send(&mut self, from: SwitchPortId, target: SwitchPortId, packet: &mut [u8]) {
        let Some(fabric) = &mut self.fabric else { return };
        let Some((kernels, frame)) = packet.split_first_chunk_mut() else { return };
        let header = VnetHeader::from_bytes(*kernels);
        let described = offload::describe(header, frame).or_else(|_| {
            // The protocol is unknown, so the checksum is completed here.
            checksum::complete(header, frame).map(|()| Descriptor::PLAIN)
        });
        let Ok(descriptor) = described else {
            if let Some(Some(tap_port)) = self.tap_ports.get_mut(from / 2) {
                tap_port.counts.drops.count(Cause::Illegal);
            }
            return;
        };
        if descriptor == Descriptor::PLAIN {
            *kernels = [0; VnetHeader::BYTES];
        }
        let kept = *kernels;
        const GAP: usize = VnetHeader::BYTES - Descriptor::BYTES;
        kernels[GAP..].copy_from_slice(&descriptor.to_bytes());
        fabric.send(target, descriptor, &mut packet[GAP..]);
        packet[..VnetHeader::BYTES].copy_from_slice(&kept);
    }

    /// Connects again to lost peers when that is due. Returns how long the loop may sleep until the next attempt.
    fn reconnect_when_due(&mut self) -> Option<Duration> {
        self.fabric.as_mut()?.reconnect_when_due()
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        self.fabric.as_mut()?.poll(&mut self.switch)
    }

    /// Takes the memory of a frame back.
    fn recycle(&mut self, arrival: Arrival) {
        if let (Content::Whole(payload), Some(fabric)) = (arrival.content, &mut self.fabric) {
            fabric.port.recycle(payload);
        }
    }

    /// Delivers or drops a frame from another process, behind its descriptor. Nothing that the frame states about itself
    /// is trusted.
    fn carry_arrival(&mut self, port: SwitchPortId, content: &[u8], now_ms: u64) {
        let Some(fabric) = &mut self.fabric else { return };
        self.carries_stream |= content.len() > MERGED_BYTES_MAX;
        if let Some(capture) = &mut self.capture
            && !capture.send_copy(port, capture::FABRIC, content.get(Descriptor::BYTES..).unwrap_or_default())
        {
            self.capture = None;
        }
        match arrived(content) {
            Ok((header, frame)) => match self.switch.judge(port, frame, now_ms) {
                Verdict::To(target) => {
                    if let Some(Some(tap_port)) = self.tap_ports.get_mut(target / 2) {
                        tap_port.deliver(port, header, frame, &mut self.segment);
                    }
                }
                Verdict::Flood { is_unknown } => {
                    for (place, tap_port) in self.tap_ports.iter_mut().enumerate() {
                        if let Some(tap_port) = tap_port
                            && self.switch.floods(port, 2 * place, is_unknown)
                        {
                            tap_port.deliver(port, header, frame, &mut self.segment);
                        }
                    }
                }
                Verdict::Drop(cause) => fabric.drop_from(port, cause),
            },
            Err(_) => fabric.drop_from(port, Cause::Illegal),
        }
    }
}

/// A header that is safe for the kernel, derived from a peer's frame, and the frame.
fn arrived(payload: &[u8]) -> Result<([u8; VnetHeader::BYTES], &[u8]), BadFrame> {
    let (descriptor, frame) = payload.split_first_chunk().ok_or(BadFrame::Runt)?;
    let headers = &frame[..frame.len().min(HEADER_BYTES_MAX)];
    Ok((offload::derive(*descriptor, headers, frame.len())?.to_bytes(), frame))
}

/// The tag of one queue of an interface.
const fn tag_of(id: InterfaceId, place: usize) -> u64 {
    (place as u64) << 32 | id as u64
}

/// The interface of a tag, and the place of the queue among the interface's queues.
const fn place_of(tag: u64) -> (InterfaceId, usize) {
    ((tag & 0xFFFF_FFFF) as InterfaceId, (tag >> 32) as usize)
}

const fn is_fabric(port: SwitchPortId) -> bool {
    port % 2 == 1
}
