//! Processes that break the rules harm only themselves.

use std::path::Path;
use std::time::{Duration, Instant};

use bywire::{DisconnectReason, Event, Peer, Priority};
use bywire_eth::drops::Cause;
use bywire_eth::fabric::Fabric;
use bywire_eth::order::{CarrierSettings, Join, NewInterface};
use bywire_eth::switch::Switch;
use bywire_testing::draw::Random;
use bywire_testing::kernel::{Verdict, verdict};
use bywire_testing::{Tier, eventually};

use crate::carrying::{Carrying, SETTINGS, TIMEOUT, interface, look};
use crate::hostile_peer::{DATAGRAM_BYTES_MAX, HostilePeer, introduction};

const FAR: [u8; 6] = [2, 0, 0, 0, 9, 9];

const fn mac(interface: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, interface as u8]
}

/// A loop with two interfaces that is connected to a hostile peer. The second interface accepts no superframes. The `Peer` is the
/// loop, as the hostile peer sees it.
fn node(directory: &Path) -> (Carrying, HostilePeer, Peer) {
    let mut hostile_peer = HostilePeer::open("hostile_peer", directory);
    let mut node = Carrying::start(CarrierSettings { storm_frames_per_second: u64::MAX >> 20, ..SETTINGS });
    node.add(interface(0, mac(0)));
    node.add(NewInterface { takes_tcp: false, takes_udp: false, ..interface(1, mac(1)) });
    node.join("near", directory);
    let peer = hostile_peer.meet();
    (node, hostile_peer, peer)
}

/// Datagrams that are shorter are sent in every length. A segment of an ordinary superframe fits into them.
const SHORT_BYTES: usize = 2048;
/// The end of the headers in [`write_packet`], behind a descriptor.
const HEADERS_BYTES: usize = 8 + 14 + 20 + 20;

/// Turns a datagram into a TCP or UDP superframe over IPv4, or something close to one, as far as its length allows.
fn write_packet(datagram: &mut [u8], noise: &mut Random) {
    let frame_bytes = datagram.len().saturating_sub(8);
    let is_udp = noise.below(3) == 0;
    let segment_bytes = [8u16, 536, 1460, 8960, 40_000][noise.below(5)];
    let mut bytes = [0; HEADERS_BYTES];
    bytes[..8].copy_from_slice(&[if is_udp { 4 } else { 2 }, 0, 0, 0, 14, 34, 0, 0]);
    bytes[2..4].copy_from_slice(&segment_bytes.to_le_bytes());
    bytes[8..14].copy_from_slice(&mac(noise.below(2)));
    bytes[14..20].copy_from_slice(&FAR);
    bytes[20..22].copy_from_slice(&[8, 0]);
    bytes[22] = 0x45;
    bytes[24..26].copy_from_slice(&(frame_bytes.saturating_sub(14) as u16).to_be_bytes());
    bytes[31] = if is_udp { 17 } else { 6 };
    bytes[46..48].copy_from_slice(&(frame_bytes.saturating_sub(34) as u16).to_be_bytes());
    bytes[54] = 0x50;
    let length = datagram.len().min(HEADERS_BYTES);
    datagram[..length].copy_from_slice(&bytes[..length]);
    // About half of them are made invalid.
    for _ in 0..noise.below(2) * noise.below(6) {
        if length > 0 {
            datagram[noise.below(length)] = noise.next() as u8;
        }
    }
    if noise.below(16) == 0 {
        datagram[..length].fill_with(|| noise.next() as u8);
    }
}

/// Every length of a datagram, or all of short ones and some of the longer ones.
fn lengths() -> impl Iterator<Item = usize> {
    let step = Tier::current().pick([7, 7, 1]);
    (0..SHORT_BYTES).chain((SHORT_BYTES..DATAGRAM_BYTES_MAX).step_by(step)).chain([DATAGRAM_BYTES_MAX])
}

