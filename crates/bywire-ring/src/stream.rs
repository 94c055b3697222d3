//! One direction of a byte stream that leaves the kernel at one offset and may come back at another.
//!
//! Each end has a segment that it alone writes. The segment holds the bytes that this end sends, and its account of
//! the bytes that it receives. The writer decides when its direction changes over. The reader's word says how many of
//! its calls sleep in the kernel, where only a byte in the kernel would wake them:
//!
//! ```text
//! writer: PENDING → fence → look at the reader's word          reader: word + 1 → fence → look at the route
//!         at most one sleeps there: give the kernel one more           KERNEL: sleep in the kernel
//!         piece, which wakes it; that piece's end is the cut           else: word − 1, and not into the kernel
//! ```
//!
//! Whichever fence comes second sees the other side's store. So no call sleeps in the kernel behind the cut.

use core::sync::atomic::Ordering;

use crate::hints;
use crate::lane::Corrupt;
use segment_layout::EVENT;

mod failure;
mod segment;
mod segment_layout;
mod slices;

pub use segment::{Mapped, Segment, Window};
pub use segment_layout::{HEADER_BYTES, RING_BYTES, SEGMENT_BYTES, first_bytes, head_bytes, rest_bytes};

const MAGIC_OFFSET: usize = 0;
// Sleepers that wake each other write and read only this line, so one line crosses between the cores.
const TAIL: usize = 64;
const SHIFT: usize = 72;
const ASLEEP: usize = 80;
/// In the line of [`TAIL`], which a reader that returns room reads anyway.
const RELIEF: usize = 96;
/// In the line of [`TAIL`], which a publication writes anyway: see [`Stream::mark`].
const MARKS: [usize; MARKS_COUNT] = [104, 112, 120];
const ROUTE: usize = 128;
const CUT: usize = 136;
const HEAD: usize = 192;
/// In the line of [`HEAD`], which a thread that takes bytes writes anyway.
const TAKING: usize = 200;
/// In the line of [`HEAD`], which a writer that looks for room reads anyway.
const ALLOWANCE: usize = 208;
/// In the line of [`HEAD`], which a thread that returns room has written just before.
const RELIEVED: usize = 216;
const READERS: usize = 256;
const FLAGS: usize = 320;
/// In the line of [`FLAGS`], which a writer reads anyway.
const ORDERED: usize = 328;
/// In the line of [`FLAGS`], which changes as rarely.
const FAILURE: usize = 336;
/// The number under which the writer counts its news while [`QUIET`] is set: see [`hints`].
const HINT: usize = 344;

/// The number of publications of which the times are kept.
pub const MARKS_COUNT: usize = 3;

/// Every word of a header that the two ends use, for models.
pub const WORDS: [usize; 20] = [
    MAGIC_OFFSET,
    TAIL,
    SHIFT,
    ROUTE,
    CUT,
    HEAD,
    TAKING,
    READERS,
    ASLEEP,
    EVENT,
    FLAGS,
    RELIEF,
    ALLOWANCE,
    MARKS[0],
    MARKS[1],
    MARKS[2],
    RELIEVED,
    ORDERED,
    FAILURE,
    HINT,
];

/// Version of this layout, in the first word.
const MAGIC: u64 = 0x4279_7769_7265_0005;

/// In [`READERS`]: this end's mappings are made, and its peer may change over.
const PREPARED: u64 = 1 << 63;

/// In [`ASLEEP`]: one more sleeper for bytes, and one more for room.
const FOR_BYTES: u64 = 1;
const FOR_ROOM: u64 = 1 << 16;
/// In [`ASLEEP`]: room is wanted by a thread that does not sleep on the event word, but may sleep by the doorbell.
const WANTS_ROOM: u64 = 1 << 32;
/// In [`ASLEEP`]: nobody looks at the connection. The writer counts its news for it.
const QUIET: u64 = 1 << 33;
/// In [`ASLEEP`]: counts every sleep that ever began, so that no thread is woken twice for one sleep.
const ROUND: u64 = 1 << 34;

