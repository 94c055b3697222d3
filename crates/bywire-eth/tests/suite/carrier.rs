//! The carrying loop alone, without privileges. Packet sockets stand for the queues of TAP devices.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bywire_eth::drops::Cause;
use bywire_eth::order::{self, Answer, CarrierSettings, ExchangeError, NewInterface, Order};
use bywire_sys::socket::{Received, Socket};
use seccompiler::{SeccompAction, SeccompFilter};

use crate::carrying::{Carrying, SETTINGS, TIMEOUT, await_packet, interface, look};
use crate::hostile_peer::{self, HostilePeer};
use crate::packet::Packet;

/// Counts the allocations of the threads that set `COUNTED`.
struct Counting;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}
static ALLOCATIONS: Mutex<u64> = Mutex::new(0);

// SAFETY: every call goes to the system's allocator. Counting touches no memory of the callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.try_with(Cell::get).unwrap_or(false) {
            *allocations() += 1;
        }
        // SAFETY: the caller upholds the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, which is the same here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn allocations() -> MutexGuard<'static, u64> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Starts a loop. `bridges` are the interfaces that belong to bridges, behind which other addresses may be.
fn bench(interfaces: usize, bridges: &[usize], storm_frames_per_second: u64) -> Bench {
    bench_with(interfaces, bridges, storm_frames_per_second, || ())
}

/// Like [`bench`], but `begin` runs first on the loop's thread.
fn bench_with(
    interfaces: usize,
    bridges: &[usize],
    storm_frames_per_second: u64,
    begin: impl FnOnce() + Send + 'static,
) -> Bench {
    let settings = CarrierSettings { storm_frames_per_second, ..SETTINGS };
    let begin = || {
        begin();
        COUNTED.set(true);
    };
    let mut bench = Bench(Carrying::start_with("loop", settings, begin));
    for number in 0..interfaces {
        let is_bridge = bridges.contains(&number);
        bench.add(NewInterface { is_bridge, mtu_bytes: 1500, ..interface(number, mac(number)) });
    }
    bench
}

fn mac(interface: usize) -> [u8; 6] {
    [2, 0, 0, 0, (interface >> 8) as u8, interface as u8]
}

/// A plain frame behind an empty header.
fn frame(target: [u8; 6], source: [u8; 6], rest: &[u8]) -> Vec<u8> {
    [&[0; 10], &target[..], &source[..], rest].concat()
}

/// A loop whose allocations are counted.
struct Bench(Carrying);

impl Deref for Bench {
    type Target = Carrying;

    fn deref(&self) -> &Carrying {
        &self.0
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Carrying {
        &mut self.0
    }
}

impl Bench {
    fn send(&self, interface: usize, packet: &[u8]) {
        while let Err(error) = self.ends[interface].send(packet, &[]) {
            assert_eq!(error, bywire_sys::Errno::AGAIN);
            std::thread::yield_now();
        }
    }

    /// Waits for the next packet at an interface.
    fn receive(&self, interface: usize) -> Vec<u8> {
        await_packet(&self.ends[interface])
    }

