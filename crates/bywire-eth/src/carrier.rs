//! The loop that carries frames: from one TAP's queue straight into another's.
//!
//! It sleeps until something can be read, takes what there is, up to a bound for each interface, and sleeps again
//! when nothing is left. There is no timer: what is merged waits only while there is more to take, and a burst costs one
//! wake.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bywire_sys::clock;
use bywire_sys::poller::Poller;
use bywire_sys::socket::Socket;
use bywire_sys::tap::Queue;

use crate::address::MacAddress;
use crate::backlog::HOLD_BACK_MS;
use crate::capture::{self, Watch};
use crate::checksum;
use crate::confinement;
use crate::drops::Cause;
use crate::fabric::{Arrival, Content, Fabric};
use crate::frame::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use crate::gather::{BATCH_FRAMES, Gatherer, Taken};
use crate::lane::{End, Lane};
use crate::offload::{self, Descriptor, VnetHeader};
use crate::order::{self, Adoption, Answer, Confinement, ExchangeError, Join, Manner, Order};
use crate::rejection::BadFrame;
use crate::spin::Spin;
use crate::switch::{LaneId, Side, Switch, Verdict};

/// Lanes of one process.
pub const LANES_MAX: usize = 1024;
/// Interfaces that are told to have vanished before somebody answers.
const TOLD_MAX: usize = 32;
/// Queues of one interface that one loop serves at most.
const ENDS_MAX: usize = 256;
/// The tag of the socket on which orders come; queues have those of [`tag_of`].
const ORDERS: u64 = u64::MAX;
/// The tag of the port.
const PORT: u64 = u64::MAX - 1;

/// One loop, with one queue of every interface.
pub struct Carrier {
    orders: Socket,
    confinement: Confinement,
    poller: Poller,
    ready: Vec<u64>,
    paths: Paths,
    gatherer: Gatherer,
    spin: Spin,
    batch_frames: usize,
    /// How long a queue may be held back.
    hold_back: Duration,
    /// Queues, by their tags, from which nothing is taken, since there is no room where their frames go.
    held_back: Vec<u64>,
    began: Instant,
    /// Interfaces are others than those that were announced.
    is_changed: bool,
    /// Interfaces that have vanished, which nobody was told yet.
    untold: Vec<LaneId>,
    /// How many were told and not yet answered.
    told: usize,
}

/// Everything a frame touches.
struct Paths {
    switch: Switch,
    /// By half their numbers: those of the fabric have the odd ones.
    lanes: Vec<Option<Lane>>,
    fabric: Option<Fabric>,
    /// Somebody who looks.
    watch: Option<Watch>,
    /// One frame that was cut out of another.
    segment: Box<[u8]>,
}