/// This end has shut down its sending. A TCP end goes on receiving.
pub const HALF: u64 = 1;
/// This end's process is about to end.
pub const LEAVING: u64 = 4;
/// This end wants its receiving direction back in the kernel, and takes nothing more out of the ring.
pub const ASKS_BACK: u64 = 2;
/// This end has shut down its receiving. What arrives is refused, in domains that tell the other end.
pub const DEAF: u64 = 8;
/// This end has broken the connection off.
pub const BROKEN_OFF: u64 = 16;
/// This end has ended its ring, and the kernel has not been given all of its last bytes.
pub const OWES: u64 = 32;
/// Other processes than the one that has offered this end may have it.
pub const FORKED: u64 = 64;

/// How the bytes of a direction travel now, as published by its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through the kernel.
    Kernel,
    /// The writer is about to change over. This lasts only for a moment, in which the writer does not sleep.
    Pending,
    /// Through the kernel up to the cut, then through the ring.
    Ring,
    /// The writer is about to end the ring. For a moment, no reader takes anything out of it.
    Ending,
    /// Through the ring up to this many bytes of it, and from there through the kernel, for good.
    Back(u64),
}

const KERNEL: u64 = 0;
const PENDING: u64 = 1;
const RING: u64 = 2;
const BACK: u64 = 3;
const ENDING: u64 = 4;

/// The sleepers that have to be woken after a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Sleepers on the event word.
    pub futex: bool,
    /// Sleepers on the doorbell of their process, if there are any: a page of the process says so.
    pub doorbell: bool,
    /// The round to pass to the next wake once this one has been carried out.
    pub round: u32,
    /// The number for which the news are to be counted, as nobody looks at the connection.
    pub hint: Option<usize>,
}

/// What was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Bytes, for readers.
    Bytes,
    /// Room, for writers.
    Room,
    /// A route or a flag, for both.
    Route,
}

/// What a sleeper on the event word waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Bytes.
    Bytes,
    /// Room.
    Room,
}

impl Sleep {
    fn unit(self) -> u64 {
        match self {
            Self::Bytes => FOR_BYTES,
            Self::Room => FOR_ROOM,
        }
    }
}

/// The rules of a direction, for rings of one size.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    ring_bytes: usize,
}

impl Stream {
    /// For rings of `ring_bytes`, a power of two.
    pub const fn new(ring_bytes: usize) -> Self {
        assert!(ring_bytes.is_power_of_two());
        Self { ring_bytes }
    }

    /// Marks a fresh segment as one of this layout.
    pub fn found<S: Segment>(&self, own: &S) {
        own.store(MAGIC_OFFSET, MAGIC, Ordering::Relaxed);
        self.bound(own, self.ring_bytes);
    }

    /// Is the peer's segment of this layout?
    pub fn is_ours<S: Segment>(&self, remote: &S) -> bool {
        remote.load(MAGIC_OFFSET, Ordering::Relaxed) == MAGIC
    }

    // The writer's side. Every method that stores into the segment is called by one thread at a time.

    /// How many bytes fit now, if at most `window` may be unread.
    ///
    /// # Errors
    /// [`Corrupt`] when the reader claims to have read bytes that were not written.
    pub fn room<S: Segment>(&self, own: &S, remote: &S, window: usize) -> Result<usize, Corrupt> {
        Ok(window.saturating_sub(self.begin_writing(own, remote)?))
    }

    /// How many of our bytes the peer has not taken, for a writer that is about to write some.
    ///
    /// # Errors
    /// [`Corrupt`], as above.
    pub fn begin_writing<S: Segment>(&self, own: &S, remote: &S) -> Result<usize, Corrupt> {
        let unread = self.unread_by_peer(own, remote)?;
        if unread == 0 {
            // Everything written has been read: begin again where pages are in use already. The reader looks at the
            // shift only behind a tail that it has not reached, and such a tail is published after this.
            let tail = own.load(TAIL, Ordering::Relaxed);
            own.store(SHIFT, tail.wrapping_neg(), Ordering::Relaxed);
        }
        Ok(unread)
    }

