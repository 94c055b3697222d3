//! A single-producer, single-consumer ring of records over memory that the consumer cannot write.
//!
//! A record is one slot and, when its payload is longer than a slot holds, a contiguous piece of the lane's bulk
//! area. Neither end tells the other where that piece lies: both derive it from the lengths of the records before.
//! One cache line moves per short record, and there is no compare-and-swap.

use std::sync::atomic::Ordering;

use bywire_sys::clock;

use crate::distance::{Distance, StoreKind};
use crate::geometry::{INLINE_BYTES, LINE_BYTES, LaneLayout};
use crate::header::{BULK, Header, PROMPT, lap};
use crate::memory::{Memory, SLOT_WORDS};

/// The producer claims the lines of this many short records at once; in a small ring, of half its slots.
const CLAIM_BATCH: u64 = 8;

/// After `STREAK` records without a pause, the consumer looks `LOOK_AHEAD` records ahead.
const STREAK: u32 = 8;
const LOOK_AHEAD: u64 = 16;

/// The peer broke the rules of the ring; the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Why a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room until the consumer frees some.
    Full,
    /// The peer broke the rules of the ring.
    Corrupt,
}

/// A place in a lane's slots, kept beside its count so that no hot path computes it again.
#[derive(Debug)]
struct Cursor {
    offset: usize,
    lap: u8,
}

impl Cursor {
    fn new(layout: &LaneLayout) -> Self {
        Self { offset: layout.slots_offset, lap: lap(0, layout.slots_log2) }
    }

