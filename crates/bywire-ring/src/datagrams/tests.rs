use std::collections::VecDeque;

use super::*;
use crate::stream::Window;

const RING_BYTES: usize = 256;
const RULES: Datagrams = Datagrams::new(RING_BYTES);
/// More than the ring holds.
const UNBOUNDED: u64 = 1 << 40;

/// Two segments in private memory, page-aligned as mappings are.
struct Ends {
    pages: Vec<Page>,
}

#[repr(align(4096))]
#[derive(Clone)]
struct Page(#[allow(dead_code)] [u8; 4096]);

impl Ends {
    fn new() -> Self {
        Self { pages: vec![Page([0; 4096]); 2] }
    }

    /// Those of the writer and of the reader.
    fn windows(&mut self) -> (Window, Window) {
        let base = self.pages.as_mut_ptr().cast::<u8>();
        // SAFETY: two pages that live as long as `self`; each window has one of them, which is more than the ring needs.
        let windows = unsafe { (Window::new(base, 4096), Window::new(base.add(4096), 4096)) };
        RULES.found(&windows.0);
        RULES.found(&windows.1);
        windows
    }
}

/// A reader whose gate is open.
fn opened(own: &Window, remote: &Window) -> Reader {
    let mut reader = Reader::NEW;
    RULES.allow(own, UNBOUNDED);
    reader.found_empty(own, remote, reader.before_look(remote), 1);
    reader.open(own);
    assert!(!reader.counts(), "before the writer counts");
    Writer::NEW.begin(remote);
    for now_ns in [1, 1 + LOST_NS] {
        reader.found_empty(own, remote, reader.before_look(remote), now_ns);
    }
    reader.open(own);
    reader
}

fn send(writer: &mut Writer, own: &Window, remote: &Window, bytes: &[u8], now_ns: u64) -> Way {
    let way = writer.way(&RULES, own, remote, bytes.len(), now_ns);
    if way == Way::Ring {
        // SAFETY: a live slice.
        unsafe { writer.stage(&RULES, own, 0, bytes.as_ptr(), bytes.len()) };
        assert!(writer.publish(&RULES, own, remote, bytes.len()));
    }
    way
}

fn receive(reader: &mut Reader, own: &Window, remote: &Window, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: a live buffer of that length.
    unsafe { reader.peek(&RULES, remote, 0, bytes.as_mut_ptr(), length) };
    reader.consume(own, length);
    bytes
}

fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

#[test]
fn datagrams_of_both_ways_are_received_in_the_order_in_which_they_were_sent() {
    let mut ends = Ends::new();
    let (ours, theirs) = ends.windows();
    let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
    let (mut kernel, mut sent) = (VecDeque::new(), VecDeque::new());
    let (mut seed, mut now_ns, mut ways) = (7, BEAT_NS, [0; 3]);
    for round in 0..50_000u64 {
        now_ns += draw(&mut seed) % (BEAT_NS / 64);
        if draw(&mut seed).is_multiple_of(2) {
            let length = draw(&mut seed) as usize % 80;
            let bytes: Vec<u8> = (0..length).map(|at| (round as u8).wrapping_add(at as u8)).collect();
            match send(&mut writer, &ours, &theirs, &bytes, now_ns) {
                Way::Ring => ways[0] += 1,
                Way::Kernel | Way::Behind => {
                    ways[1] += 1;
                    writer.begin_kernel(&ours, now_ns);
                    kernel.push_back(bytes.clone());
                    writer.end_kernel(&ours);
                }
                Way::Full => {
                    ways[2] += 1;
                    continue;
                }
                Way::Ended => panic!("nobody has ended"),
            }
            sent.push_back(bytes);
        } else {
            match reader.next(&RULES, &ours).expect("no corruption") {
                Next::Due(length) => {
                    assert_eq!(Some(receive(&mut reader, &theirs, &ours, length)), sent.pop_front());
                }
                Next::Kernel => {
                    assert_eq!(kernel.pop_front(), sent.pop_front());
                    assert!(reader.count(&theirs, &ours));
                }
                Next::Nothing => assert!(sent.is_empty()),
            }
            if draw(&mut seed).is_multiple_of(16) {
                reader.close(&theirs);
            } else {
                reader.open(&theirs);
            }
        }
    }
    assert!(ways.iter().all(|count| *count > 200), "all ways were taken: {ways:?}");
}

#[test]
fn a_writer_gives_everything_to_the_kernel_until_a_silent_reader_is_heard_again() {
    let mut ends = Ends::new();
    let (ours, theirs) = ends.windows();
    let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
    assert_eq!(send(&mut writer, &ours, &theirs, b"one", BEAT_NS), Way::Kernel);
    writer.begin_kernel(&ours, BEAT_NS);
    writer.end_kernel(&ours);
    assert_eq!(send(&mut writer, &ours, &theirs, b"two", BEAT_NS), Way::Behind);
    writer.give_up();
    for _ in 0..10 {
        assert_eq!(send(&mut writer, &ours, &theirs, b"two", BEAT_NS), Way::Kernel);
        writer.begin_kernel(&ours, BEAT_NS);
        writer.end_kernel(&ours);
    }
    // The kernel has dropped them all.
    for now_ns in [1, LOST_NS, 1 + LOST_NS] {
        assert_eq!(reader.next(&RULES, &ours), Ok(Next::Kernel));
        reader.found_empty(&theirs, &ours, reader.before_look(&ours), now_ns);
    }
    assert_eq!(reader.next(&RULES, &ours), Ok(Next::Nothing));
    assert_eq!(send(&mut writer, &ours, &theirs, b"three", 2 * BEAT_NS - 1), Way::Ring);
    assert_eq!(send(&mut writer, &ours, &theirs, b"four", 2 * BEAT_NS), Way::Kernel, "a beat is due");
}

#[test]
fn datagrams_that_are_missing_at_two_looks_are_lost_while_others_go_on() {
    let mut ends = Ends::new();
    let (ours, theirs) = ends.windows();
    let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
    let kernel = |writer: &mut Writer, count: usize| {
        for _ in 0..count {
            writer.begin_kernel(&ours, 1);
            writer.end_kernel(&ours);
        }
    };
    // Three of five are dropped, and one of those two that arrive is late.
    kernel(&mut writer, 5);
    assert!(reader.count(&theirs, &ours));
    reader.found_empty(&theirs, &ours, reader.before_look(&ours), 10);
    assert!(reader.count(&theirs, &ours));
    // Two more are sent meanwhile, and one of them has arrived.
    kernel(&mut writer, 2);
    assert!(reader.count(&theirs, &ours));
    reader.found_empty(&theirs, &ours, reader.before_look(&ours), 10 + LOST_NS);
    assert_eq!(theirs.load(RECEIVED, Ordering::Relaxed), 1 + 3 + 4, "four were missing both times");
    assert!(reader.is_settled(&ours));
}

#[test]
fn a_writer_that_was_killed_halfway_is_waited_for_only_so_long() {
    let mut ends = Ends::new();
    let (ours, theirs) = ends.windows();
    let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
    writer.begin_kernel(&ours, BEAT_NS);
    let ended = reader.before_look(&ours);
    for now_ns in [1, 1 + LOST_NS, KILLED_NS] {
        reader.found_empty(&theirs, &ours, ended, now_ns);
        assert!(!reader.is_settled(&ours));
    }
    reader.found_empty(&theirs, &ours, ended, 1 + KILLED_NS);
    assert!(reader.is_settled(&ours));
}

#[test]
fn a_receive_buffer_takes_what_the_kernels_takes() {
    let mut ends = Ends::new();
    let (ours, theirs) = ends.windows();
    let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
    // As in the kernel: one more than fits below the bound, and none that begins above it.
    RULES.allow(&theirs, 2 * charge(1));
    writer.begin_kernel(&ours, 1);
    writer.end_kernel(&ours);
    let fill =
        |writer: &mut Writer| (0..5).map(|_| send(writer, &ours, &theirs, b"!", 2)).collect::<Vec<_>>();
    assert!(reader.count(&theirs, &ours));
    assert_eq!(fill(&mut writer), [Way::Ring, Way::Ring, Way::Ring, Way::Full, Way::Full]);
    for _ in 0..2 {
        assert_eq!(reader.next(&RULES, &ours), Ok(Next::Due(1)));
        receive(&mut reader, &theirs, &ours, 1);
    }
    assert_eq!(fill(&mut writer)[..3], [Way::Ring, Way::Ring, Way::Full]);
    // The kernel's own charges on the reference machine.
    assert_eq!([0, 64, 1400, 65_507].map(charge), [768, 768, 2304, 66_304]);
}

#[test]
fn a_reader_that_hears_another_socket_under_the_writers_address_knows() {
    let mut ends = Ends::new();
    let (ours, theirs) = ends.windows();
    let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
    // Some may be late, or were sent before the counts began.
    assert_eq!((0..20).filter(|_| reader.count(&theirs, &ours)).count() as u32, EXCESS_MAX);
    assert_eq!(send(&mut writer, &ours, &theirs, b"one", 1), Way::Ring, "they are not counted");
    // A hostile reader says what it likes.
    theirs.store(RECEIVED, 2, Ordering::Relaxed);
    assert_eq!(send(&mut writer, &ours, &theirs, b"two", 1), Way::Ended);
}

#[test]
fn impossible_words_are_refused_and_nothing_beyond_the_ring_is_touched() {
    let mut seed = 11;
    let mut outcomes = [0; 2];
    for _ in 0..20_000 {
        let mut ends = Ends::new();
        let (ours, theirs) = ends.windows();
        let (mut writer, mut reader) = (Writer::NEW, opened(&theirs, &ours));
        writer.begin_kernel(&ours, 1);
        writer.end_kernel(&ours);
        assert!(reader.count(&theirs, &ours));
        assert_eq!(send(&mut writer, &ours, &theirs, &[1; 20], 2), Way::Ring);
        // A hostile end stores anything anywhere in its own segment.
        for _ in 0..draw(&mut seed) % 4 {
            let word = match draw(&mut seed) % 3 {
                0 => draw(&mut seed) % 512,
                1 => u64::MAX - draw(&mut seed) % 64,
                _ => draw(&mut seed) << 33 | draw(&mut seed),
            };
            let places = [TAIL, SHIFT, BEGUN, ENDED, HEADER_BYTES];
            ours.store(places[draw(&mut seed) as usize % places.len()], word, Ordering::Relaxed);
            let places = [HEAD, TAKEN, GATE, RECEIVED, ALLOWANCE];
            theirs.store(places[draw(&mut seed) as usize % places.len()], word, Ordering::Relaxed);
        }
        match reader.next(&RULES, &ours) {
            Ok(Next::Due(length)) => {
                assert!(length <= RING_BYTES, "a datagram is within the ring");
                receive(&mut reader, &theirs, &ours, length);
                outcomes[0] += 1;
            }
            Ok(_) => {}
            Err(Corrupt) => outcomes[1] += 1,
        }
        // The writer's own bytes are within its ring, whatever the reader says.
        let way = writer.way(&RULES, &ours, &theirs, 100, 3);
        assert!(way != Way::Ring || writer.reach(&RULES, 100) <= RING_BYTES);
    }
    assert!(outcomes.iter().all(|count| *count > 500), "all outcomes are there: {outcomes:?}");
}