#[test]
fn datagrams_that_the_kernel_would_refuse_are_dropped_before_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, mut hostile_peer, peer) = node(directory.path());
    hostile_peer.introduce(peer, FAR);
    node.report(0, |report| report.interfaces_count == 1);
    let mut noise = Random(0x5EED);
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    let (mut plain, mut superframes) = (0, 0);
    let mut drain = || {
        for interface in 0..2 {
            while let Some(packet) = look(&node.ends[interface]) {
                let (header, frame) = packet.split_first_chunk().expect("a header");
                match verdict(*header, frame) {
                    Verdict::Plain => plain += 1,
                    Verdict::Superframe(_) if interface == 0 => superframes += 1,
                    other => {
                        panic!("{other:?} at {interface}: {header:?} {:?}", &frame[..frame.len().min(64)])
                    }
                }
            }
        }
    };
    let mut sent = 0;
    for length in lengths() {
        write_packet(&mut datagram[..length], &mut noise);
        hostile_peer.send(peer, &datagram[..length]);
        sent += 1;
        drain();
    }
    let report = node.report(0, |report| report.received.frames == sent);
    drain();
    assert!(superframes > 1000 && plain > 1000, "{superframes} superframes, {plain} others");
    assert!(report.drops.of(Cause::Illegal) > 1000, "{report:?}");
    for interface in 0..2 {
        let counts = node.counts(interface);
        assert_eq!((counts.drops.of(Cause::TargetRefused), counts.drops.of(Cause::TargetDown)), (0, 0));
        assert_eq!(counts.cut > 1000, interface == 1, "{counts:?}");
    }
}

#[test]
fn a_peer_that_announces_constantly_is_read_once_a_turn() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut hostile_peer = HostilePeer::open("hostile_peer", directory.path());
    let (network, node) = ("test".to_owned(), "near".to_owned());
    let join = Join { network, node, queue: 0, directory: directory.path().to_owned() };
    let mut fabric = Fabric::join(&join, directory.path()).expect("joined");
    let mut switch = Switch::new(100);
    let deadline = Instant::now() + TIMEOUT;
    let peer = loop {
        assert!(fabric.poll(&mut switch).is_none() && Instant::now() < deadline);
        if let Some(Event::Connected(peer)) = hostile_peer.poll() {
            break peer;
        }
    };
    for count in 1..=10 {
        hostile_peer.port.send(peer, Priority::High, &introduction(FAR, count)).expect("sent");
    }
    let mut heard = 0;
    while heard < 10 {
        assert!(fabric.poll(&mut switch).is_none() && Instant::now() < deadline);
        let count = fabric.report(0).0.map_or(0, |report| report.interfaces_count);
        assert!(count <= heard + 1, "others had no turn between {heard} and {count}");
        heard = count;
    }
}

#[test]
fn a_dropped_peer_reconnects() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, mut hostile_peer, peer) = node(directory.path());
    let began = Instant::now();
    hostile_peer.port.send(peer, Priority::High, b"no introduction").expect("sent");
    let again = hostile_peer.meet();
    assert!(again != peer && began.elapsed() >= Duration::from_millis(900), "not at once: {began:?}");
    hostile_peer.introduce(again, FAR);
    let report = node.report(0, |report| report.interfaces_count == 1);
    assert_eq!(report.node, "hostile_peer");
    // The loop does not seek a peer that has ended.
    drop(hostile_peer);
    std::thread::sleep(Duration::from_millis(50));
    let mut heir = HostilePeer::open("hostile_peer", directory.path());
    let deadline = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < deadline {
        assert!(!matches!(heir.poll(), Some(Event::Connected(_))), "nobody was lost");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_name_with_control_characters_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_node, mut hostile_peer, peer) = node(directory.path());
    let text = String::from_utf8(introduction(FAR, 1)).expect("text").replace("far:", "\\u001b[2J");
    hostile_peer.port.send(peer, Priority::High, text.as_bytes()).expect("sent");
    let reason = eventually("it is refused", || match hostile_peer.poll()? {
        Event::Disconnected { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reason, DisconnectReason::Closed);
}