    /// Moves on to the slot of `position`, which is the next one.
    #[inline(always)]
    fn advance(&mut self, layout: &LaneLayout, position: u64) {
        self.offset += LINE_BYTES;
        if position as usize & layout.slot_mask() == 0 {
            *self = Self { offset: layout.slots_offset, lap: lap(position, layout.slots_log2) };
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Producer {
    layout: LaneLayout,
    cursor: Cursor,
    /// Records pushed.
    tail: u64,
    /// Records that the consumer had freed at the last look.
    freed: u64,
    /// Bulk bytes handed out since the beginning, gaps at the wrap included.
    bulk_tail: u64,
    bulk_freed: u64,
    /// Payload bytes of the next record that are already in the bulk area.
    staged: usize,
    /// How these bytes are stored.
    store_kind: StoreKind,
    distance: Distance,
    /// One less than the number of lines claimed at once, which is a power of two.
    claim_mask: u64,
    /// By slot: `bulk_tail` after the slot's record.
    bulk_ends: Box<[u64]>,
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer {
    layout: LaneLayout,
    cursor: Cursor,
    /// Records freed.
    head: u64,
    /// The `head` that the producer was last told.
    told: u64,
    bulk_head: u64,
    bulk_told: u64,
    /// Records taken since the lane was last found empty.
    streak: u32,
}

/// A consumer's position at the time its producer ended.
#[derive(Clone, Copy, Debug)]
pub struct Horizon {
    head: u64,
    bulk_head: u64,
}

/// The start and end of a record's bulk payload, counted since the beginning.
fn bulk_place(position: u64, length: usize, layout: &LaneLayout) -> (u64, u64) {
    let length = (length as u64).next_multiple_of(LINE_BYTES as u64);
    let room = layout.bulk_bytes - (position & (layout.bulk_bytes - 1));
    let start = if length <= room { position } else { position + room };
    (start, start + length)
}

impl LaneLayout {
    #[inline(always)]
    fn slot_offset(&self, position: u64) -> usize {
        self.slots_offset + (position as usize & self.slot_mask()) * LINE_BYTES
    }

    #[inline(always)]
    fn slot_mask(&self) -> usize {
        (1 << self.slots_log2) - 1
    }

    #[inline(always)]
    fn slots(&self) -> u64 {
        1 << self.slots_log2
    }

    #[inline(always)]
    fn bulk_address(&self, position: u64) -> usize {
        self.bulk_offset + (position & (self.bulk_bytes - 1)) as usize
    }
}

impl Producer {
    /// The end that writes the lane at `layout`, from the beginning.
    pub fn new(layout: LaneLayout) -> Self {
        let bulk_ends = vec![0; layout.slots() as usize].into();
        let cursor = Cursor::new(&layout);
        Self {
            layout,
            cursor,
            tail: 0,
            freed: 0,
            bulk_tail: 0,
            bulk_freed: 0,
            staged: 0,
            store_kind: StoreKind::Cached,
            distance: Distance::new(),
            claim_mask: CLAIM_BATCH.min(layout.slots() / 2) - 1,
            bulk_ends,
        }
    }

    /// Records pushed so far: the position that the next one takes.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// The most payload that one record carries.
    pub fn fragment_bytes(&self) -> usize {
        self.layout.fragment_bytes as usize
    }

    /// How often the bulk area has been written from end to end.
    pub fn laps(&self) -> u64 {
        self.bulk_tail / self.layout.bulk_bytes
    }

    /// Payload bytes of the next record that have been staged.
    pub fn staged(&self) -> usize {
        self.staged
    }

    /// From the next record on, payloads lie in the large window at `offset`. The consumer moves at the same record:
    /// the last record that was pushed tells it to.
    pub fn move_bulk(&mut self, offset: usize) {
        self.layout = self.layout.large_window(offset);
        // Counting continues, so that positions in the old area that are still to be freed keep their meaning. Until
        // then, they count as used. The gap before the new area is freed with the record that moves there. Otherwise
        // a payload might never fit behind the gap.
        self.bulk_tail = self.bulk_tail.next_multiple_of(self.layout.bulk_bytes);
        if let Some(last) = self.tail.checked_sub(1) {
            self.bulk_ends[last as usize & self.layout.slot_mask()] = self.bulk_tail;
        }
        self.staged = 0;
    }

    /// Publishes a record whose payload is the first `header.length` bytes of `words`.
    ///
    /// `own` is the segment that holds this lane, `remote` the one in which the consumer counts.
    ///
    /// # Errors
    /// [`PushError`]; nothing was written then.
    #[inline(always)]
    pub fn push_inline<M: Memory>(
        &mut self,
        own: &M,
        remote: &M,
        header: Header,
        words: &[u64],
    ) -> Result<(), PushError> {
        debug_assert!(header.kind & BULK == 0 && header.length as usize <= INLINE_BYTES);
        self.claim_slot(remote)?;
        own.store_words(self.cursor.offset, words);
        self.publish(own, header);
        Ok(())
    }

    /// Publishes a record with the payload `bytes`, of at most [`INLINE_BYTES`].
    ///
    /// # Errors
    /// [`PushError`]; nothing was written then.
    ///
    /// # Panics
    /// On more bytes than a slot holds.
    #[inline(always)]
    pub fn push_short<M: Memory>(
        &mut self,
        own: &M,
        remote: &M,
        header: Header,
        bytes: &[u8],
    ) -> Result<(), PushError> {
        self.claim_slot(remote)?;
        own.store_bytes(self.cursor.offset, bytes);
        self.publish(own, Header { length: bytes.len() as u16, ..header });
        Ok(())
    }

    /// Makes sure that the slot at the cursor is free.
    #[inline(always)]
    fn claim_slot<M: Memory>(&mut self, remote: &M) -> Result<(), PushError> {
        if self.tail - self.freed >= self.layout.slots() {
            self.refresh(remote)?;
            if self.tail - self.freed >= self.layout.slots() {
                return Err(PushError::Full);
            }
        }
        Ok(())
    }

    /// Publishes a record with a payload in the bulk area and `words` in its slot.
    ///
    /// # Errors
    /// [`PushError`]; nothing was written then.
    ///
    /// # Panics
    /// On a payload longer than a fragment.
    #[inline]
    pub fn push_bulk<M: Memory>(
        &mut self,
        own: &M,
        remote: &M,
        header: Header,
        words: &[u64],
        payload: &[u8],
    ) -> Result<(), PushError> {
        let (start, end) = self.claim_bulk(remote, payload.len())?;
        self.store_kind = self.distance.store_kind(payload.len());
        self.write(own, self.layout.bulk_address(start), payload);
        self.finish_payload(own);
        self.publish_bulk(own, header, words, payload.len(), end);
        Ok(())
    }

    /// Makes sure that there is room for a record with a payload of `length` bytes. Returns the payload's start and
    /// end.
    #[inline(always)]
    fn claim_bulk<M: Memory>(&mut self, remote: &M, length: usize) -> Result<(u64, u64), PushError> {
        assert!(length <= self.layout.fragment_bytes as usize, "a payload longer than a fragment");
        let (start, end) = bulk_place(self.bulk_tail, length, &self.layout);
        if !self.fits(end) {
            self.refresh(remote)?;
            if !self.fits(end) {
                return Err(PushError::Full);
            }
        }
        Ok((start, end))
    }

    #[inline(always)]
    fn write<M: Memory>(&self, own: &M, offset: usize, bytes: &[u8]) {
        match self.store_kind {
            StoreKind::Cached => own.write(offset, bytes),
            StoreKind::Nontemporal => own.write_nontemporal(offset, bytes),
        }
    }

    /// Ends the storing of a payload, or of a part of it. Stores around the caches are ordered here and not at
    /// publication: another thread may publish, and its fence would not order the stores of this one.
    #[inline(always)]
    fn finish_payload<M: Memory>(&self, own: &M) {
        if self.store_kind == StoreKind::Nontemporal {
            own.settle();
        }
    }

    #[inline(always)]
    fn publish_bulk<M: Memory>(&mut self, own: &M, header: Header, words: &[u64], length: usize, end: u64) {
        self.bulk_tail = end;
        own.store_words(self.cursor.offset, words);
        self.publish(own, Header { kind: header.kind | BULK, length: length as u16, ..header });
    }

    /// Writes the payload of the next record, which is not published yet, in steps of `step_bytes`. Between two steps
    /// it stops if `goes_on` returns `false`. Returns `true` once the whole payload is there for
    /// [`Self::push_staged`]. Otherwise the next call goes on. Any other record pushed meanwhile takes its place, and
    /// staging begins again.
    ///
    /// # Errors
    /// [`PushError`]; nothing was written then.
    ///
    /// # Panics
    /// On a payload longer than a fragment.
    #[inline]
    pub fn stage<M: Memory>(
        &mut self,
        own: &M,
        remote: &M,
        payload: &[u8],
        step_bytes: usize,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<bool, PushError> {
        let (start, _) = self.claim_bulk(remote, payload.len())?;
        self.choose_store_kind(payload.len());
        loop {
            let until = payload.len().min(self.staged + step_bytes);
            self.write(own, self.layout.bulk_address(start) + self.staged, &payload[self.staged..until]);
            self.staged = until;
            if until == payload.len() || !goes_on() {
                break;
            }
        }
        self.finish_payload(own);
        Ok(self.staged == payload.len())
    }

    /// Writes the next `part` of the payload of the next record, which has `length` bytes in all: as [`Self::stage`], for a
    /// caller that makes the steps itself.
    ///
    /// # Errors
    /// [`PushError`]; nothing was written then.
    ///
    /// # Panics
    /// On a payload longer than a fragment, or a part that does not end within it.
    #[inline]
    pub fn stage_part<M: Memory>(
        &mut self,
        own: &M,
        remote: &M,
        part: &[u8],
        length: usize,
    ) -> Result<bool, PushError> {
        assert!(part.len() <= length - self.staged, "a part ends within its payload");
        let (start, _) = self.claim_bulk(remote, length)?;
        self.choose_store_kind(length);
        self.write(own, self.layout.bulk_address(start) + self.staged, part);
        self.staged += part.len();
        self.finish_payload(own);
        Ok(self.staged == length)
    }

    /// All of a payload is stored in the same way.
    #[inline(always)]
    fn choose_store_kind(&mut self, length: usize) {
        if self.staged == 0 {
            self.store_kind = self.distance.store_kind(length);
        }
    }

    /// Publishes a record with the staged payload, which has `length` bytes, and `words` in its slot.
    ///
    /// # Panics
    /// When another number of bytes is staged.
    #[inline]
    pub fn push_staged<M: Memory>(&mut self, own: &M, header: Header, words: &[u64], length: usize) {
        assert!(self.staged == length, "a payload is staged whole before it is published");
        let (_, end) = bulk_place(self.bulk_tail, length, &self.layout);
        self.publish_bulk(own, header, words, length, end);
    }

    /// Is there room for a record with `length` bytes in the bulk area? 0: a record without bulk payload.
    ///
    /// # Errors
    /// [`Corrupt`] when the peer broke the rules of the ring.
    pub fn has_room<M: Memory>(&mut self, remote: &M, length: usize) -> Result<bool, Corrupt> {
        let (_, end) = bulk_place(self.bulk_tail, length, &self.layout);
        if !self.fits(end) {
            self.refresh(remote).map_err(|_| Corrupt)?;
        }
        Ok(self.fits(end))
    }

    fn fits(&self, bulk_end: u64) -> bool {
        self.tail - self.freed < self.layout.slots() && bulk_end - self.bulk_freed <= self.layout.bulk_bytes
    }

    /// The number of records that the consumer claims to have freed.
    ///
    /// # Errors
    /// [`Corrupt`] when that number goes backwards or exceeds the records pushed.
    #[inline]
    pub fn freed<M: Memory>(&mut self, remote: &M) -> Result<u64, Corrupt> {
        self.refresh(remote).map_err(|_| Corrupt)?;
        Ok(self.freed)
    }

    #[inline(always)]
    fn publish<M: Memory>(&mut self, own: &M, header: Header) {
        self.staged = 0;
        let Cursor { offset, lap } = self.cursor;
        // Release: pairs with the acquire load in `Consumer::peek`; the payload is visible with the header.
        own.store(offset, header.word(lap), Ordering::Release);
        self.bulk_ends[self.tail as usize & self.layout.slot_mask()] = self.bulk_tail;
        self.tail += 1;
        self.cursor.advance(&self.layout, self.tail);
    }

    /// Takes the lines of the next records out of the consumer's cache, several at once. Called after the fence that
    /// follows a short record.
    ///
    /// A line that the consumer has read lies in both caches. The next store to it waits until the other copy is gone, and
    /// the fence behind each record waits for that store: 50 to 250 ns a record. Stores to several lines at once overlap.
    /// A prefetch for writing does not replace them: AMD's Zen 4 ignores it for a line that its core still owns, and it
    /// owns every line whose reader has a read-only mapping (docs/notebook/messages.md).
    #[inline(always)]
    pub fn claim_ahead<M: Memory>(&mut self, own: &M, remote: &M) {
        if self.tail & self.claim_mask == 0 {
            self.claim_lines(own, remote);
        }
    }

    #[inline(never)]
    fn claim_lines<M: Memory>(&mut self, own: &M, remote: &M) {
        let batch = self.claim_mask + 1;
        let end = self.tail + batch;
        if end - self.freed > self.layout.slots() {
            // The next push reports a credit that breaks the rules.
            let _ = self.refresh(remote);
        }
        if end - self.freed <= self.layout.slots() {
            // A batch begins at a multiple of its size, so it never wraps.
            own.claim(self.cursor.offset, batch as usize);
        }
    }

    #[inline(never)]
    fn refresh<M: Memory>(&mut self, remote: &M) -> Result<(), PushError> {
        // Acquire: pairs with the release store in `Consumer::tell`; the consumer's reads of the slots
        // that it frees are over before we overwrite them.
        let start_cycles = clock::cycles_between_loads();
        let freed = remote.load(self.layout.credit_offset, Ordering::Acquire);
        let cycles = clock::cycles_between_loads().wrapping_sub(start_cycles);
        if freed < self.freed || freed > self.tail {
            return Err(PushError::Corrupt);
        }
        // An unchanged line was in our own cache and tells nothing.
        if freed != self.freed {
            self.distance.learn(cycles);
        }
        self.freed = freed;
        if let Some(last) = freed.checked_sub(1) {
            self.bulk_freed = self.bulk_ends[last as usize & self.layout.slot_mask()];
        }
        Ok(())
    }
}

impl Consumer {
    /// The end that reads the lane at `layout`, from the beginning.
    pub fn new(layout: LaneLayout) -> Self {
        let cursor = Cursor::new(&layout);
        Self { layout, cursor, head: 0, told: 0, bulk_head: 0, bulk_told: 0, streak: 0 }
    }

    /// The header of the next record, if one has been published. Its length is checked to fit the lane.
    ///
    /// # Errors
    /// [`Corrupt`] when the length is impossible.
    #[inline(always)]
    pub fn peek<M: Memory>(&self, remote: &M) -> Result<Option<Header>, Corrupt> {
        // Acquire: pairs with the release store in `Producer::publish`.
        let word = remote.load(self.cursor.offset, Ordering::Acquire);
        let Some(header) = Header::of_lap(word, self.cursor.lap) else {
            return Ok(None);
        };
        let limit = if header.kind & BULK == 0 { INLINE_BYTES as u32 } else { self.layout.fragment_bytes };
        if u32::from(header.length) > limit { Err(Corrupt) } else { Ok(Some(header)) }
    }

    /// The words of the record that [`Self::peek`] saw.
    #[inline(always)]
    pub fn words<M: Memory>(&self, remote: &M) -> [u64; SLOT_WORDS] {
        remote.load_words(self.cursor.offset)
    }

    /// Copies the bulk payload of the record that [`Self::peek`] saw.
    ///
    /// # Panics
    /// When `target` is longer than a fragment.
    #[inline]
    pub fn read_bulk<M: Memory>(&self, remote: &M, target: &mut [u8]) {
        self.read_bulk_part(remote, target.len(), 0, target);
    }

    /// Copies a part of the bulk payload of `length` bytes that [`Self::peek`] saw, from `offset` on.
    ///
    /// # Panics
    /// When the part ends behind the bulk area.
    #[inline]
    pub fn read_bulk_part<M: Memory>(&self, remote: &M, length: usize, offset: usize, target: &mut [u8]) {
        let (start, _) = bulk_place(self.bulk_head, length, &self.layout);
        remote.read(self.layout.bulk_address(start) + offset, target);
    }

    /// See [`Producer::move_bulk`].
    pub fn move_bulk(&mut self, offset: usize) {
        self.layout = self.layout.large_window(offset);
        self.bulk_head = self.bulk_head.next_multiple_of(self.layout.bulk_bytes);
    }

    /// Frees the record that [`Self::peek`] saw. `true`: this returned credit, and the producer may have to be woken.
    #[inline(always)]
    pub fn advance<M: Memory>(&mut self, own: &M, header: Header) -> bool {
        // Credit goes back in quarters. So a producer that needs at most a quarter of the lane always finds room once
        // everything has been consumed, and the line moves seldom.
        let mut is_due = header.kind & PROMPT != 0;
        if header.kind & BULK != 0 {
            self.bulk_head = bulk_place(self.bulk_head, header.length.into(), &self.layout).1;
            is_due |= self.bulk_head - self.bulk_told >= self.layout.bulk_bytes / 4;
        }
        self.head += 1;
        self.cursor.advance(&self.layout, self.head);
        self.streak += 1;
        is_due |= self.head - self.told >= self.layout.slots() / 4;
        if is_due {
            self.tell(own);
        }
        is_due
    }

    /// Notes that the lane was found empty.
    #[inline(always)]
    pub fn pause(&mut self) {
        self.streak = 0;
    }

    /// While records come without a pause, prefetches lines of later records, so that many cache misses overlap. (A
    /// line that has not been written yet must be left to its writer.)
    #[inline(always)]
    pub fn look_ahead<M: Memory>(&self, remote: &M) {
        if self.streak >= STREAK {
            remote.expect(self.layout.slot_offset(self.head + LOOK_AHEAD));
        }
    }

    /// The consumer's position for [`Self::was_published`], taken when the producer has ended.
    pub fn horizon(&self) -> Horizon {
        Horizon { head: self.head, bulk_head: self.bulk_head }
    }

    /// Can the record that [`Self::peek`] saw have been published before `horizon` was taken?
    ///
    /// A producer that keeps the rules never has more records outstanding than the lane has slots, nor more payload
    /// than its bulk area holds. Both are counted from what the consumer has freed. At the horizon that was at most
    /// what it had consumed. So a record beyond these bounds was published later. (A bulk area that moves counts from
    /// the same place, and what it leaves behind counts as used.)
    pub fn was_published(&self, horizon: Horizon, header: Header) -> bool {
        let bulk_end = match header.kind & BULK {
            0 => horizon.bulk_head,
            _ => bulk_place(self.bulk_head, header.length.into(), &self.layout).1,
        };
        self.head - horizon.head < self.layout.slots()
            && bulk_end - horizon.bulk_head <= self.layout.bulk_bytes
    }

    /// Records consumed so far.
    pub fn position(&self) -> u64 {
        self.head
    }

    #[inline(never)]
    fn tell<M: Memory>(&mut self, own: &M) {
        self.told = self.head;
        self.bulk_told = self.bulk_head;
        // Release: pairs with the acquire load in `Producer::refresh`.
        own.store(self.layout.credit_offset, self.head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::geometry::{Geometry, LaneName};

    /// Withholds stores around the caches until they are settled, as a core may.
    struct Withholding {
        bytes: RefCell<Vec<u8>>,
        withheld: RefCell<Vec<(usize, Vec<u8>)>>,
        layout: LaneLayout,
    }

    impl Withholding {
        fn new(geometry: &Geometry) -> Self {
            let layout = geometry.lane(LaneName::Low);
            let bytes = RefCell::new(vec![0; layout.bulk_offset + layout.bulk_bytes as usize]);
            Self { bytes, withheld: RefCell::default(), layout }
        }

        fn is_settled(&self) -> bool {
            self.withheld.borrow().is_empty()
        }
    }

    impl Memory for Withholding {
        fn load(&self, offset: usize, _: Ordering) -> u64 {
            u64::from_ne_bytes(*self.bytes.borrow()[offset..].first_chunk().expect("a word"))
        }

        fn store(&self, offset: usize, value: u64, order: Ordering) {
            let is_published = order == Ordering::Release && offset >= self.layout.slots_offset;
            assert!(!is_published || self.is_settled(), "published before its payload");
            self.bytes.borrow_mut()[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        }

        fn load_words(&self, offset: usize) -> [u64; SLOT_WORDS] {
            std::array::from_fn(|index| self.load(offset + 8 + 8 * index, Ordering::Relaxed))
        }

        fn store_words(&self, offset: usize, words: &[u64]) {
            let all = words.iter().enumerate();
            all.for_each(|(index, word)| self.store(offset + 8 + 8 * index, *word, Ordering::Relaxed));
        }

        fn read(&self, offset: usize, target: &mut [u8]) {
            target.copy_from_slice(&self.bytes.borrow()[offset..offset + target.len()]);
        }

        fn write(&self, offset: usize, source: &[u8]) {
            self.bytes.borrow_mut()[offset..offset + source.len()].copy_from_slice(source);
        }

        fn write_nontemporal(&self, offset: usize, source: &[u8]) {
            self.withheld.borrow_mut().push((offset, source.to_vec()));
        }

        fn settle(&self) {
            let withheld = self.withheld.take();
            withheld.iter().for_each(|(offset, source)| self.write(*offset, source));
        }

        fn expect(&self, _: usize) {}

        fn fence(&self) {}
    }

    const PAYLOAD_BYTES: usize = 4096;

    /// A lane to a consumer that is far.
    fn far() -> (Withholding, Withholding, Producer, Consumer) {
        let geometry = Geometry::default();
        let (own, remote) = (Withholding::new(&geometry), Withholding::new(&geometry));
        let layout = own.layout;
        let (mut producer, consumer) = (Producer::new(layout), Consumer::new(layout));
        (0..2).for_each(|_| producer.distance.learn(u64::MAX));
        (own, remote, producer, consumer)
    }

    fn header() -> Header {
        Header { kind: PROMPT, length: PAYLOAD_BYTES as u16, check: 0 }
    }

    fn push(own: &Withholding, remote: &Withholding, producer: &mut Producer, payload: &[u8]) {
        producer.push_bulk(own, remote, header(), &[], payload).expect("room");
    }

    fn take(own: &Withholding, remote: &Withholding, consumer: &mut Consumer) -> Vec<u8> {
        let header = consumer.peek(own).expect("sound").expect("a record");
        let mut payload = vec![0; header.length.into()];
        consumer.read_bulk(own, &mut payload);
        consumer.advance(remote, header);
        payload
    }

    #[test]
    fn a_payload_written_around_the_caches_is_visible_with_its_record() {
        let (own, remote, mut producer, mut consumer) = far();
        push(&own, &remote, &mut producer, &[7; PAYLOAD_BYTES]);
        assert_eq!(producer.store_kind, StoreKind::Nontemporal);
        assert_eq!(take(&own, &remote, &mut consumer), [7; PAYLOAD_BYTES]);
    }

    #[test]
    fn a_staged_payload_may_be_finished_by_another_thread() {
        let (own, remote, mut producer, mut consumer) = far();
        let payload = [9; PAYLOAD_BYTES];
        let mut steps = 0;
        while !producer.stage(&own, &remote, &payload, 1024, || false).expect("room") {
            assert_eq!(producer.store_kind, StoreKind::Nontemporal);
            assert!(own.is_settled(), "a fence of the next thread would order nothing of this one's");
            steps += 1;
        }
        assert_eq!(steps, 3);
        producer.push_staged(&own, header(), &[], PAYLOAD_BYTES);
        assert_eq!(take(&own, &remote, &mut consumer), payload);
    }
}
