//! The minimum work of any message layer for a payload: one copy into shared memory and, for a long message, one out of
//! it.
//!
//! These loops do not use Bywire. Two threads on two cores share a ring of records and an area of payloads, in the
//! layout of a port's lane. The source writes each payload and the target reads it, by the laboratory's own [`Writer`]
//! and [`Reader`]. A message layer that copies cannot be faster than these loops.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use bywire_measure::endpoint::{Kind, Mark};
use bywire_measure::memory::{Source, Spec, Test};
use bywire_measure::payload::{Reader, Writer};
use bywire_measure::pin;
use bywire_measure::workload::nhalf;
use bywire_results::cell::Unit;

use crate::contestant::Contestant;
use crate::series::Metric;

/// Records of the ring, as a port's lane has.
const RECORDS: u64 = 256;
/// The area of payloads, as long as a port's large window.
const AREA_BYTES: usize = 4 << 20;
/// The most payload of a record.
const RECORD_BYTES_MAX: usize = 32 << 10;
/// Longer messages are copied to private memory before they are read, as by a port.
const READ_IN_PLACE_MAX: usize = bywire::FRAGMENT_BYTES;
/// Messages that the source writes and the target receives in turn.
const BUFFERS: usize = 2;
const LONG_BYTES: usize = 1 << 20;
/// N½ is set against this share of `memcpy`, as that of Bywire.
const MEMCPY_SHARE: f64 = 0.4;

/// The bytes that the target frees at a time.
const FREED_AT_ONCE: u64 = RECORDS / 8;

#[repr(align(64))]
#[derive(Default)]
struct Record {
    /// The lap, counted from one.
    lap: AtomicU64,
    offset: AtomicU64,
    length: AtomicU64,
    /// Bytes of the message that follow in later records; [`LAST`] ends the stream.
    left: AtomicU64,
}

/// `left` of the last record.
const LAST: u64 = u64::MAX;

#[repr(align(64))]
#[derive(Default)]
struct Freed {
    records: AtomicU64,
    bytes: AtomicU64,
}

struct Lane {
    records: Vec<Record>,
    area: Area,
    freed: Freed,
}

/// Payload bytes: the source writes free bytes, and the target reads published ones.
struct Area(Box<[UnsafeCell<u8>]>);

// SAFETY: a byte is either free, and only the source touches it, or published, and only the target does; the records'
// laps and the freed counts hand it over in order.
unsafe impl Sync for Area {}

impl Area {
    fn new() -> Self {
        Self((0..AREA_BYTES).map(|_| UnsafeCell::new(0)).collect())
    }

    /// Source only, of free bytes.
    fn write(&self, at: usize, payload: &[u8]) {
        let place = &self.0[at..at + payload.len()];
        // SAFETY: within the area by the line above, and free by the caller's count, so nobody else touches it.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place.as_ptr() as *mut u8, payload.len()) };
    }

    /// Target only, of published bytes.
    fn read(&self, range: Range<usize>) -> &[u8] {
        let place = &self.0[range];
        // SAFETY: published and not yet freed, so the source does not touch it before the caller frees it.
        unsafe { std::slice::from_raw_parts(place.as_ptr().cast(), place.len()) }
    }
}

impl Lane {
    fn new() -> Self {
        let records = (0..RECORDS).map(|_| Record::default()).collect();
        Self { records, area: Area::new(), freed: Freed::default() }
    }
}

/// The writing end of a lane.
struct Sender {
    lane: Arc<Lane>,
    writer: Writer,
    buffers: [Vec<u8>; BUFFERS],
    messages: u64,
    /// Bytes of the present message that are in the lane.
    sent: usize,
    records: u64,
    bytes: u64,
}

impl Sender {
    fn new(lane: Arc<Lane>, length: usize) -> Self {
        let buffers = std::array::from_fn(|_| vec![0; length]);
        Self { lane, writer: Writer::default(), buffers, messages: 0, sent: 0, records: 0, bytes: 0 }
    }

