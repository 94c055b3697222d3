//! A node that is not in the table gets a channel only with the secret of an invitation, for a bounded time.

use bywire_wire::channel::{Channels, DownReason, GUEST_NS, INVITATIONS_MAX, Options};
use bywire_wire::handshake::{Identity, InvitationId};

use super::simulation::{MS, SECOND, Simulation, address_of, identity_of};

const SECRET: [u8; 32] = [7; 32];

/// Nodes of which the first one knows no other. It has made an invitation.
fn with_invitation(nodes: usize, seed: u64) -> (Simulation, InvitationId) {
    let mut simulation = Simulation::new(nodes, seed);
    for node in 1..nodes {
        let node = simulation.key(node);
        simulation.nodes[0].channels.remove(simulation.now_ns, &node);
    }
    let id = simulation.nodes[0].channels.invite(SECRET).expect("there is room");
    assert_eq!(id, InvitationId::of(&SECRET));
    (simulation, id)
}

/// A node starts with this secret, and calls the first one.
fn call(simulation: &mut Simulation, node: usize, start: u64, secret: Option<[u8; 32]>) {
    simulation.restart(node, Identity { shared_secret: secret, ..identity_of(node, start) });
    simulation.connect(node, 0);
}

/// The printed tables of the first node.
fn remembered(simulation: &Simulation) -> String {
    let text = format!("{:?}", simulation.nodes[0].channels);
    let (_, tables) = text.split_once(" peers: ").expect("the table of nodes");
    tables.split_once(" load: ").expect("counters follow").0.to_owned()
}

#[test]
fn a_guest_has_a_channel_which_stays_when_it_is_added() {
    let (mut simulation, id) = with_invitation(2, 60);
    call(&mut simulation, 1, 2, Some(SECRET));
    simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 1) && simulation.is_up(1, 0));
    let guest = simulation.key(1);
    assert_eq!(simulation.nodes[0].channels.invitation(&guest), Some(id));
    simulation.send(1, 0, b"may I?");
    simulation.run(10 * MS);
    assert_eq!(simulation.messages(0, 1), [b"may I?"]);
    let now_ns = simulation.now_ns;
    assert!(simulation.nodes[0].channels.add(now_ns, guest, vec![address_of(1)]));
    assert_eq!(simulation.nodes[0].channels.invitation(&guest), None);
    simulation.send(0, 1, b"yes");
    simulation.run(2 * GUEST_NS);
    assert_eq!(simulation.messages(1, 0), [b"yes"]);
    assert!(simulation.is_up(0, 1) && simulation.downs(0).is_empty());
    // From now on it comes without the invitation, or once more with it.
    for (start, secret) in [(3, None), (4, Some(SECRET)), (5, None)] {
        call(&mut simulation, 1, start, secret);
        simulation.await_that("up again", 9 * SECOND, |simulation| simulation.is_up(1, 0));
    }
}

#[test]
fn guesses_get_no_answer_and_leave_nothing_behind() {
    let (mut simulation, id) = with_invitation(2, 61);
    let before = remembered(&simulation);
    for (start, secret) in [(2, None), (3, Some([8; 32])), (4, Some([0; 32]))] {
        call(&mut simulation, 1, start, secret);
        simulation.run(SECOND);
        assert!(simulation.recorded.iter().all(|packet| packet.from != address_of(0)), "no answer");
        assert_eq!(remembered(&simulation), before);
    }
    assert!(simulation.nodes[0].channels.strangers().unknown_keys >= 3);
    // An invitation that was withdrawn is as good as a guess.
    let now_ns = simulation.now_ns;
    simulation.nodes[0].channels.withdraw(now_ns, &id);
    call(&mut simulation, 1, 5, Some(SECRET));
    simulation.run(SECOND);
    assert!(simulation.recorded.iter().all(|packet| packet.from != address_of(0)), "no answer");
}

