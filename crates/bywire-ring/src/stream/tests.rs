use super::*;

const SMALL: Stream = Stream::new(64);

/// Two segments in private memory, page-aligned as mappings are.
struct Ends {
    pages: Vec<Page>,
}

#[repr(align(4096))]
#[derive(Clone)]
struct Page(#[allow(dead_code)] [u8; 4096]);

impl Ends {
    fn new() -> Self {
        Self { pages: vec![Page([0; 4096]); 4] }
    }

    fn windows(&mut self) -> (Window, Window) {
        let base = self.pages.as_mut_ptr().cast::<u8>();
        // SAFETY: four pages that live as long as `self`; each window has two of them.
        let windows = unsafe { (Window::new(base, 8192), Window::new(base.add(8192), 8192)) };
        SMALL.found(&windows.0);
        SMALL.found(&windows.1);
        windows
    }
}

fn send(own: &Window, remote: &Window, bytes: &[u8]) -> usize {
    let length = bytes.len().min(SMALL.room(own, remote, 64).expect("no corruption"));
    // SAFETY: a live slice.
    unsafe { SMALL.stage(own, 0, bytes.as_ptr(), length, length > 8) };
    SMALL.publish(own, length);
    length
}

fn receive(own: &Window, remote: &Window, length: usize) -> Vec<u8> {
    let length = length.min(SMALL.available(own, remote).expect("no corruption"));
    let mut bytes = vec![0; length];
    // SAFETY: a live buffer of that length.
    unsafe { SMALL.peek(remote, SMALL.first_unread(own, remote), 0, bytes.as_mut_ptr(), length) };
    SMALL.consume(own, length);
    bytes
}

#[test]
fn bytes_are_read_as_written_over_many_laps() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    let mut oracle = std::collections::VecDeque::new();
    let (mut next, mut seed) = (0u8, 7u64);
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let length = (seed >> 33) as usize % 70;
        if seed >> 63 == 0 {
            let bytes: Vec<u8> = (0..length).map(|index| next.wrapping_add(index as u8)).collect();
            let sent = send(&writer, &reader, &bytes);
            assert_eq!(sent, length.min(64 - oracle.len()));
            oracle.extend(&bytes[..sent]);
            next = next.wrapping_add(sent as u8);
        } else {
            let expected: Vec<u8> = oracle.drain(..length.min(oracle.len())).collect();
            assert_eq!(receive(&reader, &writer, length), expected);
        }
    }
}

#[test]
fn an_emptied_ring_restarts_at_its_first_byte() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    for _ in 0..100 {
        send(&writer, &reader, b"0123456");
        assert_eq!(SMALL.reach(&writer, 0), 7);
        receive(&reader, &writer, 7);
    }
}

#[test]
fn impossible_positions_are_reported_as_corrupt() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    writer.store(TAIL, 65, Ordering::Relaxed);
    assert_eq!(SMALL.available(&reader, &writer), Err(Corrupt));
    writer.store(TAIL, 3, Ordering::Relaxed);
    reader.store(HEAD, 4, Ordering::Relaxed);
    assert_eq!(SMALL.room(&writer, &reader, 64), Err(Corrupt));
    for word in [5, 8, PENDING | 8, RING | 8, ENDING | 8, u64::MAX] {
        writer.store(ROUTE, word, Ordering::Relaxed);
        assert_eq!(SMALL.route(&writer), Err(Corrupt), "{word:#x}");
    }
}

#[test]
fn the_cut_over_waits_for_the_reader_and_for_two_sleepers() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    assert!(!SMALL.begin(&writer, &reader));
    SMALL.prepare(&reader);
    for expected in [true, false] {
        assert_eq!(SMALL.enter(&reader, &writer), Ok(Route::Kernel));
        assert_eq!(SMALL.begin(&writer, &reader), expected);
        SMALL.abandon(&writer);
    }
    SMALL.leave(&reader);
    assert!(SMALL.begin(&writer, &reader));
    assert_eq!(SMALL.enter(&reader, &writer), Ok(Route::Pending));
    SMALL.leave(&reader);
    SMALL.cut(&writer, 1234);
    assert_eq!((SMALL.route(&writer), SMALL.cut_offset(&writer)), (Ok(Route::Ring), 1234));
    SMALL.back(&writer, 7);
    assert_eq!(SMALL.route(&writer), Ok(Route::Back(7)));
}

#[test]
fn sleepers_are_distinguished_by_what_they_wait_for() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    assert_eq!(
        SMALL.wake(&writer, &reader, News::Bytes, 0),
        Wake { futex: false, doorbell: true, round: 0, hint: None }
    );
    assert_eq!(SMALL.event(&writer), 0);
    assert_eq!(SMALL.arm(&reader, &writer, Sleep::Bytes), 0);
    assert_eq!(
        SMALL.wake(&writer, &reader, News::Room, 0),
        Wake { futex: false, doorbell: false, round: 1, hint: None }
    );
    assert_eq!(
        SMALL.wake(&writer, &reader, News::Bytes, 0),
        Wake { futex: true, doorbell: true, round: 1, hint: None }
    );
    // A sleeper that was woken in this round is not woken again.
    assert!(!SMALL.wake(&writer, &reader, News::Bytes, 1).futex);
    SMALL.disarm(&reader, Sleep::Bytes);
    assert_eq!(SMALL.arm(&reader, &writer, Sleep::Room), 1);
    assert!(!SMALL.wake(&writer, &reader, News::Bytes, 0).futex);
    assert!(
        SMALL.wake(&writer, &reader, News::Room, 0).futex
            && SMALL.wake(&writer, &reader, News::Route, 0).futex
    );
    SMALL.disarm(&reader, Sleep::Room);
    (0..2).for_each(|_| SMALL.want_room(&reader));
    assert_eq!(
        SMALL.wake(&writer, &reader, News::Room, 0),
        Wake { futex: false, doorbell: true, round: 2, hint: None }
    );
    (0..2).for_each(|_| SMALL.has_room(&reader));
    assert_eq!((SMALL.event(&writer), reader.load(ASLEEP, Ordering::Relaxed) % ROUND), (3, 0));
}