    /// Adds the next record to the lane, if there is room. With `is_over`, no further message begins and the last
    /// record ends the stream. `true`: the last record is in the lane.
    #[inline(always)]
    fn step(&mut self, is_over: bool) -> bool {
        let buffer = &mut self.buffers[self.messages as usize % BUFFERS];
        let is_last = is_over && self.sent == 0;
        let length = if is_last { 0 } else { (buffer.len() - self.sent).min(RECORD_BYTES_MAX) };
        let Some(offset) = place(&self.lane, self.records, &mut self.bytes, length) else { return false };
        if self.sent == 0 && !is_last {
            self.writer.fill(buffer, Mark::new(Kind::Data, 0));
        }
        self.lane.area.write(offset, &buffer[self.sent..self.sent + length]);
        self.sent += length;
        let left = if is_last { LAST } else { (buffer.len() - self.sent) as u64 };
        let record = &self.lane.records[(self.records % RECORDS) as usize];
        record.offset.store(offset as u64, Ordering::Relaxed);
        record.length.store(length as u64, Ordering::Relaxed);
        record.left.store(left, Ordering::Relaxed);
        // Release: pairs with the acquire load in `Receiver::step`. The payload and the record are written before.
        record.lap.store(self.records / RECORDS + 1, Ordering::Release);
        self.records += 1;
        if left == 0 {
            self.messages += 1;
            self.sent = 0;
        }
        is_last
    }
}

/// Room for `length` bytes in one piece, on lines of its own.
#[inline(always)]
fn place(lane: &Lane, records: u64, bytes: &mut u64, length: usize) -> Option<usize> {
    let needed = length.next_multiple_of(64) as u64;
    let area = AREA_BYTES as u64;
    let start = if *bytes % area + needed > area { bytes.next_multiple_of(area) } else { *bytes };
    // Acquire: pairs with the release stores in `Receiver::step`. The target has read what is overwritten.
    let freed = lane.freed.records.load(Ordering::Acquire);
    let freed_bytes = lane.freed.bytes.load(Ordering::Acquire);
    if records - freed >= RECORDS || start + needed - freed_bytes > area {
        return None;
    }
    *bytes = start + needed;
    Some((start % area) as usize)
}

/// The reading end of a lane.
struct Receiver {
    lane: Arc<Lane>,
    reader: Reader,
    buffers: [Vec<u8>; BUFFERS],
    messages: u64,
    received: usize,
    records: u64,
    bytes: u64,
    sum: u64,
}

impl Receiver {
    fn new(lane: Arc<Lane>, length: usize) -> Self {
        let buffers = std::array::from_fn(|_| vec![0; length]);
        let reader = Reader::new(false, true);
        Self { lane, reader, buffers, messages: 0, received: 0, records: 0, bytes: 0, sum: 0 }
    }

    /// Takes the next record from the lane, if there is one. `true`: it ended the stream.
    #[inline(always)]
    fn step(&mut self) -> bool {
        let record = &self.lane.records[(self.records % RECORDS) as usize];
        // Acquire: pairs with the release store in `Sender::step`.
        if record.lap.load(Ordering::Acquire) != self.records / RECORDS + 1 {
            hint::spin_loop();
            return false;
        }
        let offset = record.offset.load(Ordering::Relaxed) as usize;
        let length = record.length.load(Ordering::Relaxed) as usize;
        let left = record.left.load(Ordering::Relaxed);
        let payload = self.lane.area.read(offset..offset + length);
        let buffer = &mut self.buffers[self.messages as usize % BUFFERS];
        let message = if buffer.len() <= READ_IN_PLACE_MAX {
            payload
        } else {
            buffer[self.received..self.received + length].copy_from_slice(payload);
            &buffer[..]
        };
        self.received += length;
        if left == 0 {
            self.sum = self.sum.wrapping_add(self.reader.read(message).map_or(0, |received| received.sum));
            self.messages += 1;
            self.received = 0;
        }
        self.records += 1;
        // The source counts in the same way.
        let area = AREA_BYTES as u64;
        let needed = length.next_multiple_of(64) as u64;
        self.bytes =
            if self.bytes % area + needed > area { self.bytes.next_multiple_of(area) } else { self.bytes };
        self.bytes += needed;
        if self.records.is_multiple_of(FREED_AT_ONCE) || length > READ_IN_PLACE_MAX || left == LAST {
            // Release: pairs with the acquire loads in `place`; everything before has been read.
            self.lane.freed.bytes.store(self.bytes, Ordering::Release);
            self.lane.freed.records.store(self.records, Ordering::Release);
        }
        left == LAST
    }
}