    /// As [`Self::room`], for a thread that is not the writer now.
    ///
    /// # Errors
    /// [`Corrupt`], as above.
    pub fn room_hint<S: Segment>(&self, own: &S, remote: &S, window: usize) -> Result<usize, Corrupt> {
        self.unread_by_peer(own, remote).map(|unread| window.saturating_sub(unread))
    }

    /// The reader's bound on unread bytes, by its own word, which may be anything; 0: it has set none.
    pub fn allowance<S: Segment>(&self, remote: &S) -> u64 {
        // Relaxed: a bound of its own. A reader that raises it wakes the writers that wait.
        remote.load(ALLOWANCE, Ordering::Relaxed)
    }

    /// Sets how many bytes the writer leaves unread at most. From half of them on, the reader reports room. It precedes
    /// [`Self::want_room`] and [`Self::arm`].
    pub fn bound<S: Segment>(&self, own: &S, window: usize) {
        // Relaxed: ordered by the fences of `want_room` and `arm`, with which that in `is_relieved` pairs.
        own.store(RELIEF, window as u64 / 2, Ordering::Relaxed);
    }

    /// How many of our bytes the peer has not taken.
    ///
    /// # Errors
    /// [`Corrupt`], as above.
    pub fn unread_by_peer<S: Segment>(&self, own: &S, remote: &S) -> Result<usize, Corrupt> {
        // Acquire: pairs with the release store in `consume`; the reader's copies are over before we overwrite the
        // bytes.
        let head = remote.load(HEAD, Ordering::Acquire);
        self.distance(head, own.load(TAIL, Ordering::Relaxed))
    }

    /// The highest byte of the ring that [`Self::stage`] of `length` bytes touches, plus one.
    pub fn reach<S: Segment>(&self, own: &S, length: usize) -> usize {
        let start = self.place(own.load(TAIL, Ordering::Relaxed), own.load(SHIFT, Ordering::Relaxed));
        (start + length).min(self.ring_bytes)
    }

    /// Copies bytes to `at` bytes behind the published ones, around the caches if the reader is far. All of them must
    /// be within [`Self::room`].
    ///
    /// # Safety
    /// `source` must be valid for reads of `length` bytes.
    pub unsafe fn stage<S: Segment>(
        &self,
        own: &S,
        at: usize,
        source: *const u8,
        length: usize,
        is_far: bool,
    ) {
        let position = own.load(TAIL, Ordering::Relaxed).wrapping_add(at as u64);
        let start = self.place(position, own.load(SHIFT, Ordering::Relaxed));
        let first = length.min(self.ring_bytes - start);
        // SAFETY: the caller vouches for the source.
        unsafe {
            if is_far {
                own.write_around(HEADER_BYTES + start, source, first);
            } else {
                own.write(HEADER_BYTES + start, source, first);
            }
            if first < length {
                own.write(HEADER_BYTES, source.add(first), length - first);
            }
        }
    }

    /// Publishes `length` staged bytes.
    pub fn publish<S: Segment>(&self, own: &S, length: usize) {
        let tail = own.load(TAIL, Ordering::Relaxed);
        // Release: pairs with the acquire load in `available`.
        own.store(TAIL, tail.wrapping_add(length as u64), Ordering::Release);
    }

    /// Returns whether this reader orders its connections by the times of publications.
    #[inline(always)]
    pub fn is_ordered<S: Segment>(&self, remote: &S) -> bool {
        // Relaxed: a publication without a time is ordered by what the reader knows itself.
        remote.load(ORDERED, Ordering::Relaxed) != 0
    }