/// A segment whose peer acts at every fence of this end.
struct Overtaken<'a> {
    segment: Window,
    peer: &'a dyn Fn(),
}

impl Segment for Overtaken<'_> {
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.segment.load(offset, order)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.segment.store(offset, value, order);
    }

    fn add(&self, offset: usize, value: u64, order: Ordering) {
        self.segment.add(offset, value, order);
    }

    unsafe fn read(&self, offset: usize, target: *mut u8, length: usize) {
        // SAFETY: passed on.
        unsafe { self.segment.read(offset, target, length) }
    }

    unsafe fn write(&self, offset: usize, source: *const u8, length: usize) {
        // SAFETY: passed on.
        unsafe { self.segment.write(offset, source, length) }
    }

    fn fence(&self) {
        (self.peer)();
    }
}

#[test]
fn a_wake_up_during_the_announcement_of_a_sleeper_keeps_it_awake() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    let wake = || assert!(SMALL.wake(&writer, &reader, News::Bytes, 0).futex);
    let (own, remote) =
        (Overtaken { segment: reader, peer: &wake }, Overtaken { segment: writer, peer: &|| {} });
    let expected = SMALL.arm(&own, &remote, Sleep::Bytes);
    // This round has been woken. If the event word were the expected one, the sleeper would sleep on.
    assert_ne!(SMALL.event(&writer), expected);
}

#[test]
fn a_reader_that_requests_the_kernel_stays_in_it() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    SMALL.prepare(&reader);
    SMALL.raise(&reader, ASKS_BACK);
    assert!(!SMALL.begin(&writer, &reader));
    assert_eq!(SMALL.route(&writer), Ok(Route::Kernel));
}

#[test]
fn writers_are_told_of_room_when_the_ring_becomes_half_empty() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    let take = |length: usize| {
        assert_eq!(receive(&reader, &writer, length).len(), length);
        SMALL.is_relieved(&reader, &writer, length)
    };
    // 64 bytes are a full ring: half of it is 32.
    assert_eq!(send(&writer, &reader, &[1; 64]), 64);
    assert!(!take(31));
    assert!(take(1));
    assert!(!take(32));
    assert_eq!(send(&writer, &reader, &[1; 32]), 32);
    assert!(!take(32));
    assert_eq!(send(&writer, &reader, &[1; 64]), 64);
    assert!(take(64));
}

#[test]
fn writers_with_a_bound_are_told_of_room_when_half_of_it_is_free() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    assert_eq!(SMALL.allowance(&reader), 0);
    SMALL.allow(&reader, 8);
    assert_eq!(SMALL.allowance(&reader), 8);
    SMALL.bound(&writer, 8);
    assert_eq!(send(&writer, &reader, &[1; 8]), 8);
    assert_eq!((SMALL.room(&writer, &reader, 8), SMALL.room_hint(&writer, &reader, 8)), (Ok(0), Ok(0)));
    // A bound that was lowered since.
    assert_eq!((SMALL.room(&writer, &reader, 3), SMALL.room_hint(&writer, &reader, 3)), (Ok(0), Ok(0)));
    let take = |length: usize| {
        receive(&reader, &writer, length);
        SMALL.is_relieved(&reader, &writer, length)
    };
    assert!(!take(3));
    assert!(take(1));
    assert!(!take(4));
}

#[test]
fn a_reader_that_asks_for_it_knows_when_the_last_publications_were_made() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    assert!(!SMALL.is_ordered(&reader));
    SMALL.want_order(&reader);
    assert!(SMALL.is_ordered(&reader) && !SMALL.is_ordered(&writer));
    let expected = [[7, 0, 0], [9, 7, 0], [12, 9, 7], [13, 12, 9]];
    for (now, expected) in [7, 9, 12, 13].into_iter().zip(expected) {
        SMALL.mark(&writer, now);
        assert_eq!(send(&writer, &reader, b"x"), 1);
        assert_eq!(SMALL.marks(&writer), expected);
        assert_eq!(SMALL.last_mark(&writer), now);
    }
    assert_eq!(receive(&reader, &writer, 8), b"xxxx");
}

#[test]
fn news_of_a_quiet_connection_are_counted_for_the_number_of_its_reader() {
    let mut ends = Ends::new();
    let (writer, reader) = ends.windows();
    let hint =
        || [News::Bytes, News::Room, News::Route].map(|news| SMALL.wake(&writer, &reader, news, 0).hint);
    assert_eq!(hint(), [None; 3]);
    SMALL.begin_quiet(&reader, 7);
    SMALL.begin_quiet(&reader, 8);
    assert!(SMALL.is_quiet(&reader) && !SMALL.is_quiet(&writer));
    assert_eq!(hint(), [Some(8); 3]);
    let _expected = SMALL.arm(&reader, &writer, Sleep::Room);
    SMALL.want_room(&reader);
    assert_eq!((SMALL.wake(&writer, &reader, News::Room, 0).round, hint()), (1, [Some(8); 3]));
    SMALL.end_quiet(&reader);
    SMALL.end_quiet(&reader);
    assert_eq!(hint(), [None; 3]);
    // Whatever the reader writes there, the count is one of the page's.
    SMALL.begin_quiet(&reader, usize::MAX);
    assert_eq!(hint(), [Some(hints::NUMBERS - 1); 3]);
}
