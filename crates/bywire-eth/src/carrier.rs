//! The loop that carries frames: from one TAP's queue straight into another's.
//!
//! It sleeps until something can be read, takes what there is, up to a bound for each interface, and sleeps again
//! when nothing is left. There is no timer, so the first frame of a burst waits for nobody, and a burst costs one wake.

use std::time::{Duration, Instant};

use bywire_sys::poller::Poller;
use bywire_sys::socket::Socket;
use bywire_sys::tap::Queue;
use bywire_sys::{Errno, clock};

use crate::address::MacAddress;
use crate::drops::Cause;
use crate::frame::FRAME_BYTES_MAX;
use crate::lane::Lane;
use crate::offload::VnetHeader;
use crate::order::{self, Adoption, Answer, ExchangeError, Manner, Order};
use crate::spin::Spin;
use crate::switch::{LaneId, Side, Switch, Verdict};

/// Lanes of one process.
pub const LANES_MAX: usize = 1024;
/// Frames taken from one interface before the others have their turn.
const BATCH_FRAMES: usize = 64;
/// The tag of the socket on which orders come; lanes have their number.
const ORDERS: u64 = u64::MAX;

/// One loop, with one queue of every interface.
pub struct Carrier {
    orders: Socket,
    poller: Poller,
    ready: Vec<u64>,
    paths: Paths,
    spin: Spin,
    batch_frames: usize,
    began: Instant,
}

/// Everything a frame touches.
struct Paths {
    switch: Switch,
    lanes: Vec<Option<Lane>>,
    /// One header and frame.
    buffer: Box<[u8]>,
    /// One frame that was cut out of it.
    segment: Box<[u8]>,
}

/// How the taking of frames from a lane ended.
enum Taken {
    /// There may be more.
    Some,
    /// There is no more.
    All,
    /// The device is gone.
    Vanished,
}

