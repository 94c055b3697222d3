//! A process without room slows its own senders, and no other sender: nothing is lost or sent again, no other queue
//! waits, a queue that is held back keeps its place among what the kernel watches, and a process that never reads is
//! not waited for. Streams need root.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bywire::{Event, Peer};
use bywire_eth::order::{CarrierSettings, Order};
use bywire_sys::Errno;
use bywire_sys::socket::{Received, Socket};
use bywire_testing::eventually;

use crate::carrying::{Carrying, SETTINGS, TIMEOUT, await_packet, interface};
use crate::hostile_peer::HostilePeer;
use crate::hosts::{self, Host, Link, hosts, join, tcp};

/// Longer than any test, so that a held-back queue stays held back.
const ENDLESS: Duration = Duration::from_secs(3600);
const FRAME_BYTES: usize = 60_000;
const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 2];

const fn far(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 9, number]
}

/// A loop with two interfaces, which holds back the senders to a process without room for `hold_back`.
fn node(hold_back: Duration) -> Carrying {
    let mut node = Carrying::start(settings(hold_back));
    node.add(interface(0, NEAR));
    node.add(interface(1, NEIGHBOUR));
    node
}

fn settings(hold_back: Duration) -> CarrierSettings {
    CarrierSettings { hold_back_ms: hold_back.as_millis() as u32, ..SETTINGS }
}

/// Sends a frame from the first interface as soon as there is room.
fn send(node: &Carrying, target: [u8; 6], number: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_taken(&node.ends[0], target, number) {
        assert!(Instant::now() < deadline, "nothing is taken any more");
        std::thread::yield_now();
    }
}

/// Returns how often the sender to the first peer was held back.
fn held_back(node: &Carrying) -> u64 {
    node.report(0, |_| true).held_back
}

/// Sends a frame into a queue. Returns `false` if there is no room.
fn is_taken(end: &Socket, target: [u8; 6], number: usize) -> bool {
    let mut packet = vec![0; 10 + FRAME_BYTES];
    packet[10..16].copy_from_slice(&target);
    packet[16..22].copy_from_slice(&NEAR);
    packet[24..32].copy_from_slice(&number.to_le_bytes());
    match end.send(&packet, &[]) {
        Ok(()) => true,
        Err(Errno::AGAIN) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A process that is connected to `node` and has announced the address [`far`].
fn met(node: &Carrying, directory: &Path, number: u8) -> (HostilePeer, Peer) {
    let mut hostile_peer = HostilePeer::open(&format!("hostile_peer{number}"), directory);
    node.join("near", directory);
    let peer = hostile_peer.meet();
    hostile_peer.introduce(peer, far(number));
    (hostile_peer, peer)
}

#[test]
fn frames_without_room_wait_in_the_interface_queue() {
    const FRAMES: usize = 1500;
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(ENDLESS);
    let (mut hostile_peer, _) = met(&node, directory.path(), 1);
    node.report(0, |report| report.interfaces_count == 1);
    let mut numbers = Vec::with_capacity(FRAMES);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..FRAMES).for_each(|number| send(&node, far(1), number)));
        // The reader starts once its sender is held back, and stays slower: it reads some datagrams, then pauses.
        node.report(0, |report| report.held_back > 0);
        let deadline = Instant::now() + 2 * TIMEOUT;
        while numbers.len() < FRAMES && Instant::now() < deadline {
            for _ in 0..16 {
                if let Some(Event::Datagram(message)) = hostile_peer.port.poll() {
                    let number = message.payload[22..30].try_into().expect("eight bytes");
                    numbers.push(usize::from_le_bytes(number));
                    hostile_peer.port.recycle(message.payload);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let report = node.report(0, |_| true);
    assert_eq!((numbers.len(), report.drops.total()), (FRAMES, 0), "{report:?}");
    assert!(numbers.is_sorted(), "they keep their order");
    println!("held back {} times", report.held_back);
}

/// One queue of the interface serves another process. The other queue serves the interfaces of this process.
#[test]
fn a_blocked_queue_delays_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(ENDLESS);
    let (end, _) = node.give_queue(&Order::AddQueue(0));
    let (_silent, _) = met(&node, directory.path(), 1);
    node.report(0, |report| report.interfaces_count == 1);
    let deadline = Instant::now() + TIMEOUT;
    let mut number = 0;
    let mut fill = || {
        while is_taken(&end, far(1), number) {
            number += 1;
            assert!(Instant::now() < deadline, "{number} frames were taken for somebody who takes none");
        }
    };
    while held_back(&node) == 0 {
        fill();
    }
    // Fill the queue itself too.
    fill();
    send(&node, NEIGHBOUR, 0);
    // Frames for others arrive.
    await_packet(&node.ends[1]);
    assert!(!is_taken(&end, far(1), number), "it was held back no more");
}

/// The event bits for which the pollers of this process watch that file, from `/proc/self/fdinfo`.
fn watched_for(file: &OwnedFd) -> Vec<u32> {
    let inode = std::fs::metadata(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a file").ino();
    let lists = std::fs::read_dir("/proc/self/fdinfo").expect("there").flatten();
    // A descriptor that is closed in between belongs to another test.
    let lists = lists.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect::<Vec<_>>();
    let lines = lists.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("tfd:"));
    let its = lines.filter(|line| line.contains(&format!(" ino:{inode:x} ")));
    its.map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "events:");
        u32::from_str_radix(words.nth(1).expect("bits"), 16).expect("a number")
    })
    .collect()
}

