//! Peers that make others use up memory or address space: each gets a bounded amount, and no message is lost.

use std::os::fd::AsFd;

use bywire::handshake::Packet;
use bywire::{Admit, Confirm, DisconnectReason, Event, Geometry, Port, PortOptions, Priority};
use bywire_ring::geometry::LaneName;
use bywire_testing::here::{self, as_user};
use bywire_testing::rogue::{ALL_SEALS, Inside, LENT, Rogue, sealed};

use crate::ports::{PortDirectory, meet, named, serve, until};

/// Users without an entry in the user database.
const ONE: u32 = 54_351;
const OTHER: u32 = 54_352;

/// Messages of ended peers are kept for the program. If there are too many already, the next peer's end waits.
#[test]
fn messages_of_ended_peers_are_bounded_until_the_program_takes_them() {
    const PEERS: usize = 20;
    const MESSAGE_BYTES: usize = 7 << 20;
    let place = PortDirectory::new();
    let mut victim = place.open(place.options());
    let mut geometry = Geometry::default();
    geometry.lanes[LaneName::Low as usize].bulk_bytes = 8 << 20;
    geometry.lanes[LaneName::Low as usize].slots = 8192;
    let mut peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let mut port = place.open(PortOptions { geometry, ..place.options() });
            let (to_victim, _) = meet(&mut port, &mut victim);
            (port, to_victim)
        })
        .collect();
    for (port, to_victim) in &mut peers {
        let message = vec![7; MESSAGE_BYTES];
        port.send_buffer(*to_victim, Priority::Low, message, Confirm::Copied).expect("a token");
        until(|| matches!(port.poll(), Some(Event::Sent { result: Ok(()), .. })));
    }
    drop(peers);
    let (mut messages, mut ended) = (0, 0);
    until(|| {
        match victim.poll() {
            Some(Event::Message(message)) => {
                assert!(
                    message.payload.len() == MESSAGE_BYTES && message.payload.iter().all(|byte| *byte == 7)
                );
                messages += 1;
            }
            Some(Event::Disconnected { reason, .. }) => {
                assert_eq!(reason, DisconnectReason::Closed);
                ended += 1;
            }
            _ => {}
        }
        let waiting = PEERS - victim.peers().count() - ended;
        assert!(waiting <= 11, "messages of {waiting} peers wait, {MESSAGE_BYTES} bytes each");
        ended == PEERS
    });
    assert_eq!(messages, PEERS, "none is lost");
}

/// One more peer of a user shares this much memory with the port and lends a block of it. Returns whether the port
/// takes it.
fn is_taken(
    victim: &mut Port,
    place: &PortDirectory,
    user: u32,
    heaps: u32,
    bytes: u64,
    kept: &mut Vec<Inside>,
) -> bool {
    let name = format!("rogue{}", kept.len());
    let memory = sealed(bytes, true, ALL_SEALS);
    let lend = || {
        let rogue = Rogue::new(place.path(), &name);
        let mut inside = rogue.enter("victim").expect("let in");
        for id in 0..heaps {
            let heap = Packet::Heap { id, block_bytes: bytes, blocks: 1 }.to_bytes();
            // The port may have ended the connection by now.
            let _ = inside.socket.send(&heap, &[memory.as_fd()]);
        }
        rogue.push(&mut inside, LaneName::Low, LENT, &[u64::from(heaps) - 1, 0, 64]);
        (rogue, inside)
    };
    let ((_rogue, inside), mut events) = serve(victim, || as_user(user, lend));
    kept.push(inside);
    until(|| {
        let is_taken = events.drain(..).find_map(|event| match event {
            Event::Lent(_) => Some(true),
            Event::Disconnected { reason: DisconnectReason::Broken, .. } => Some(false),
            Event::Connected(_) => None,
            other => panic!("{other:?}"),
        });
        events.extend(victim.poll());
        is_taken
    })
}

#[test]
fn the_heaps_of_another_user_are_bounded_over_all_its_peers() {
    if !here::is_root() {
        return;
    }
    let place = PortDirectory::shared();
    let mut victim =
        place.open(PortOptions { admit: Admit::Everyone, borrow_bytes_max: 4 << 20, ..named("victim") });
    let mut kept = Vec::new();
    let mut is_taken = |user, heaps, bytes| is_taken(&mut victim, &place, user, heaps, bytes, &mut kept);
    assert!(is_taken(ONE, 1, 2 << 20) && is_taken(ONE, 1, 2 << 20));
    assert!(!is_taken(ONE, 1, 4096), "its third peer");
    assert!(is_taken(OTHER, 1, 2 << 20), "another user is none the worse");
    // Mappings are bounded too: 16 for each peer, 256 for a user.
    for peer in 0..15 {
        assert!(is_taken(OTHER, 16, 4096), "peer {peer}");
    }
    assert!(is_taken(OTHER, 15, 4096) && !is_taken(OTHER, 1, 4096));
    assert!(is_taken(0, 1, 4 << 20) && is_taken(0, 1, 4 << 20), "root's peers each for themselves");
}