/// Carries frames until the other end of `orders` is closed.
///
/// # Errors
/// [`ExchangeError`], when orders cannot be understood or the kernel refuses what the loop needs.
pub fn run(orders: Socket) -> Result<(), ExchangeError> {
    let mut carrier = Carrier::new(orders)?;
    loop {
        match carrier.turn() {
            Ok(()) => {}
            Err(ExchangeError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Carrier {
    fn new(orders: Socket) -> Result<Self, ExchangeError> {
        let poller = Poller::new()?;
        poller.add(&orders, ORDERS)?;
        let paths = Paths {
            switch: Switch::new(0),
            lanes: Vec::with_capacity(LANES_MAX),
            buffer: vec![0; VnetHeader::BYTES + FRAME_BYTES_MAX].into(),
            segment: vec![0; VnetHeader::BYTES + FRAME_BYTES_MAX].into(),
        };
        Ok(Self {
            orders,
            poller,
            ready: Vec::with_capacity(LANES_MAX),
            paths,
            spin: Spin::new(Duration::ZERO),
            batch_frames: BATCH_FRAMES,
            began: Instant::now(),
        })
    }

    /// Sleeps until there is something to do, and does it.
    fn turn(&mut self) -> Result<(), ExchangeError> {
        self.wait()?;
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for index in 0..self.ready.len() {
            match self.ready[index] {
                ORDERS => self.obey()?,
                lane => self.take(lane as LaneId, now_ms)?,
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), ExchangeError> {
        self.ready.clear();
        let budget = self.spin.budget_cycles();
        let start = clock::cycles();
        loop {
            self.ready.extend(self.poller.wait(Some(Duration::ZERO))?);
            if !self.ready.is_empty() {
                self.spin.paid();
                return Ok(());
            }
            if clock::cycles().wrapping_sub(start) >= budget {
                break;
            }
            std::hint::spin_loop();
        }
        if budget > 0 {
            self.spin.failed();
        }
        let asleep = clock::cycles();
        self.ready.extend(self.poller.wait(None)?);
        self.spin.woken_after(clock::cycles().wrapping_sub(asleep));
        Ok(())
    }

    fn take(&mut self, lane: LaneId, now_ms: u64) -> Result<(), ExchangeError> {
        for _ in 0..self.batch_frames {
            match self.paths.carry_next(lane, now_ms) {
                Taken::Some => {}
                Taken::All => return Ok(()),
                Taken::Vanished => {
                    self.release(lane);
                    return order::send(&self.orders, &Answer::Vanished(lane), None);
                }
            }
        }
        Ok(())
    }

    fn obey(&mut self) -> Result<(), ExchangeError> {
        while let Some((order, file)) = order::receive::<Order>(&self.orders)? {
            let answer = match order {
                Order::Work(manner) => self.work(manner),
                Order::Adopt(adoption) => match file {
                    Some(file) => self.adopt(&adoption, Queue::from_descriptor(file)),
                    None => Some(Answer::Refused("an interface came without its queue".to_owned())),
                },
                Order::Release(lane) => self.release(lane),
                Order::Count(lane) => Some(self.count(lane)),
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
        None
    }

    fn adopt(&mut self, adoption: &Adoption, queue: Queue) -> Option<Answer> {
        let id = adoption.lane;
        let side = Side::Here { mac: MacAddress(adoption.mac), is_bridge: adoption.is_bridge };
        if id >= LANES_MAX {
            return Some(Answer::Refused(format!("more than {LANES_MAX} interfaces in one process")));
        }
        self.release(id);
        if !self.paths.switch.insert(id, side) {
            return Some(Answer::Refused(format!("the address {} is taken", MacAddress(adoption.mac))));
        }
        if let Err(error) = self.poller.add(&queue, id as u64) {
            return Some(Answer::Refused(format!("a queue cannot be watched: {error}")));
        }
        if self.paths.lanes.len() <= id {
            self.paths.lanes.resize_with(id + 1, || None);
        }
        self.paths.lanes[id] = Some(Lane::new(queue, adoption));
        None
    }

    fn release(&mut self, id: LaneId) -> Option<Answer> {
        if let Some(lane) = self.paths.lanes.get_mut(id).and_then(Option::take) {
            self.poller.remove(&lane.queue);
            self.paths.switch.remove(id);
        }
        None
    }

    fn count(&self, id: LaneId) -> Answer {
        match self.paths.lanes.get(id) {
            Some(Some(lane)) => Answer::Counts(Box::new(lane.counts.clone())),
            _ => Answer::Refused(format!("there is no lane {id}")),
        }
    }
}

impl Paths {
    /// Takes one frame from a lane, and delivers or drops it.
    fn carry_next(&mut self, from: LaneId, now_ms: u64) -> Taken {
        let Some(Some(lane)) = self.lanes.get_mut(from) else { return Taken::All };
        let length = match lane.queue.read(&mut self.buffer) {
            Ok(0) => return Taken::Vanished,
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Taken::All,
            Err(_) => return Taken::Vanished,
        };
        let frame = self.buffer.get(VnetHeader::BYTES..length).unwrap_or_default();
        lane.sends(frame.len(), self.buffer[1] != 0);
        if length == self.buffer.len() {
            lane.counts.drops.count(Cause::Long);
            return Taken::Some;
        }
        match self.switch.judge(from, frame, now_ms) {
            Verdict::To(target) => self.deliver(target, length),
            Verdict::Flood { is_unknown } => {
                for target in 0..self.lanes.len() {
                    if self.switch.floods(from, target, is_unknown) {
                        self.deliver(target, length);
                    }
                }
            }
            Verdict::Drop(cause) => self.drop_from(from, cause),
        }
        Taken::Some
    }

    fn deliver(&mut self, target: LaneId, length: usize) {
        if let Some(Some(lane)) = self.lanes.get_mut(target) {
            lane.deliver(&self.buffer[..length], &mut self.segment);
        }
    }

    fn drop_from(&mut self, from: LaneId, cause: Cause) {
        if let Some(Some(lane)) = self.lanes.get_mut(from) {
            lane.counts.drops.count(cause);
        }
    }
}