/// The kernel limits the number of watched descriptors per user. A loop that gave up a place might not get it back.
#[test]
fn a_blocked_queue_stays_registered_with_epoll() {
    const IN: u32 = 1;
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(ENDLESS);
    let (end, queue) = node.give_queue(&Order::AddQueue(0));
    let (_silent, _) = met(&node, directory.path(), 1);
    node.report(0, |report| report.interfaces_count == 1);
    let watched = watched_for(&queue);
    assert!(watched.len() == 1 && watched[0] & IN != 0, "{watched:x?}");
    let deadline = Instant::now() + TIMEOUT;
    let mut number = 0;
    while held_back(&node) == 0 {
        number += usize::from(is_taken(&end, far(1), number));
        assert!(Instant::now() < deadline, "{number} frames were taken for somebody who takes none");
    }
    let watched = watched_for(&queue);
    assert!(watched.len() == 1 && watched[0] & IN == 0, "{watched:x?}");
    node.tell(&Order::Configure(settings(Duration::ZERO)));
    eventually("it is watched again", || matches!(watched_for(&queue)[..], [events] if events & IN != 0));
}

#[test]
fn a_process_that_never_reads_does_not_delay_others_for_long() {
    const FRAMES: usize = 300;
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(Duration::from_millis(50));
    let [mut silent, mut reader] =
        ["stranger1", "stranger2"].map(|name| HostilePeer::open(name, directory.path()));
    node.join("near", directory.path());
    for (hostile_peer, number) in [(&mut silent, 1), (&mut reader, 2)] {
        let peer = hostile_peer.meet();
        hostile_peer.introduce(peer, far(number));
    }
    (0..2).for_each(|place| drop(node.report(place, |report| report.interfaces_count == 1)));
    let began = Instant::now();
    let mut arrived = [0, 0];
    let mut buffer = vec![0; 70_000];
    let mut take = |arrived: &mut [usize; 2]| {
        while let Some(event) = reader.port.poll() {
            if let Event::Datagram(message) = event {
                arrived[0] += 1;
                reader.port.recycle(message.payload);
            }
        }
        while let Received::Packet(..) = node.ends[1].receive(&mut buffer).expect("received") {
            arrived[1] += 1;
        }
    };
    for number in 0..FRAMES {
        for target in [far(1), far(2), NEIGHBOUR] {
            send(&node, target, number);
        }
        take(&mut arrived);
    }
    let reports = [0, 1].map(|place| node.report(place, |_| true));
    let lost: u64 = reports.iter().map(|report| report.drops.total()).sum();
    let held_back: u64 = reports.iter().map(|report| report.held_back).sum();
    eventually("all have arrived", || {
        take(&mut arrived);
        arrived == [FRAMES; 2]
    });
    println!("{:?}, {lost} lost", began.elapsed());
    // The queue is held back once, for the whole time. It is not held back at all if the loop did not run for that
    // long.
    assert!(held_back <= 1, "held back {held_back} times");
    // The rest: frames in its ring, and frames that wait for the ring.
    assert!(lost as usize > FRAMES / 2, "{lost} lost: where is the rest?");
    drop(silent);
}