    /// Keeps `now` as the time of the publication that follows, or of the end of the stream. The writer does not know
    /// which publications its reader has noticed. So it keeps the times of the last ones, the latest first.
    pub fn mark<S: Segment>(&self, own: &S, now: u64) {
        // Relaxed, all of them: ordered by the publication. A reader that finds two publications at once may take the
        // time of one for that of the other, and nothing but an order of events depends on it.
        for (to, from) in [(2, 1), (1, 0)] {
            own.store(MARKS[to], own.load(MARKS[from], Ordering::Relaxed), Ordering::Relaxed);
        }
        own.store(MARKS[0], now, Ordering::Relaxed);
    }

    /// The places of `length` published bytes of our own ring, from `position` on: offsets in the segment, and
    /// lengths.
    pub fn places<S: Segment>(&self, own: &S, position: u64, length: usize) -> [(usize, usize); 2] {
        let start = self.place(position, own.load(SHIFT, Ordering::Relaxed));
        let first = length.min(self.ring_bytes - start);
        [(HEADER_BYTES + start, first), (HEADER_BYTES, length - first)]
    }

    /// The number of bytes ever published in this ring.
    pub fn tail<S: Segment>(&self, own: &S) -> u64 {
        own.load(TAIL, Ordering::Relaxed)
    }

    /// Begins to change over. `false`: the reader does not allow it now, and the route is [`Route::Kernel`] again.
    ///
    /// On `true`, the caller gives the kernel one more piece without sleeping, then calls [`Self::cut`], or
    /// [`Self::abandon`] if the kernel took nothing.
    pub fn begin<S: Segment>(&self, own: &S, remote: &S) -> bool {
        own.store(ROUTE, PENDING, Ordering::Relaxed);
        // Pairs with the fence in `enter`.
        own.fence();
        // Acquire: pairs with the release additions in `prepare` and `leave`.
        let readers = remote.load(READERS, Ordering::Acquire);
        // One sleeper is woken by the piece; a second one might sleep on.
        let may = readers & PREPARED != 0
            && readers & !PREPARED <= 1
            && remote.load(FLAGS, Ordering::Relaxed) & ASKS_BACK == 0;
        if !may {
            self.abandon(own);
        }
        may
    }

    /// Stays in the kernel after all.
    pub fn abandon<S: Segment>(&self, own: &S) {
        // Release: pairs with the acquire load in `route`.
        own.store(ROUTE, KERNEL, Ordering::Release);
    }

    /// Everything up to `offset` of the stream has been given to the kernel; what follows is in the ring.
    pub fn cut<S: Segment>(&self, own: &S, offset: u64) {
        own.store(CUT, offset, Ordering::Relaxed);
        // Release: pairs with the acquire load in `route`.
        own.store(ROUTE, RING, Ordering::Release);
    }

    /// Begins to end the ring: from here on no reader begins to take anything out of it. [`Self::back`] follows, at
    /// the position of [`Self::untaken`] if there is one, otherwise at the tail.
    pub fn begin_end<S: Segment>(&self, own: &S) {
        // Release: pairs with the acquire load in `route`.
        own.store(ROUTE, ENDING, Ordering::Release);
        // Pairs with the fence in `begin_taking`: either the reader sees the new route, or we see that it takes.
        own.fence();
    }

    /// After [`Self::begin_end`]: the position up to which the reader has taken. It takes no more. `None`: it is
    /// about to take some.
    ///
    /// # Errors
    /// [`Corrupt`] when the reader claims to have read bytes that were not written.
    pub fn untaken<S: Segment>(&self, own: &S, remote: &S) -> Result<Option<u64>, Corrupt> {
        // Acquire: pairs with the release store in `end_taking`, before which the reader has stored its position.
        if remote.load(TAKING, Ordering::Acquire) != 0 {
            return Ok(None);
        }
        let unread = self.unread_by_peer(own, remote)?;
        Ok(Some(own.load(TAIL, Ordering::Relaxed).wrapping_sub(unread as u64)))
    }

