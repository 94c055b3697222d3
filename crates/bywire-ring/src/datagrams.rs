//! Datagrams of one direction between two sockets, beside the kernel's queue.
//!
//! Each end has a segment that it alone writes. It holds the datagrams that this end sends, and its account of those that
//! it receives. A writer gives a datagram to the kernel unless the reader's *gate* is open. A reader closes its gate before
//! any of its threads sleeps where only the kernel wakes it:
//!
//! ```text
//! writer: PENDING → fence → look at the gate                      reader: close the gate → fence → look at PENDING
//!         open: publish in the ring, and end PENDING                      and at the tail: no datagram is in the ring,
//!         closed: end PENDING, and give it to the kernel                  so the next one comes through the kernel
//! ```
//!
//! Whichever fence comes second sees the other side's store. So no reader sleeps in the kernel beside a ring that has
//! something.
//!
//! **Order.** The writer counts the datagrams that it gives to the kernel, and the reader counts those that it gets from
//! there. The ring gets a datagram only once the two counts are equal: the kernel has none of this writer's. So all that is
//! in the ring comes before all that is in the kernel. A datagram that the kernel has dropped is counted as received when
//! the reader finds the kernel's queue empty.
//!
//! **The kernel first.** A writer gives the kernel a datagram at least once in [`BEAT_NS`]. Whatever becomes of the reader,
//! or of the way to it, that datagram is not accounted for, and so everything after it is the kernel's.

use core::sync::atomic::Ordering;

use crate::lane::Corrupt;
use crate::stream::{HEADER_BYTES, Segment};

const MAGIC_OFFSET: usize = 0;
// The line that the reader reads for each datagram.
const TAIL: usize = 64;
const SHIFT: usize = 72;
/// Datagrams that the writer has begun to give to the kernel, and those that the kernel has taken or refused, each plus one;
/// 0: it does not count yet.
const BEGUN: usize = 80;
const ENDED: usize = 88;
/// In a line of its own: the reader looks at it only when it closes its gate.
const PENDING: usize = 128;
// The line that the writer reads when it needs room.
const HEAD: usize = 192;
const TAKEN: usize = 200;
// The line that the writer reads for each datagram, and the reader changes rarely.
const GATE: usize = 256;
const RECEIVED: usize = 264;
const ALLOWANCE: usize = 272;
const OVER: usize = 280;

/// Every word of a header that the two ends use, for models.
pub const WORDS: [usize; 12] =
    [MAGIC_OFFSET, TAIL, SHIFT, BEGUN, ENDED, PENDING, HEAD, TAKEN, GATE, RECEIVED, ALLOWANCE, OVER];

/// Version of this layout, in the first word.
const MAGIC: u64 = 0x4279_7769_7265_6401;

/// The longest datagram: its length in IPv6, of which all that fit into IPv4 are shorter.
pub const DATAGRAM_BYTES_MAX: usize = 65_527;
/// The word before the bytes of a datagram: its length.
const RECORD_BYTES: usize = 8;
/// See the module's text.
pub const BEAT_NS: u64 = 1_000_000;
/// A writer looks whether it may begin again at the ring's first byte when this many bytes may be unread.
const LAP_BYTES: u64 = 2048;
/// The kernel's queue has to be found empty twice, so far apart, before a datagram counts as dropped: another core may be
/// about to queue it.
const LOST_NS: u64 = 50_000;
/// So many datagrams from the writer's address that it has not sent make its flow end.
const KILLED_NS: u64 = 20_000_000;
/// So many datagrams from the writer's address that it has not sent make its flow end.
const EXCESS_MAX: u32 = 16;

/// What the kernel charges a receive buffer for a datagram of this length: its own record and the memory that it is in.
pub fn charge(length: usize) -> u64 {
    /// `struct sk_buff` in its cache, and `struct skb_shared_info` with the headers before the bytes.
    const FIXED: usize = 256;
    const BESIDE: usize = 320 + 60;
    const PAGE: usize = 4096;
    let memory = match length + BESIDE {
        small if small <= 4 * PAGE => small.next_power_of_two(),
        _ => 512 + length.next_multiple_of(PAGE),
    };
    (FIXED + memory) as u64
}

/// The rules of a direction, for rings of one size.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams {
    ring_bytes: usize,
}