/// Carries frames until the other end of `orders` is closed; what was given up before is told to whoever asks.
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
            lanes: Vec::with_capacity(LANES_MAX),
            fabric: None,
            watch: None,
            segment: vec![0; VnetHeader::BYTES + FRAME_BYTES_MAX].into(),
        };
        Ok(Self {
            orders,
            confinement,
            poller,
            ready: Vec::with_capacity(LANES_MAX),
            paths,
            gatherer: Gatherer::default(),
            spin: Spin::new(Duration::ZERO),
            batch_frames: BATCH_FRAMES,
            hold_back: Duration::from_millis(HOLD_BACK_MS.into()),
            held_back: Vec::with_capacity(LANES_MAX),
            began: Instant::now(),
            is_changed: false,
            untold: Vec::new(),
            told: 0,
        })
    }

    /// Sleeps until there is something to do, and does it.
    fn turn(&mut self) -> Result<(), ExchangeError> {
        let mut arrival = self.wait()?;
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for _ in 0..self.batch_frames {
            let Some(arrived) = arrival.take().or_else(|| self.paths.next_arrival()) else { break };
            self.paths.carry_arrival(arrived, now_ms);
        }
        for index in 0..self.ready.len() {
            match self.ready[index] {
                ORDERS => self.obey()?,
                // The port was asked already.
                PORT => {}
                tag => self.take(tag, now_ms)?,
            }
        }
        self.announce();
        // Here too: who has much to do may never sleep.
        self.paths.seek_lost();
        self.tell()
    }

    /// Waits until something can be read, or a frame has come from the fabric, which is returned.
    fn wait(&mut self) -> Result<Option<Arrival>, ExchangeError> {
        let budget = self.spin.budget_cycles();
        let start = clock::cycles();
        let mut looked = start;
        loop {
            if let Some(found) = self.look()? {
                self.spin.paid();
                return Ok(found);
            }
            if budget == 0 {
                break;
            }
            // Whoever else wants this core has it at once, the very ends of our conversations among them.
            std::thread::yield_now();
            let now = clock::cycles();
            if now.wrapping_sub(looked) > budget / 2 {
                self.spin.give_way();
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
        let limit = [self.paths.seek_lost(), self.patience()].into_iter().flatten().min();
        let asleep = clock::cycles();
        self.ready.extend(self.poller.wait(limit)?);
        self.spin.woken_after(clock::cycles().wrapping_sub(asleep));
        Ok(None)
    }

    /// Looks once at everything: `None` when there is nothing to do.
    fn look(&mut self) -> Result<Option<Option<Arrival>>, ExchangeError> {
        self.ready.clear();
        let arrival = self.paths.next_arrival();
        // That may have told of room.
        self.let_go()?;
        self.ready.extend(self.poller.wait(Some(Duration::ZERO))?);
        Ok((arrival.is_some() || !self.ready.is_empty()).then_some(arrival))
    }

    fn take(&mut self, tag: u64, now_ms: u64) -> Result<(), ExchangeError> {
        let (id, place) = place_of(tag);
        let paths = &mut self.paths;
        let Some(Some(its)) = paths.lanes.get(id) else { return Ok(()) };
        let Some(end) = its.ends.get(place) else { return Ok(()) };
        let queue = Rc::clone(&end.queue);
        // A paused queue is reported only for an error, such as its end.
        let is_paused = end.held_back_by.is_some();
        self.gatherer.merge_datagrams(its.takes_udp);
        let carry = |packet: &mut [u8]| paths.carry(2 * id, place, packet, now_ms);
        let taken = self.gatherer.take(&queue, self.batch_frames, carry);
        if taken == Taken::Vanished {
            self.release(id);
            self.untold.push(id);
        } else if !is_paused && self.paths.end(tag).is_some_and(|end| end.held_back_by.is_some()) {
            // Not removed: its place could be another's when it is wanted back.
            self.poller.pause(&*queue, tag)?;
            self.held_back.push(tag);
        }
        Ok(())
    }

    /// Takes frames again from queues whose frames have room now, or have waited for it long enough.
    fn let_go(&mut self) -> Result<(), ExchangeError> {
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
            if let Some(end) = paths.end(*tag)
                && end.held_back_by.is_some()
            {
                if let Err(error) = poller.resume(&*end.queue, *tag) {
                    resumed = Err(error);
                    return true;
                }
                end.held_back_by = None;
            }
            false
        });
        Ok(resumed?)
    }

    /// For how long queues may still be held back, if any are.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = self.held_back.iter().map(|tag| self.paths.held_back_until(*tag).unwrap_or(now));
        Some(until.min()?.saturating_duration_since(now))
    }

    /// Tells which interfaces have vanished, a few at a time: whoever is told answers with a release, after which comes
    /// another. More at once would not fit, and there is nobody who could wait here.
    fn tell(&mut self) -> Result<(), ExchangeError> {
        while self.told < TOLD_MAX
            && let Some(lane) = self.untold.pop()
        {
            self.told += 1;
            order::send(&self.orders, &Answer::Vanished(lane), None)?;
        }
        Ok(())
    }

    fn obey(&mut self) -> Result<(), ExchangeError> {
        while let Some((order, file)) = order::receive_order(&self.orders)? {
            let answer = match order {
                Order::Work(manner) => self.work(manner),
                Order::Adopt(adoption) => match file {
                    Some(file) => self.adopt(&adoption, Queue::from_descriptor(file)),
                    None => Some(Answer::Refused("an interface came without its queue".to_owned())),
                },
                Order::Widen(lane) => match file {
                    Some(file) => self.widen(lane, Queue::from_descriptor(file)),
                    None => Some(Answer::Refused("an interface came without one of its queues".to_owned())),
                },
                Order::Release(lane) => {
                    self.told = self.told.saturating_sub(1);
                    self.forget(lane);
                    self.release(lane)
                }
                Order::Count(lane) => Some(self.count(lane)),
                Order::Resize(lane, mtu_bytes) => self.resize(lane, mtu_bytes),
                Order::Join(join) => self.join(&join),
                Order::Peer(place) => {
                    let fabric = self.paths.fabric.as_ref();
                    let (report, places) = fabric.map_or((None, 0), |fabric| fabric.report(place));
                    Some(Answer::Peer(report.map(Box::new), places))
                }
                Order::Watch => {
                    let socket = file.and_then(|file| Socket::from_descriptor(file).ok());
                    self.paths.watch = socket.map(Watch::new);
                    None
                }
                Order::Confess => Some(Answer::Confined(self.confinement.clone())),
                Order::Settle => Some(Answer::Done),
            };
            if let Some(answer) = answer {
                order::send(&self.orders, &answer, None)?;
            }
        }
        Ok(())
    }

    fn work(&mut self, manner: Manner) -> Option<Answer> {
        self.spin = Spin::new(Duration::from_micros(manner.spin_us.into()));
        self.batch_frames = if manner.coalesce { BATCH_FRAMES } else { 1 };
        self.paths.switch.allow_storms_of(manner.storm_frames_per_second);
        self.hold_back = Duration::from_millis(manner.hold_back_ms.into());
        if let Some(fabric) = &mut self.paths.fabric {
            fabric.hold_back_for(self.hold_back);
        }
        None
    }

    fn adopt(&mut self, adoption: &Adoption, queue: Queue) -> Option<Answer> {
        let id = adoption.lane;
        let side = Side::Here { mac: MacAddress(adoption.mac), is_bridge: adoption.is_bridge };
        if id >= LANES_MAX {
            return Some(Answer::Refused(format!("more than {LANES_MAX} interfaces in one process")));
        }
        self.forget(id);
        self.release(id);
        if !self.paths.switch.insert(2 * id, side) {
            return Some(Answer::Refused(format!("the address {} is taken", MacAddress(adoption.mac))));
        }
        if let Err(error) = self.poller.add(&queue, tag_of(id, 0)) {
            self.paths.switch.remove(2 * id);
            return Some(Answer::Refused(format!("a queue cannot be watched: {error}")));
        }
        if self.paths.lanes.len() <= id {
            self.paths.lanes.resize_with(id + 1, || None);
        }
        self.paths.lanes[id] = Some(Lane::new(queue, adoption));
        self.is_changed = true;
        None
    }

    fn widen(&mut self, id: LaneId, queue: Queue) -> Option<Answer> {
        // Where there is no such interface, it was refused, which was said.
        let Some(Some(lane)) = self.paths.lanes.get_mut(id) else { return None };
        if lane.ends.len() >= ENDS_MAX {
            return Some(Answer::Refused(format!("more than {ENDS_MAX} queues of one interface")));
        }
        if let Err(error) = self.poller.add(&queue, tag_of(id, lane.ends.len())) {
            return Some(Answer::Refused(format!("a queue cannot be watched: {error}")));
        }
        lane.widen(queue);
        None
    }

    /// Whoever has this place next must not be told to have vanished.
    fn forget(&mut self, id: LaneId) {
        self.untold.retain(|lane| *lane != id);
    }

    fn release(&mut self, id: LaneId) -> Option<Answer> {
        if let Some(lane) = self.paths.lanes.get_mut(id).and_then(Option::take) {
            lane.ends.iter().for_each(|end| self.poller.remove(&*end.queue));
            self.paths.switch.remove(2 * id);
            self.is_changed = true;
        }
        None
    }

    fn resize(&mut self, id: LaneId, mtu_bytes: u32) -> Option<Answer> {
        if let Some(Some(lane)) = self.paths.lanes.get_mut(id) {
            lane.announced.mtu_bytes = mtu_bytes;
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

    /// Tells the others what has changed, once for all orders that came together.
    fn announce(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        if let Some(fabric) = &mut self.paths.fabric {
            fabric.announce(self.paths.lanes.iter().flatten().map(|lane| lane.announced.clone()).collect());
        }
    }

    fn count(&self, id: LaneId) -> Answer {
        match self.paths.lanes.get(id) {
            Some(Some(lane)) => Answer::Counts(Box::new(lane.counts.clone())),
            _ => Answer::Refused(format!("there is no lane {id}")),
        }
    }
}

impl Paths {
    fn end(&mut self, tag: u64) -> Option<&mut End> {
        let (id, place) = place_of(tag);
        self.lanes.get_mut(id)?.as_mut()?.ends.get_mut(place)
    }

    /// Until when a queue is held back, if it is.
    fn held_back_until(&self, tag: u64) -> Option<Instant> {
        let (id, place) = place_of(tag);
        let target = self.lanes.get(id)?.as_ref()?.ends.get(place)?.held_back_by?;
        self.fabric.as_ref()?.holds_back_until(target)
    }

    /// Delivers or drops a header and frame that were taken from an interface, from the queue in that place. `false`:
    /// no more is to be taken there for now.
    fn carry(&mut self, from: LaneId, place: usize, packet: &mut [u8], now_ms: u64) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(from / 2) else { return true };
        let frame = packet.get(VnetHeader::BYTES..).unwrap_or_default();
        lane.sends(frame.len(), packet.get(1).is_some_and(|kind| *kind != offload::GSO_NONE));
        if frame.len() == FRAME_BYTES_MAX {
            lane.counts.drops.count(Cause::Long);
            return true;
        }
        if let Some(watch) = &mut self.watch
            && !watch.show(from, &lane.announced.label, frame)
        {
            self.watch = None;
        }
        match self.switch.judge(from, frame, now_ms) {
            Verdict::To(target) if is_fabric(target) => {
                self.send(from, target, packet);
                return !self.is_held_back(from, place, target);
            }
            Verdict::To(target) => self.deliver(from, target, packet),
            Verdict::Flood { is_unknown } => self.flood(from, is_unknown, packet),
            Verdict::Drop(cause) => lane.counts.drops.count(cause),
        }
        true
    }

    /// Holds a queue back where there is no room for what it sends. Where it is another's, a frame in it is the first of
    /// its flow, or one of a flow that nobody answers: for those nobody else waits.
    fn is_held_back(&mut self, from: LaneId, place: usize, target: LaneId) -> bool {
        let (Some(Some(lane)), Some(fabric)) = (self.lanes.get_mut(from / 2), &mut self.fabric) else {
            return false;
        };
        let until = fabric.holds_back_until(target);
        if lane.end_for(target) != place || until.is_none_or(|until| until <= Instant::now()) {
            return false;
        }
        // The rest of a burst finds it held back already.
        if lane.ends[place].held_back_by.replace(target).is_none() {
            fabric.note_held_back(target);
        }
        true
    }

    fn flood(&mut self, from: LaneId, is_unknown: bool, packet: &mut [u8]) {
        // Interfaces first: what goes to the fabric gets another header in the same place.
        for target in (0..self.switch.lanes_count()).step_by(2) {
            if self.switch.floods(from, target, is_unknown) {
                self.deliver(from, target, packet);
            }
        }
        for target in (1..self.switch.lanes_count()).step_by(2) {
            if self.switch.floods(from, target, is_unknown) {
                self.send(from, target, packet);
            }
        }
    }

    fn deliver(&mut self, from: LaneId, target: LaneId, packet: &[u8]) {
        if let Some(Some(lane)) = self.lanes.get_mut(target / 2)
            && let Some((header, frame)) = packet.split_first_chunk()
        {
            lane.deliver(from, *header, frame, &mut self.segment);
        }
    }

    /// Sends a frame to another process. Its descriptor takes the place of the kernel's header, which
    /// is made to say the same for whoever comes next.
    fn send(&mut self, from: LaneId, target: LaneId, packet: &mut [u8]) {
        let Some(fabric) = &mut self.fabric else { return };
        let Some((kernels, frame)) = packet.split_first_chunk_mut() else { return };
        let header = VnetHeader::from_bytes(*kernels);
        let described = offload::describe(header, frame).or_else(|_| {
            // A protocol that we do not know: what is left to do is done here.
            checksum::complete(header, frame).map(|()| Descriptor::PLAIN)
        });
        let Ok(descriptor) = described else {
            if let Some(Some(lane)) = self.lanes.get_mut(from / 2) {
                lane.counts.drops.count(Cause::Illegal);
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

    /// Meets those again who were lost, where it is time for that; tells how long one may sleep until then.
    fn seek_lost(&mut self) -> Option<Duration> {
        self.fabric.as_mut()?.seek_lost()
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        self.fabric.as_mut()?.poll(&mut self.switch)
    }

    /// Delivers or drops a frame that came from another process: nothing it says of itself is believed.
    fn carry_arrival(&mut self, arrival: Arrival, now_ms: u64) {
        let Some(fabric) = &mut self.fabric else { return };
        if let Some(watch) = &mut self.watch
            && !watch.show(
                arrival.lane,
                capture::FABRIC,
                arrival.content.get(Descriptor::BYTES..).unwrap_or_default(),
            )
        {
            self.watch = None;
        }
        match arrived(&arrival.content) {
            Ok((header, frame)) => match self.switch.judge(arrival.lane, frame, now_ms) {
                Verdict::To(target) => {
                    if let Some(Some(lane)) = self.lanes.get_mut(target / 2) {
                        lane.deliver(arrival.lane, header, frame, &mut self.segment);
                    }
                }
                Verdict::Flood { is_unknown } => {
                    for (place, lane) in self.lanes.iter_mut().enumerate() {
                        if let Some(lane) = lane
                            && self.switch.floods(arrival.lane, 2 * place, is_unknown)
                        {
                            lane.deliver(arrival.lane, header, frame, &mut self.segment);
                        }
                    }
                }
                Verdict::Drop(cause) => fabric.drop_from(arrival.lane, cause),
            },
            Err(_) => fabric.drop_from(arrival.lane, Cause::Illegal),
        }
        if let Content::Whole(payload) = arrival.content {
            fabric.port.recycle(payload);
        }
    }
}

/// The header that makes a peer's frame safe for the kernel, and the frame.
fn arrived(payload: &[u8]) -> Result<([u8; VnetHeader::BYTES], &[u8]), BadFrame> {
    let (descriptor, frame) = payload.split_first_chunk().ok_or(BadFrame::Runt)?;
    let headers = &frame[..frame.len().min(HEADER_BYTES_MAX)];
    Ok((offload::derive(*descriptor, headers, frame.len())?.to_bytes(), frame))
}

/// What tells a queue of an interface apart.
const fn tag_of(id: LaneId, place: usize) -> u64 {
    (place as u64) << 32 | id as u64
}

/// The interface of a tag, and the place of the queue among its own.
const fn place_of(tag: u64) -> (LaneId, usize) {
    ((tag & 0xFFFF_FFFF) as LaneId, (tag >> 32) as usize)
}

const fn is_fabric(lane: LaneId) -> bool {
    lane % 2 == 1
}