#[test]
fn a_guest_that_is_not_added_goes() {
    let (mut simulation, id) = with_invitation(2, 62);
    let before = remembered(&simulation);
    call(&mut simulation, 1, 2, Some(SECRET));
    simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 1));
    let [hello, ..] = &simulation.recorded[..] else { panic!("a hello") };
    let hello = hello.bytes.clone();
    let now_ns = simulation.now_ns;
    let node = simulation.key(0);
    simulation.nodes[1].channels.remove(now_ns, &node);
    simulation.run(GUEST_NS + 2 * SECOND);
    assert!(!simulation.is_up(0, 1));
    assert_eq!(simulation.downs(0).len(), 1);
    assert_eq!(remembered(&simulation), before);
    // Its hello again, from somebody who has seen it, makes no channel.
    simulation.give(0, address_of(5), &hello);
    simulation.run(GUEST_NS + 2 * SECOND);
    assert_eq!((simulation.ups(0), remembered(&simulation)), (1, before));
    let node = simulation.key(1);
    assert_eq!(simulation.nodes[0].channels.invitation(&node), None);
    let now_ns = simulation.now_ns;
    simulation.nodes[0].channels.withdraw(now_ns, &id);
}

#[test]
fn an_invitation_has_one_guest_at_a_time() {
    let (mut simulation, id) = with_invitation(3, 63);
    // The first one does not hear the answer, and the second one takes its place.
    simulation.cut = vec![(address_of(0), address_of(1))];
    call(&mut simulation, 1, 2, Some(SECRET));
    simulation.run(100 * MS);
    let [first, second] = [1, 2].map(|node| simulation.key(node));
    assert_eq!(simulation.nodes[0].channels.invitation(&first), Some(id));
    call(&mut simulation, 2, 2, Some(SECRET));
    simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 2) && simulation.is_up(2, 0));
    assert_eq!(simulation.nodes[0].channels.invitation(&first), None);
    assert_eq!(simulation.nodes[0].channels.invitation(&second), Some(id));
    // That one keeps it, as it has a channel.
    simulation.cut.clear();
    simulation.run(9 * SECOND);
    assert!(!simulation.is_up(1, 0) && simulation.is_up(2, 0));
    let now_ns = simulation.now_ns;
    simulation.nodes[0].channels.withdraw(now_ns, &id);
    simulation.run(SECOND);
    assert_eq!(simulation.downs(2), [DownReason::Closed]);
}

#[test]
fn a_guest_is_heard_only_with_its_invitation() {
    const OTHER: [u8; 32] = [8; 32];
    let (mut simulation, id) = with_invitation(2, 64);
    let [node, guest] = [0, 1].map(|node| simulation.key(node));
    call(&mut simulation, 1, 2, Some(SECRET));
    simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 1) && simulation.is_up(1, 0));
    let now_ns = simulation.now_ns;
    simulation.nodes[1].channels.remove(now_ns, &node);
    simulation.run(SECOND);
    assert!(!simulation.is_up(0, 1));
    for (start, secret) in [(3, None), (4, Some(OTHER))] {
        simulation.recorded.clear();
        call(&mut simulation, 1, start, secret);
        simulation.run(SECOND);
        assert!(simulation.recorded.iter().all(|packet| packet.from != address_of(0)), "no answer");
        assert_eq!(simulation.nodes[0].channels.invitation(&guest), Some(id));
    }
    // It may change to another one.
    let other = simulation.nodes[0].channels.invite(OTHER).expect("there is room");
    call(&mut simulation, 1, 5, Some(OTHER));
    simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 1) && simulation.is_up(1, 0));
    assert_eq!(simulation.nodes[0].channels.invitation(&guest), Some(other));
}

#[test]
fn invitations_are_bounded_and_their_secrets_are_not_shown() {
    let mut channels = Channels::new(identity_of(0, 1), Options::default());
    for number in 0..INVITATIONS_MAX {
        assert!(channels.invite([number as u8; 32]).is_some());
    }
    assert!(channels.invite([0xff; 32]).is_none());
    assert!(!format!("{channels:?}").contains("63, 63, 63"));
    channels.withdraw(0, &InvitationId::of(&[0; 32]));
    assert!(channels.invite([0xff; 32]).is_some());
}