    /// True if no packet comes out at an interface for a tenth of a second.
    fn is_silent(&self, interface: usize) -> bool {
        (0..200).all(|_| {
            std::thread::sleep(Duration::from_micros(500));
            look(&self.ends[interface]).is_none()
        })
    }
}

#[test]
fn frames_cross_unchanged_with_tags_and_headers() {
    let bench = bench(3, &[], 100);
    for rest in
        [&[8, 0, 1, 2, 3][..], &[0x81, 0, 0, 7, 8, 0, 9], &[0x88, 0xA8, 0, 1, 0x81, 0, 0, 2, 0x86, 0xDD]]
    {
        let packet = frame(mac(1), mac(0), rest);
        bench.send(0, &packet);
        assert_eq!(bench.receive(1), packet);
    }
    assert!(bench.is_silent(2));
}

#[test]
fn every_drop_is_counted_by_its_cause() {
    let bench = bench(2, &[], 3);
    let broadcast = frame([0xFF; 6], mac(0), &[8, 6]);
    let control = frame([1, 0x80, 0xC2, 0, 0, 3], mac(0), &[0x88, 0x8E]);
    bench.send(0, &control);
    bench.send(0, &frame(mac(9), mac(0), &[8, 0]));
    bench.send(0, &frame(mac(1), mac(9), &[8, 0]));
    bench.send(0, &frame(mac(0), mac(0), &[8, 0]));
    bench.send(0, &[0; 10 + 11]);
    bench.send(0, &[0; 3]);
    let began = Instant::now();
    for _ in 0..6 {
        bench.send(0, &broadcast);
    }
    let counts = bench.counts_when(0, |counts| counts.sent.frames == 12);
    // Three frames pass at once, and three more for each second of the test.
    let earned = (began.elapsed().as_millis() as u64 + 1) * 3 / 1000;
    let passed = bench.counts(1).received.frames;
    assert!((3..=3 + earned).contains(&passed), "{passed} passed, {earned} were earned");
    for _ in 0..passed {
        assert_eq!(bench.receive(1), broadcast);
    }
    assert!(bench.is_silent(1));
    let expected = [
        (Cause::LinkControl, 1),
        (Cause::UnknownTarget, 1),
        (Cause::ForeignSource, 1),
        (Cause::SentBack, 1),
        (Cause::Short, 2),
        (Cause::Storm, 6 - passed),
    ];
    for (cause, count) in expected {
        assert_eq!(counts.drops.of(cause), count, "{cause:?}");
    }
    assert_eq!(counts.drops.total(), 12 - passed);
}

#[test]
fn a_full_target_loses_its_own_frames_only() {
    let bench = bench(3, &[], 100);
    let (full, free) = (frame(mac(1), mac(0), &[7; 1000]), frame(mac(2), mac(0), &[8; 1000]));
    for _ in 0..2000 {
        bench.send(0, &full);
    }
    bench.send(0, &free);
    assert_eq!(bench.receive(2), free);
    let counts = bench.counts(1);
    assert!(counts.drops.of(Cause::TargetFull) > 0);
    assert_eq!(counts.received.frames + counts.drops.total(), 2000);
}

#[test]
fn superframes_are_segmented_for_a_kernel_without_offloads() {
    let bench = bench(3, &[], 100);
    // The kernel of interface 1 accepts no superframes, that of interface 2 does.
    let offloads_nothing =
        NewInterface { takes_tcp: false, takes_udp: false, mtu_bytes: 1500, ..interface(1, mac(1)) };
    let (end, _) = bench.give_queue(&Order::AddInterface(offloads_nothing));
    bench.barrier();
    bench.send(0, &superframe(2));
    assert_eq!(bench.receive(2), superframe(2), "whole, and unchanged");
    bench.send(0, &superframe(1));
    receive_segments(&end);
    assert_eq!((bench.counts(1).cut, bench.counts(2).cut), (1, 0));
}

/// A superframe of TCP over IPv4 with 250 bytes of payload in segments of 100, behind the header that a kernel
/// writes.
fn superframe(target: usize) -> Vec<u8> {
    let packet = Packet { option_words: 0, ..Packet::tcp(vec![7; 250]) };
    let mut frame = packet.partial();
    frame[..12].copy_from_slice(&[mac(target), mac(0)].concat());
    [&packet.vnet(100).to_bytes()[..], &frame].concat()
}

/// Receives the segments of a [`superframe`].
fn receive_segments(end: &Socket) {
    for payload_bytes in [100, 100, 50] {
        let received = await_packet(end);
        assert_eq!(received.len(), 10 + 54 + payload_bytes);
        assert_eq!(received[..10], [0; 10], "nothing is left to do");
    }
}

/// Makes the kernel answer EINVAL to every `writev` of this thread. The loop delivers whole frames by `writev`, and
/// segments by `write`.
fn refuse_whole_frames() {
    let rules = std::collections::BTreeMap::from([(libc::SYS_writev, Vec::new())]);
    let architecture = std::env::consts::ARCH.try_into().expect("known");
    let refuse = SeccompAction::Errno(libc::EINVAL as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).expect("a filter");
    let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("applied");
}

#[test]
fn a_kernel_that_starts_to_refuse_superframes_gets_segments_from_then_on() {
    let bench = bench_with(2, &[], 100, refuse_whole_frames);
    for refusals in 1..=5 {
        bench.send(0, &superframe(1));
        receive_segments(&bench.ends[1]);
        let counts = bench.counts(1);
        assert_eq!((counts.cut, counts.received.frames), (refusals, 3 * refusals), "none is lost");
        assert_eq!(counts.refused_tcp, refusals >= 3, "once may be the frame's fault");
        assert!(!counts.refused_udp && counts.drops.total() == 0, "{counts:?}");
    }
    bench.send(0, &frame(mac(1), mac(0), &[8, 0]));
    // A plain frame cannot be cut.
    bench.counts_when(1, |counts| counts.drops.of(Cause::TargetRefused) == 1);
    assert!(bench.is_silent(1));
}

#[test]
fn addresses_behind_a_bridge_are_learned_by_the_carrier() {
    let bench = bench(3, &[1], 100);
    let behind = [2, 9, 9, 9, 9, 9];
    let question = frame(behind, mac(0), &[8, 0]);
    bench.send(0, &question);
    assert_eq!(bench.receive(1), question);
    let answer = frame(mac(0), behind, &[8, 0]);
    bench.send(1, &answer);
    assert_eq!(bench.receive(0), answer);
    assert!(bench.is_silent(2), "only a bridge can lead to somebody unknown");
}

#[test]
fn a_removed_device_is_reported_and_its_slot_is_free() {
    let mut bench = bench(2, &[], 100);
    bench.ends.remove(1);
    // A closed socket reads as a frame of no bytes, a removed TAP device as an error. Both end an interface.
    assert_eq!(bench.answer(), Answer::Vanished(1));
    bench.send(0, &frame(mac(1), mac(0), &[8, 0]));
    bench.barrier();
    bench.counts_when(0, |counts| counts.drops.of(Cause::UnknownTarget) == 1);
}

#[test]
fn devices_removed_at_once_are_reported_one_after_another() {
    const MANY: usize = 900;
    let mut bench = bench(MANY, &[], 100);
    bench.ends.clear();
    // Nothing reads the reports for a while. They must not pile up until the socket is full, and the loop must not
    // end.
    std::thread::sleep(Duration::from_millis(200));
    let mut told = std::collections::BTreeSet::new();
    while told.len() < MANY {
        match bench.answer() {
            Answer::Vanished(interface) => {
                assert!(told.insert(interface), "{interface} twice");
                bench.tell(&Order::RemoveInterface(interface));
            }
            other => panic!("{other:?}"),
        }
    }
    bench.barrier();
}

#[test]
fn a_released_slot_is_not_reported_again() {
    // More interfaces than are reported before the first release.
    const MANY: usize = 40;
    let mut bench = bench(MANY, &[], 100);
    bench.ends.clear();
    std::thread::sleep(Duration::from_millis(200));
    for interface in 0..MANY {
        bench.tell(&Order::RemoveInterface(interface));
    }
    bench.tell(&Order::Barrier);
    while bench.answer() != Answer::Done {}
    let late = order::await_next::<Answer>(&bench.orders, Duration::from_millis(100));
    assert!(matches!(late, Err(ExchangeError::Late)), "{late:?}");
}

#[test]
fn frames_allocate_nothing_after_warm_up() {
    let bench = bench(3, &[2], 1 << 40);
    let kinds = [
        frame(mac(1), mac(0), &[8; 1400]),
        frame([0xFF; 6], mac(0), &[8; 60]),
        frame(mac(9), mac(0), &[8; 60]),
        frame(mac(0), mac(0), &[8; 60]),
    ];
    let last = frame(mac(1), mac(0), &[9; 60]);
    let run = |count: usize| {
        for index in 0..count {
            bench.send(0, &kinds[index % kinds.len()]);
            for interface in 1..3 {
                while look(&bench.ends[interface]).is_some() {}
            }
        }
        // The last frame arrives after all earlier ones have been handled.
        bench.send(0, &last);
        while bench.receive(1) != last {}
    };
    run(100);
    let before = *allocations();
    run(10_000);
    let after = *allocations();
    assert_eq!(after - before, 0);
    bench.counts_when(0, |counts| counts.sent.frames == 10_102);
    assert!(*allocations() > after, "an answer does allocate, and is counted");
}

#[test]
fn the_longest_datagrams_between_processes_allocate_nothing_after_warm_up() {
    const COUNT: usize = 2000;
    const FAR: [u8; 6] = [2, 9, 9, 9, 9, 9];
    let directory = tempfile::tempdir().expect("a directory");
    let mut far = HostilePeer::open("hostile_peer", directory.path());
    let bench = bench(1, &[], 100);
    bench.join("near", directory.path());
    let peer = far.meet();
    far.introduce(peer, FAR);
    let (mut inwards, outwards) =
        (vec![7; hostile_peer::DATAGRAM_BYTES_MAX], frame(FAR, mac(0), &[8; 60_000]));
    inwards[..8].fill(0);
    inwards[8..20].copy_from_slice(&[mac(0), FAR].concat());
    let last_inwards = [&[0; 8], &mac(0)[..], &FAR, &[9; 60]].concat();
    let last_outwards = frame(FAR, mac(0), &[9; 60]);
    let mut buffer = vec![0; 70_000];
    let mut run = |count: usize| {
        for _ in 0..count {
            far.send(peer, &inwards);
            bench.send(0, &outwards);
            while matches!(bench.ends[0].receive(&mut buffer), Ok(Received::Packet(..))) {}
            while far.poll().is_some() {}
        }
        // The last frames arrive after all earlier ones have been handled.
        bench.send(0, &last_outwards);
        far.await_datagram(8 + last_outwards[10..].len());
        // The queue behind the interface may still be full, and then this frame is dropped: it is sent until one arrives.
        let deadline = Instant::now() + TIMEOUT;
        let is_last = |packet: Vec<u8>| packet[10..] == last_inwards[8..];
        let is_through = || {
            std::thread::sleep(Duration::from_millis(1));
            std::iter::from_fn(|| look(&bench.ends[0])).any(is_last)
        };
        loop {
            far.send(peer, &last_inwards);
            if (0..20).any(|_| is_through()) {
                break;
            }
            assert!(Instant::now() < deadline, "nothing comes");
        }
    };
    run(200);
    let before = *allocations();
    run(COUNT);
    assert_eq!(*allocations() - before, 0);
    let counts = bench.counts_when(0, |counts| counts.sent.frames as usize == COUNT + 202);
    assert!(counts.received.bytes as usize > COUNT * 30_000, "{counts:?}");
}