/// The results of several parallel connections.
#[derive(Debug, Default)]
struct Figures {
    received_bytes: u64,
    seconds: f64,
    segments: u64,
    retransmitted: u64,
}

impl Figures {
    fn add(&mut self, other: &Figures) {
        self.received_bytes += other.received_bytes;
        self.seconds += other.seconds;
        self.segments += other.segments;
        self.retransmitted += other.retransmitted;
    }

    fn share(&self) -> f64 {
        self.retransmitted as f64 / self.segments.max(1) as f64
    }

    fn line(&self) -> String {
        let rate = 8e-9 * self.received_bytes as f64 / self.seconds;
        format!("{rate:.2} Gb/s, {} of {} segments again", self.retransmitted, self.segments)
    }
}

/// TCP counters of a host: segments sent, and segments retransmitted.
fn tcp_counts(host: &Host) -> [u64; 2] {
    let text = host.inside(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).expect("it is there");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
    ["OutSegs", "RetransSegs"].map(|wanted| {
        let place = names.split(' ').position(|name| name == wanted).expect("a name");
        numbers.split(' ').nth(place).expect("a number").parse().expect("a number")
    })
}

/// Runs `count` connections from the first host to the second, for `time`.
fn flows(hosts: &[Host], count: usize, time: Duration) -> Figures {
    let ends: Vec<(TcpStream, TcpStream)> =
        (0..count).map(|number| tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000 + number as u16))).collect();
    let before = tcp_counts(&hosts[0]);
    let began = Instant::now();
    let received_bytes = std::thread::scope(|scope| {
        let receivers: Vec<_> = ends
            .iter()
            .map(|(near, far)| {
                scope.spawn(move || {
                    let bytes = vec![0; 128 << 10];
                    while began.elapsed() < time {
                        let _ = (&mut &*near).write(&bytes).expect("sent");
                    }
                    near.shutdown(std::net::Shutdown::Write).expect("shut");
                });
                scope.spawn(move || {
                    let mut buffer = vec![0; 256 << 10];
                    let mut received = 0;
                    loop {
                        match (&mut &*far).read(&mut buffer).expect("received") {
                            0 => return received,
                            count => received += count as u64,
                        }
                    }
                })
            })
            .collect();
        receivers.into_iter().map(|receiver| receiver.join().expect("it ends")).sum()
    });
    let seconds = began.elapsed().as_secs_f64();
    let after = tcp_counts(&hosts[0]);
    Figures { received_bytes, seconds, segments: after[0] - before[0], retransmitted: after[1] - before[1] }
}

/// Two hosts, connected by a `veth` pair.
fn cable() -> Option<Vec<Host>> {
    let hosts = hosts(2)?;
    let place = format!("/proc/{}/fd/{}", std::process::id(), hosts[1].namespace.as_fd().as_raw_fd());
    hosts[0].ip(&format!("link add by0 mtu 9000 type veth peer name by0 mtu 9000 netns {place}"));
    for host in &hosts {
        host.ip(&format!("address add 10.77.0.{}/24 dev by0", host.number));
        host.ip("link set by0 up");
    }
    Some(hosts)
}

#[test]
fn four_streams_between_two_processes_retransmit_hardly_more_than_over_veth() {
    let (Some(cable), Some(carried)) = (cable(), hosts(2)) else { return };
    let mut joined = join(&carried, Link::Between, 9000);
    // On this machine, a thread may wait for a processor longer than the default hold-back.
    for network in &mut joined.networks {
        network.configure(CarrierSettings { hold_back_ms: 10_000, ..hosts::SETTINGS }).expect("told");
    }
    // A machine that stands still for longer than a retransmission timeout makes TCP send again what was not lost.
    let mut seen = Vec::new();
    let is_alike = (0..3).any(|_| {
        let (mut by_cable, mut by_us) = (Figures::default(), Figures::default());
        for _ in 0..3 {
            by_cable.add(&flows(&cable, 4, Duration::from_millis(800)));
            by_us.add(&flows(&carried, 4, Duration::from_millis(800)));
        }
        println!("cable: {}; two processes: {}", by_cable.line(), by_us.line());
        seen.push([by_cable.share(), by_us.share()]);
        by_us.share() <= 2.0 * by_cable.share() + 0.003
    });
    assert!(is_alike, "shares by the cable and by two processes: {seen:?}");
}