/// The way of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the ring, if the gate stays open.
    Ring,
    /// Through the kernel.
    Kernel,
    /// The same, unless the reader accounts in a moment for what the kernel was given. A reader that is asked to do so in vain
    /// is not asked again before it has: see [`Writer::give_up`].
    Behind,
    /// Through the kernel from here on: the other end is over, or its memory holds impossible words.
    Ended,
    /// Nowhere: as in the kernel, the receive buffer is full.
    Full,
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A datagram of this length is in the ring.
    Due(usize),
    /// One may have come through the kernel. A reader that sees one there looks once more before it takes that: the ring may
    /// have got one that was sent before.
    Kernel,
    /// Nothing.
    Nothing,
}

/// What the writer of a direction keeps to itself.
#[derive(Debug)]
pub struct Writer {
    tail: u64,
    shift: u64,
    /// The reader's position and charges, as they were seen last.
    head: u64,
    taken: u64,
    charged: u64,
    begun: u64,
    ended: u64,
    /// The time of the last datagram through the kernel.
    beat_ns: u64,
    /// The reader was waited for in vain.
    is_silent: bool,
}

/// What the reader of a direction keeps to itself.
#[derive(Debug)]
pub struct Reader {
    head: u64,
    taken: u64,
    received: u64,
    /// Nothing that was sent before the counts began is left in the kernel.
    is_settled: bool,
    is_open: bool,
    /// At this time the kernel's queue was found empty, so many were missing, and the writer had ended so many. 0: none are.
    missed_ns: u64,
    missed: u64,
    missed_ended: u64,
    /// Datagrams that were not expected.
    excess: u32,
}

impl Datagrams {
    /// For rings of `ring_bytes`, a power of two.
    pub const fn new(ring_bytes: usize) -> Self {
        assert!(ring_bytes.is_power_of_two());
        Self { ring_bytes }
    }

    /// Marks a fresh segment as one of this layout.
    pub fn found<S: Segment>(&self, own: &S) {
        own.store(MAGIC_OFFSET, MAGIC, Ordering::Relaxed);
    }

    /// Returns whether the peer's segment is of this layout.
    pub fn is_ours<S: Segment>(&self, remote: &S) -> bool {
        remote.load(MAGIC_OFFSET, Ordering::Relaxed) == MAGIC
    }

    /// This end is over: its peer gives everything to the kernel from here on.
    pub fn end<S: Segment>(&self, own: &S) {
        // Release: pairs with the acquire load in `is_over`. What was published comes before.
        own.store(OVER, 1, Ordering::Release);
    }

    /// Returns whether the end that writes this segment is over.
    pub fn is_over<S: Segment>(&self, segment: &S) -> bool {
        // Acquire: pairs with the release store in `end`.
        segment.load(OVER, Ordering::Acquire) != 0
    }

    /// Sets what the receive buffer of this end holds, as the kernel charges for it.
    pub fn allow<S: Segment>(&self, own: &S, bytes: u64) {
        // Relaxed: a bound of the reader's own, and nothing else depends on it.
        own.store(ALLOWANCE, bytes, Ordering::Relaxed);
    }

    fn record_bytes(length: usize) -> u64 {
        (RECORD_BYTES + length.next_multiple_of(8)) as u64
    }

    fn place(&self, position: u64, shift: u64) -> usize {
        position.wrapping_add(shift) as usize & (self.ring_bytes - 1)
    }
}

// The writer's side. One thread at a time calls these.
impl Writer {
    /// Nothing was sent yet.
    pub const NEW: Self = Self {
        tail: 0,
        shift: 0,
        head: 0,
        taken: 0,
        charged: 0,
        begun: 1,
        ended: 1,
        beat_ns: 0,
        is_silent: false,
    };

    /// The counts begin: from here on the writer counts every datagram that it gives to the kernel.
    pub fn begin<S: Segment>(&self, own: &S) {
        own.store(BEGUN, self.begun, Ordering::Relaxed);
        // Release: pairs with the acquire load in `Reader::before_look`. Everything that was not counted is queued before.
        own.store(ENDED, self.ended, Ordering::Release);
    }