    /// The ring ends at its byte `until`; what follows is given to the kernel.
    pub fn back<S: Segment>(&self, own: &S, until: u64) {
        // Release: pairs with the acquire load in `route`.
        own.store(ROUTE, BACK | until << 3, Ordering::Release);
    }

    // The reader's side.

    /// Says that this end is ready for its peer to change over.
    pub fn prepare<S: Segment>(&self, own: &S) {
        // Release: everything that this end made ready comes before; pairs with the acquire loads in `begin` and
        // `peer_is_prepared`.
        own.add(READERS, PREPARED, Ordering::Release);
    }

    /// Has the peer prepared?
    pub fn peer_is_prepared<S: Segment>(&self, remote: &S) -> bool {
        // Acquire: pairs with the release addition in `prepare`.
        remote.load(READERS, Ordering::Acquire) & PREPARED != 0
    }

    /// How the bytes of the direction that `writer` belongs to travel.
    ///
    /// # Errors
    /// [`Corrupt`] when the writer's word is impossible.
    #[inline(always)]
    pub fn route<S: Segment>(&self, writer: &S) -> Result<Route, Corrupt> {
        // Acquire: pairs with the release stores in `cut`, `abandon`, `begin_end` and `back`.
        let word = writer.load(ROUTE, Ordering::Acquire);
        match (word & 7, word >> 3) {
            (KERNEL, 0) => Ok(Route::Kernel),
            (PENDING, 0) => Ok(Route::Pending),
            (RING, 0) => Ok(Route::Ring),
            (ENDING, 0) => Ok(Route::Ending),
            (BACK, until) => Ok(Route::Back(until)),
            _ => Err(Corrupt),
        }
    }

    /// Where the ring begins, in bytes of the whole stream.
    pub fn cut_offset<S: Segment>(&self, writer: &S) -> u64 {
        writer.load(CUT, Ordering::Relaxed)
    }

    /// Announces a call that may sleep in the kernel, and returns the route. The call may sleep only on
    /// [`Route::Kernel`]. [`Self::leave`] follows in any case.
    ///
    /// # Errors
    /// [`Corrupt`], as from [`Self::route`].
    pub fn enter<S: Segment>(&self, own: &S, remote: &S) -> Result<Route, Corrupt> {
        own.add(READERS, 1, Ordering::Relaxed);
        // Pairs with the fence in `begin`.
        own.fence();
        self.route(remote)
    }

    /// Ends the call that [`Self::enter`] announced.
    pub fn leave<S: Segment>(&self, own: &S) {
        // Release: pairs with the acquire loads in `readers` and `begin`; the bytes that the call has taken are counted
        // before.
        own.add(READERS, u64::MAX, Ordering::Release);
    }

    /// How many calls of this end are in the kernel.
    pub fn readers<S: Segment>(&self, own: &S) -> u64 {
        // Acquire: pairs with the release addition in `leave`.
        own.load(READERS, Ordering::Acquire) & !PREPARED
    }

    /// How many bytes of the ring can be read.
    ///
    /// # Errors
    /// [`Corrupt`] when the writer claims more than a ring holds, or takes bytes back.
    #[inline(always)]
    pub fn available<S: Segment>(&self, own: &S, remote: &S) -> Result<usize, Corrupt> {
        // Acquire: pairs with the release store in `publish`.
        let tail = remote.load(TAIL, Ordering::Acquire);
        self.distance(own.load(HEAD, Ordering::Relaxed), tail)
    }

    /// Announces that bytes are about to be taken out of the ring, by one thread at a time, and returns the route.
    /// Bytes may be taken only on [`Route::Ring`] or [`Route::Back`]. [`Self::end_taking`] follows in any case.
    ///
    /// # Errors
    /// [`Corrupt`], as from [`Self::route`].
    pub fn begin_taking<S: Segment>(&self, own: &S, remote: &S) -> Result<Route, Corrupt> {
        own.store(TAKING, 1, Ordering::Relaxed);
        // Pairs with the fence in `begin_end`.
        own.fence();
        self.route(remote)
    }