/// Bytes per second from one core to the other, by messages of `length`.
fn one_way(length: usize, duration: Duration) -> Result<f64> {
    let lane = Arc::new(Lane::new());
    let (mut sender, mut receiver) = (Sender::new(lane.clone(), length), Receiver::new(lane, length));
    both(
        move || {
            let started = Instant::now();
            // The clock is read once for some 64 KiB.
            let stride = (65_536 / length).max(1);
            while started.elapsed() < duration {
                for _ in 0..stride {
                    sender.step(false);
                }
            }
            while !sender.step(true) {}
            started
        },
        move || {
            while !receiver.step() {}
            hint::black_box(receiver.sum);
            receiver.messages
        },
    )
    .map(|(started, messages, ended)| messages as f64 * length as f64 / (ended - started).as_secs_f64())
}

/// Bytes per second in both directions together, each core sending and receiving in turn.
fn two_way(length: usize, duration: Duration) -> Result<f64> {
    let (there, back) = (Arc::new(Lane::new()), Arc::new(Lane::new()));
    let end = |out: &Arc<Lane>, inwards: &Arc<Lane>| {
        let (mut sender, mut receiver) =
            (Sender::new(out.clone(), length), Receiver::new(inwards.clone(), length));
        move || {
            let started = Instant::now();
            let (mut is_sent, mut is_received) = (false, false);
            while !is_sent || !is_received {
                is_sent = is_sent || sender.step(started.elapsed() >= duration);
                is_received = is_received || receiver.step();
            }
            hint::black_box(receiver.sum);
            (started, receiver.messages)
        }
    };
    let ((started, there), (_, back), ended) = both(end(&there, &back), end(&back, &there))?;
    Ok((there + back) as f64 * length as f64 / (ended - started).as_secs_f64())
}

/// Runs one end on each core. Returns their results, and when both were done.
fn both<S: Send, T: Send>(
    source: impl FnOnce() -> S + Send,
    target: impl FnOnce() -> T + Send,
) -> Result<(S, T, Instant)> {
    let (source_core, target_core) = pin::two_cores();
    thread::scope(|scope| {
        let target = scope.spawn(move || pin::pin_to(target_core).map(|()| target()));
        let source = scope.spawn(move || pin::pin_to(source_core).map(|()| source()));
        let source = source.join().map_err(|_| anyhow!("the source panicked"))??;
        let target = target.join().map_err(|_| anyhow!("the target panicked"))??;
        Ok((source, target, Instant::now()))
    })
}

/// [`Metric::NHalf`], [`Metric::Long`] and [`Metric::TwoWay`].
pub fn contestant(seconds: f64) -> Contestant {
    let take = move || {
        let lengths = nhalf::sizes(LONG_BYTES as u64);
        let long = Duration::from_secs_f64(seconds);
        let short = long.div_f64(4.0);
        let one = |length: &u64| Ok((*length, one_way(*length as usize, short)?));
        let points = lengths.iter().map(one).collect::<Result<Vec<_>>>()?;
        let memcpy = Source::open(&Spec::new(Test::Memcpy), None)?.block(short)?.value;
        let (n_half, _) = nhalf::of_sweep(&points, MEMCPY_SHARE * memcpy);
        let rates =
            [(Metric::Long, one_way(LONG_BYTES, long)?), (Metric::TwoWay, two_way(LONG_BYTES, long)?)];
        Ok(rates.into_iter().chain(n_half.map(|bytes| (Metric::NHalf, bytes))).collect())
    };
    Contestant::adapter("./x figures messages (bare loops)", Unit::BytesPerSecond, take)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_in_either_direction() {
        for length in [8, 1000, READ_IN_PLACE_MAX, READ_IN_PLACE_MAX + 1, LONG_BYTES] {
            assert!(one_way(length, Duration::from_millis(20)).unwrap() > 0.0);
        }
        assert!(two_way(LONG_BYTES, Duration::from_millis(20)).unwrap() > 0.0);
    }
}