    /// Decides the way of a datagram of this length.
    pub fn way<S: Segment>(
        &mut self,
        rules: &Datagrams,
        own: &S,
        remote: &S,
        length: usize,
        now_ns: u64,
    ) -> Way {
        if rules.is_over(remote) {
            return Way::Ended;
        }
        // Acquire: pairs with the release store in `Reader::open`, before which the reader has settled.
        if remote.load(GATE, Ordering::Acquire) == 0 || length > DATAGRAM_BYTES_MAX {
            return Way::Kernel;
        }
        // Acquire: pairs with the release store in `Reader::account`.
        let received = remote.load(RECEIVED, Ordering::Acquire);
        if received != self.begun {
            return match () {
                // An honest reader counts no more.
                () if received > self.begun => Way::Ended,
                () if self.is_silent => Way::Kernel,
                () => Way::Behind,
            };
        }
        self.is_silent = false;
        if now_ns.wrapping_sub(self.beat_ns) >= BEAT_NS {
            return Way::Kernel;
        }
        match self.has_room(rules, own, remote, length) {
            Ok(true) => Way::Ring,
            Ok(false) => Way::Full,
            Err(Corrupt) => Way::Ended,
        }
    }

    /// The reader has not accounted for what the kernel was given. It is not waited for again before it has.
    pub fn give_up(&mut self) {
        self.is_silent = true;
    }

    fn has_room<S: Segment>(
        &mut self,
        rules: &Datagrams,
        own: &S,
        remote: &S,
        length: usize,
    ) -> Result<bool, Corrupt> {
        // As in the kernel: a queue below its bound takes one more, whatever its length.
        let fits = |writer: &Self| {
            let unread = writer.tail.wrapping_sub(writer.head);
            let charges = writer.charged.wrapping_sub(writer.taken);
            unread == 0
                || charges <= remote.load(ALLOWANCE, Ordering::Relaxed)
                    && unread + Datagrams::record_bytes(length) <= rules.ring_bytes as u64
        };
        if self.tail.wrapping_sub(self.head) > LAP_BYTES || !fits(self) {
            self.refresh(rules, own, remote)?;
        }
        Ok(fits(self))
    }