    /// Ends what [`Self::begin_taking`] began.
    pub fn end_taking<S: Segment>(&self, own: &S) {
        // Release: the position comes before; pairs with the acquire load in `untaken`.
        own.store(TAKING, 0, Ordering::Release);
    }

    /// Where the first unread byte is in the peer's ring, by the peer's own word. It holds for all bytes that are
    /// available.
    pub fn first_unread<S: Segment>(&self, own: &S, remote: &S) -> usize {
        self.place(own.load(HEAD, Ordering::Relaxed), remote.load(SHIFT, Ordering::Relaxed))
    }

    /// Copies available bytes, from `at` bytes behind the first unread one on, which is at the place `first`.
    ///
    /// # Safety
    /// `target` must be valid for writes of `length` bytes.
    pub unsafe fn peek<S: Segment>(
        &self,
        remote: &S,
        first: usize,
        at: usize,
        target: *mut u8,
        length: usize,
    ) {
        let start = self.place(first as u64, at as u64);
        let before_end = length.min(self.ring_bytes - start);
        // SAFETY: the caller vouches for the target.
        unsafe {
            remote.read(HEADER_BYTES + start, target, before_end);
            if before_end < length {
                remote.read(HEADER_BYTES, target.add(before_end), length - before_end);
            }
        }
    }

    /// Returns `length` bytes of room.
    pub fn consume<S: Segment>(&self, own: &S, length: usize) {
        let head = own.load(HEAD, Ordering::Relaxed);
        // Release: pairs with the acquire load in `unread_by_peer`.
        own.store(HEAD, head.wrapping_add(length as u64), Ordering::Release);
    }

    /// Right after [`Self::consume`] of `taken` bytes: have these emptied half of what the writer may leave unread? It
    /// waits for room only where less than a third is left, so no other call has to tell it.
    pub fn is_relieved<S: Segment>(&self, own: &S, remote: &S, taken: usize) -> bool {
        // Pairs with the fences in `arm` and `want_room`: either the writer sees the room, or we see how full it was,
        // and its bound.
        own.fence();
        let tail = remote.load(TAIL, Ordering::Relaxed);
        let unread = tail.wrapping_sub(own.load(HEAD, Ordering::Relaxed));
        // A wrong value of the writer's delays its own sleepers only.
        let half = remote.load(RELIEF, Ordering::Relaxed);
        unread <= half && unread.wrapping_add(taken as u64) > half
    }

    /// Asks the writer to [`Self::mark`] its publications.
    pub fn want_order<S: Segment>(&self, own: &S) {
        // The writer reads this line for each message: a store of the same value would take it from its cache.
        if own.load(ORDERED, Ordering::Relaxed) == 0 {
            // Relaxed: see `is_ordered`.
            own.store(ORDERED, 1, Ordering::Relaxed);
        }
    }

    /// The times of the writer's last publications, the latest first, by its own words, which may be anything; 0: none.
    pub fn marks<S: Segment>(&self, remote: &S) -> [u64; MARKS_COUNT] {
        // Relaxed: see `mark`.
        MARKS.map(|offset| remote.load(offset, Ordering::Relaxed))
    }

    /// The first of [`Self::marks`], alone.
    #[inline(always)]
    pub fn last_mark<S: Segment>(&self, remote: &S) -> u64 {
        // Relaxed: see `mark`.
        remote.load(MARKS[0], Ordering::Relaxed)
    }

    /// After [`Self::is_relieved`]: keeps `now` as the time at which room was returned.
    pub fn relieve<S: Segment>(&self, own: &S, now: u64) {
        // Relaxed: only an order of events depends on it.
        own.store(RELIEVED, now, Ordering::Relaxed);
    }

    /// When the reader last returned room to a writer that may wait for it, by the reader's own word.
    pub fn relieved<S: Segment>(&self, remote: &S) -> u64 {
        // Relaxed: see `relieve`.
        remote.load(RELIEVED, Ordering::Relaxed)
    }

    /// Publishes how many bytes this end allows to be unread; 0: no bound of its program's. Threads that wait for room
    /// are woken next.
    pub fn allow<S: Segment>(&self, own: &S, bytes: u64) {
        // Relaxed: ordered by the fence in `wake`. Either we see the sleeper there, or it sees the allowance.
        own.store(ALLOWANCE, bytes, Ordering::Relaxed);
    }

    /// Prefetches everything that a thread woken for bytes from the place `first` on is about to read, all at once.
    pub fn expect<S: Segment>(&self, own: &S, remote: &S, first: usize) {
        remote.expect(TAIL);
        remote.expect(HEADER_BYTES + first);
        own.expect(TAIL);
    }

    /// The number of bytes that this end has ever taken out of the peer's ring.
    pub fn head<S: Segment>(&self, own: &S) -> u64 {
        own.load(HEAD, Ordering::Relaxed)
    }

    // Both sides.

    /// Announces a sleeper, and returns the value that it expects of the peer's event word. The caller looks at
    /// everything once more, and only then sleeps.
    pub fn arm<S: Segment>(&self, own: &S, remote: &S, sleep: Sleep) -> u32 {
        // Loaded before the announcement: a wake that follows it at once changes the word.
        let expected = self.event(remote);
        own.add(ASLEEP, sleep.unit() + ROUND, Ordering::Relaxed);
        // Pairs with the fence in `wake`.
        own.fence();
        expected
    }

    /// Counts out a sleeper that is awake.
    pub fn disarm<S: Segment>(&self, own: &S, sleep: Sleep) {
        own.add(ASLEEP, sleep.unit().wrapping_neg(), Ordering::Relaxed);
    }

    /// The value that a sleeper on the peer's event word expects there.
    pub fn event<S: Segment>(&self, remote: &S) -> u32 {
        // Acquire: pairs with the release addition in `wake`.
        remote.load(EVENT, Ordering::Acquire) as u32
    }

    /// After a publication of ours: which sleepers may there be at the other end? Sleepers on the event word see a
    /// new value.
    ///
    /// `woken` is the round of the last wake: all sleepers of that round have been woken already.
    #[inline(always)]
    pub fn wake<S: Segment>(&self, own: &S, remote: &S, news: News, woken: u32) -> Wake {
        // Pairs with the fence in `arm`: either we see the sleeper, or it sees what we have published.
        own.fence();
        let asleep = remote.load(ASLEEP, Ordering::Relaxed);
        let round = (asleep / ROUND) as u32;
        let (futex, doorbell) = match news {
            News::Bytes => (asleep & (FOR_ROOM - 1) != 0, true),
            News::Room => (asleep & (WANTS_ROOM - 1) >= FOR_ROOM, asleep & WANTS_ROOM != 0),
            News::Route => (asleep & (WANTS_ROOM - 1) != 0, true),
        };
        let futex = futex && round != woken;
        if futex {
            own.add(EVENT, 1, Ordering::Release);
        }
        let hint = (asleep & QUIET != 0).then(|| {
            // Pairs with the release addition in `begin_quiet`: the number was stored before.
            own.fence();
            remote.load(HINT, Ordering::Relaxed) as usize % hints::NUMBERS
        });
        Wake { futex, doorbell, round, hint }
    }

    /// Nobody looks at the connection from here on: news of the peer are counted for this number ([`hints`]). The caller looks once
    /// more. One thread at a time calls this and [`Self::end_quiet`].
    pub fn begin_quiet<S: Segment>(&self, own: &S, number: usize) {
        own.store(HINT, number as u64, Ordering::Relaxed);
        if !self.is_quiet(own) {
            // Release: pairs with the fence in `wake`, behind a load of the word. The number is stored before.
            own.add(ASLEEP, QUIET, Ordering::Release);
        }
        // Pairs with the fence in `wake`.
        own.fence();
    }