    /// Looks how far the reader has come.
    fn refresh<S: Segment>(&mut self, rules: &Datagrams, own: &S, remote: &S) -> Result<(), Corrupt> {
        // Relaxed: charges that are older than the position below bound a little earlier.
        let taken = remote.load(TAKEN, Ordering::Relaxed);
        // Acquire: pairs with the release store in `Reader::consume`. The reader's copies are over before we overwrite the
        // bytes.
        let head = remote.load(HEAD, Ordering::Acquire);
        let unread = self.tail.wrapping_sub(head);
        if unread > rules.ring_bytes as u64 || head.wrapping_sub(self.head) > rules.ring_bytes as u64 {
            return Err(Corrupt);
        }
        (self.head, self.taken) = (head, taken);
        if unread == 0 {
            self.taken = self.charged;
            // Begins again where pages are in use already. The reader looks at the shift only behind a tail that it has
            // not reached, and such a tail is published after this.
            self.shift = self.tail.wrapping_neg();
            own.store(SHIFT, self.shift, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The highest byte of the ring that a datagram of this length touches, plus one.
    pub fn reach(&self, rules: &Datagrams, length: usize) -> usize {
        let start = rules.place(self.tail, self.shift);
        (start + Datagrams::record_bytes(length) as usize).min(rules.ring_bytes)
    }

    /// Copies bytes to offset `at` of the datagram that is published next. The way was [`Way::Ring`] for a length that
    /// these bytes are within.
    ///
    /// # Safety
    /// `source` must be valid for reads of `length` bytes.
    pub unsafe fn stage<S: Segment>(
        &self,
        rules: &Datagrams,
        own: &S,
        at: usize,
        source: *const u8,
        length: usize,
    ) {
        let start = rules.place(self.tail.wrapping_add((RECORD_BYTES + at) as u64), self.shift);
        let first = length.min(rules.ring_bytes - start);
        // SAFETY: the caller vouches for the source.
        unsafe {
            own.write(HEADER_BYTES + start, source, first);
            if first < length {
                own.write(HEADER_BYTES, source.add(first), length - first);
            }
        }
    }

    /// Publishes the staged datagram. `false`: the reader has closed its gate, and the datagram goes through the kernel.
    pub fn publish<S: Segment>(&mut self, rules: &Datagrams, own: &S, remote: &S, length: usize) -> bool {
        // Relaxed: ordered by the tail below. Records begin at multiples of eight bytes.
        own.store(HEADER_BYTES + rules.place(self.tail, self.shift), length as u64, Ordering::Relaxed);
        own.store(PENDING, 1, Ordering::Relaxed);
        // Pairs with the fence in `Reader::close`.
        own.fence();
        let is_open = remote.load(GATE, Ordering::Relaxed) != 0;
        if is_open {
            self.tail = self.tail.wrapping_add(Datagrams::record_bytes(length));
            self.charged = self.charged.wrapping_add(charge(length));
            // Release: pairs with the acquire load in `Reader::next`.
            own.store(TAIL, self.tail, Ordering::Release);
        }
        // Release: pairs with the acquire load in `Reader::is_quiet`. The tail is published before.
        own.store(PENDING, 0, Ordering::Release);
        is_open
    }

    /// A datagram is about to be given to the kernel. [`Self::end_kernel`] follows.
    pub fn begin_kernel<S: Segment>(&mut self, own: &S, now_ns: u64) {
        self.begun += 1;
        self.beat_ns = now_ns;
        // Relaxed: the kernel's queue orders it before the datagram itself.
        own.store(BEGUN, self.begun, Ordering::Relaxed);
    }

    /// The kernel has taken or refused it.
    pub fn end_kernel<S: Segment>(&mut self, own: &S) {
        self.ended += 1;
        // Release: pairs with the acquire load in `Reader::before_look`. The datagram is queued, or dropped, before.
        own.store(ENDED, self.ended, Ordering::Release);
    }
}

// The reader's side. One thread at a time calls these.
impl Reader {
    /// Nothing was received yet, and the gate is closed.
    pub const NEW: Self = Self {
        head: 0,
        taken: 0,
        received: 0,
        is_settled: false,
        is_open: false,
        missed_ns: 0,
        missed: 0,
        missed_ended: 0,
        excess: 0,
    };

    /// Finds what is next.
    ///
    /// # Errors
    /// [`Corrupt`] when the writer's words are impossible.
    pub fn next<S: Segment>(&self, rules: &Datagrams, remote: &S) -> Result<Next, Corrupt> {
        // Acquire: pairs with the release store in `Writer::publish`.
        let tail = remote.load(TAIL, Ordering::Acquire);
        let unread = tail.wrapping_sub(self.head);
        if unread == 0 {
            // Relaxed: a hint to look into the kernel.
            let is_awaited = remote.load(BEGUN, Ordering::Relaxed) != self.received;
            return Ok(if is_awaited && self.is_settled { Next::Kernel } else { Next::Nothing });
        }
        if unread > rules.ring_bytes as u64 || unread < RECORD_BYTES as u64 {
            return Err(Corrupt);
        }
        let shift = remote.load(SHIFT, Ordering::Relaxed);
        let place = rules.place(self.head, shift) & !7;
        // Relaxed: ordered by the tail. It may be anything, and is bounded below.
        let length = remote.load(HEADER_BYTES + place, Ordering::Relaxed);
        if length > DATAGRAM_BYTES_MAX as u64 || Datagrams::record_bytes(length as usize) > unread {
            return Err(Corrupt);
        }
        Ok(Next::Due(length as usize))
    }

    /// Returns whether [`Self::next`] is about to find something.
    #[inline(always)]
    pub fn has_news<S: Segment>(&self, remote: &S) -> bool {
        // Relaxed, both: a hint.
        remote.load(TAIL, Ordering::Relaxed) != self.head
            || self.is_settled && remote.load(BEGUN, Ordering::Relaxed) != self.received
    }

    /// Copies bytes from offset `at` of the datagram that is due. It has at least that many.
    ///
    /// # Safety
    /// `target` must be valid for writes of `length` bytes.
    pub unsafe fn peek<S: Segment>(
        &self,
        rules: &Datagrams,
        remote: &S,
        at: usize,
        target: *mut u8,
        length: usize,
    ) {
        let shift = remote.load(SHIFT, Ordering::Relaxed);
        let start = rules.place(self.head.wrapping_add((RECORD_BYTES + at) as u64), shift);
        let first = length.min(rules.ring_bytes - start);
        // SAFETY: the caller vouches for the target. The segment bounds what is read.
        unsafe {
            remote.read(HEADER_BYTES + start, target, first);
            if first < length {
                remote.read(HEADER_BYTES, target.add(first), length - first);
            }
        }
    }

    /// Takes the datagram of this length, which was due.
    pub fn consume<S: Segment>(&mut self, own: &S, length: usize) {
        self.head = self.head.wrapping_add(Datagrams::record_bytes(length));
        self.taken = self.taken.wrapping_add(charge(length));
        own.store(TAKEN, self.taken, Ordering::Relaxed);
        // Release: pairs with the acquire load in `Writer::refresh`. The copies are over before.
        own.store(HEAD, self.head, Ordering::Release);
    }

    /// Counts a datagram of the writer's that came through the kernel. `false`: the writer has not given so many to the
    /// kernel, so another socket has its address by now.
    pub fn count<S: Segment>(&mut self, own: &S, remote: &S) -> bool {
        if !self.is_settled {
            return true;
        }
        if self.received < remote.load(BEGUN, Ordering::Relaxed) {
            self.account(own, self.received + 1);
            return true;
        }
        // Or one that had counted as lost, or that was sent before the counts began.
        self.excess += 1;
        self.excess <= EXCESS_MAX
    }

    /// Before the reader looks into the kernel: what the writer has given to it. [`Self::found_empty`] gets it.
    pub fn before_look<S: Segment>(&self, remote: &S) -> u64 {
        // Acquire: pairs with the release store in `Writer::end_kernel`: those are in the queue by now, or dropped.
        remote.load(ENDED, Ordering::Acquire)
    }

    /// The kernel's queue was empty when the writer had ended at least so many. Those that are missing are lost, once they
    /// have been for a moment. A writer that stays in the middle of one was killed there.
    pub fn found_empty<S: Segment>(&mut self, own: &S, remote: &S, ended: u64, now_ns: u64) {
        let begun = remote.load(BEGUN, Ordering::Relaxed);
        if !self.is_settled {
            // 0: the writer does not count yet.
            if ended != 0 && ended == begun {
                self.is_settled = true;
                self.account(own, ended);
            }
            return;
        }
        let missing = ended.saturating_sub(self.received);
        if begun == self.received {
            self.missed_ns = 0;
        } else if self.missed_ns == 0 {
            (self.missed_ns, self.missed, self.missed_ended) = (now_ns, missing, ended);
        } else {
            let age_ns = now_ns.wrapping_sub(self.missed_ns);
            let is_killed = age_ns >= KILLED_NS && ended == self.missed_ended && begun > self.received;
            let lost = match () {
                () if is_killed => begun - self.received,
                // What was missing then and is still missing. Others may be lost since, or on their way.
                () if age_ns >= LOST_NS => missing.min(self.missed),
                () => return,
            };
            if lost > 0 || ended != self.missed_ended {
                (self.missed_ns, self.missed, self.missed_ended) =
                    (now_ns, missing.saturating_sub(lost), ended);
            }
            if lost > 0 {
                self.account(own, self.received + lost);
            }
        }
    }

    fn account<S: Segment>(&mut self, own: &S, received: u64) {
        self.received = received;
        // Release: pairs with the acquire load in `Writer::way`.
        own.store(RECEIVED, received, Ordering::Release);
    }

    /// Returns whether the counts have begun: nothing that was sent before is left in the kernel.
    pub fn counts(&self) -> bool {
        self.is_settled
    }

    /// Returns whether the reader has accounted for everything that the writer has given to the kernel.
    pub fn is_settled<S: Segment>(&self, remote: &S) -> bool {
        self.is_settled && remote.load(BEGUN, Ordering::Relaxed) == self.received
    }

    /// Opens the gate, once the counts agree. No thread sleeps in the kernel, or is about to.
    #[inline]
    pub fn open<S: Segment>(&mut self, own: &S) {
        if !self.is_open && self.is_settled {
            self.is_open = true;
            // Release: pairs with the acquire load in `Writer::way`.
            own.store(GATE, 1, Ordering::Release);
        }
    }

    /// Closes the gate. The reader looks at the ring once more, after [`Self::is_quiet`].
    pub fn close<S: Segment>(&mut self, own: &S) {
        self.is_open = false;
        own.store(GATE, 0, Ordering::Relaxed);
        // Pairs with the fence in `Writer::publish`: either the writer sees the closed gate, or we see that it is pending,
        // or what it has published.
        own.fence();
    }

    /// After [`Self::close`]: returns whether the writer is not about to publish. It is so for a few instructions only.
    pub fn is_quiet<S: Segment>(&self, remote: &S) -> bool {
        // Acquire: pairs with the release store in `Writer::publish`.
        remote.load(PENDING, Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests;