    /// The number of a quiet connection.
    pub fn number<S: Segment>(&self, own: &S) -> usize {
        own.load(HINT, Ordering::Relaxed) as usize % hints::NUMBERS
    }

    /// The connection is looked at again. The caller does so next.
    pub fn end_quiet<S: Segment>(&self, own: &S) {
        if self.is_quiet(own) {
            own.add(ASLEEP, QUIET.wrapping_neg(), Ordering::Relaxed);
        }
    }

    /// Returns whether nobody looks at the connection at this end.
    pub fn is_quiet<S: Segment>(&self, own: &S) -> bool {
        own.load(ASLEEP, Ordering::Relaxed) & QUIET != 0
    }

    /// Asks for a ring of the doorbell when there is room, until [`Self::has_room`]. The caller looks for room once more.
    pub fn want_room<S: Segment>(&self, own: &S) {
        if own.load(ASLEEP, Ordering::Relaxed) & WANTS_ROOM == 0 {
            // One thread at a time changes this bit, so it is added once.
            own.add(ASLEEP, WANTS_ROOM, Ordering::Relaxed);
        }
        // Pairs with the fence in `wake`.
        own.fence();
    }

    /// Withdraws [`Self::want_room`].
    pub fn has_room<S: Segment>(&self, own: &S) {
        if own.load(ASLEEP, Ordering::Relaxed) & WANTS_ROOM != 0 {
            own.add(ASLEEP, WANTS_ROOM.wrapping_neg(), Ordering::Relaxed);
        }
    }

    /// Sets flags of this end; called by one thread at a time.
    pub fn raise<S: Segment>(&self, own: &S, flags: u64) {
        let present = own.load(FLAGS, Ordering::Relaxed);
        // Release: the state that the flag describes comes before; pairs with the acquire load in `flags`.
        own.store(FLAGS, present | flags, Ordering::Release);
        // Pairs with the fence in `begin`, for a caller that looks at the peer's route next.
        own.fence();
    }

    /// Clears flags of this end; called by the thread that may raise them.
    pub fn lower<S: Segment>(&self, own: &S, flags: u64) {
        // Release: pairs with the acquire load in `flags`, as in `raise`.
        own.store(FLAGS, own.load(FLAGS, Ordering::Relaxed) & !flags, Ordering::Release);
    }

    /// The flags of an end.
    pub fn flags<S: Segment>(&self, segment: &S) -> u64 {
        // Acquire: pairs with the release store in `raise`.
        segment.load(FLAGS, Ordering::Acquire)
    }

    /// Has this end read everything that was written for it, in rings that neither end wants to leave?
    #[inline(always)]
    pub fn is_at_rest<S: Segment>(&self, own: &S, remote: &S) -> bool {
        // Acquire: these loads pair with the release stores in `publish`, `cut`, `back` and `raise`, for a caller
        // that goes on from here.
        remote.load(TAIL, Ordering::Acquire) == own.load(HEAD, Ordering::Relaxed)
            && remote.load(ROUTE, Ordering::Acquire) == RING
            && own.load(ROUTE, Ordering::Acquire) == RING
            && remote.load(FLAGS, Ordering::Acquire) | own.load(FLAGS, Ordering::Relaxed) == 0
    }

    fn distance(&self, head: u64, tail: u64) -> Result<usize, Corrupt> {
        let unread = tail.wrapping_sub(head);
        if unread > self.ring_bytes as u64 { Err(Corrupt) } else { Ok(unread as usize) }
    }

    fn place(&self, position: u64, shift: u64) -> usize {
        position.wrapping_add(shift) as usize & (self.ring_bytes - 1)
    }
}

#[cfg(test)]
mod tests;
