//! Wrong shared secrets, malformed greetings and other versions change nothing. They are sent by a known node that is
//! made of `snow` alone, independently of the product.

use std::net::SocketAddr;

use bywire_wire::channel::Event;
use bywire_wire::handshake::{HELLO_BYTES, PrivateKey, PublicKey};
use bywire_wire::packet::{HEADER_BYTES, Header, PacketKind};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use super::hostile::make_mac1;
use super::simulation::{SECOND, Simulation, address_of, key_of};

const MAC_BYTES: usize = 16;
const HELLO_PAYLOAD: usize = 1056;
const ANSWER_PAYLOAD: usize = 1120;
/// A greeting of version 1: boot id, incarnation, session, number of the channel, no AES.
const GREETING: [u8; 20] = [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 5, 1, NUMBER as u8, 0];
const NUMBER: u32 = 77;

struct Constant;

impl Random for Constant {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        bytes.fill(0x42);
        Ok(())
    }
}

impl CryptoResolver for Constant {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Self))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn handshake(key: &PrivateKey, responder: Option<PublicKey>, prologue: &[u8]) -> HandshakeState {
    let pattern = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s".parse().expect("a pattern");
    let builder = Builder::with_resolver(pattern, Box::new(Constant));
    let builder = builder.local_private_key(key.bytes()).and_then(|builder| builder.psk(2, &[0; 32]));
    let builder = builder.and_then(|builder| builder.prologue(prologue)).expect("nothing is set twice");
    match responder {
        Some(responder) => builder.remote_public_key(&responder.0).and_then(Builder::build_initiator),
        None => builder.build_responder(),
    }
    .expect("all keys are there")
}

/// Versions, the length of a greeting, and the greeting.
fn payload(versions: (u16, u16), length: u16, greeting: &[u8], bytes: usize) -> Vec<u8> {
    let numbers = [versions.0, versions.1, length].map(u16::to_le_bytes).concat();
    let mut payload = [&numbers[..], greeting].concat();
    payload.resize(bytes, 0);
    payload
}

fn header(kind: PacketKind, connection: u32, number: u64) -> [u8; HEADER_BYTES] {
    Header { kind, key_phase: false, length: HELLO_BYTES as u16, connection, number }.to_bytes()
}

/// A hello of the first node to the second one.
fn hello(payload: &[u8]) -> (HandshakeState, Vec<u8>) {
    let responder = key_of(1).public();
    let header = header(PacketKind::Hello, NUMBER, 1);
    let mut state = handshake(&key_of(0), Some(responder), &header);
    let mut packet = vec![0; HELLO_BYTES];
    packet[..HEADER_BYTES].copy_from_slice(&header);
    let length = state.write_message(payload, &mut packet[HEADER_BYTES..]).expect("it fits");
    assert_eq!(HEADER_BYTES + length + 2 * MAC_BYTES, HELLO_BYTES);
    packet[HEADER_BYTES + length..].fill(0);
    make_mac1(responder, &mut packet);
    (state, packet)
}

/// The payload of the second node's answer to a hello with this payload.
fn answer_to(simulation: &mut Simulation, payload: &[u8]) -> Option<Vec<u8>> {
    let (mut state, packet) = hello(payload);
    let before = simulation.recorded.len();
    simulation.give(1, address_of(0), &packet);
    let answer = simulation.recorded.get(before)?;
    let mut payload = vec![0; HELLO_BYTES];
    let message = &answer.bytes[HEADER_BYTES..HELLO_BYTES - MAC_BYTES];
    let length = state.read_message(message, &mut payload).expect("it answers this hello");
    payload.truncate(length);
    Some(payload)
}

#[test]
fn a_node_that_speaks_this_version_and_others_is_answered_as_documented() {
    for versions in [(1, 1), (1, 9), (0, 1)] {
        let mut simulation = Simulation::new(2, 40);
        let hello = payload(versions, GREETING.len() as u16, &GREETING, HELLO_PAYLOAD);
        let answer = answer_to(&mut simulation, &hello).expect("an answer");
        assert_eq!(answer.len(), ANSWER_PAYLOAD);
        assert_eq!(answer[..4], [1, 0, 1, 0]);
        let length = usize::from(answer[4]);
        // Boot id and incarnation.
        assert_eq!(answer[6..23], [[1; 16].as_slice(), &[1]].concat());
        assert!(length > 20 && answer[6 + length..].iter().all(|byte| *byte == 0));
        assert_eq!(
            simulation.nodes[1].channels.status(&simulation.key(0)).expect("known").counts.answers_sent,
            1
        );
    }
}

#[test]
fn two_nodes_without_a_common_version_make_no_channel_and_both_report_it() {
    for versions in [(2, 3), (0, 0), (9, u16::MAX)] {
        // The other node asks. This one does not understand the bytes after its versions.
        let mut simulation = Simulation::new(2, 41);
        let hello = payload(versions, u16::MAX, &[0xff; 100], HELLO_PAYLOAD);
        let answer = answer_to(&mut simulation, &hello).expect("an answer that names the versions");
        assert_eq!(answer[..4], [1, 0, 1, 0]);
        let counts = simulation.nodes[1].channels.status(&simulation.key(0)).expect("known").counts;
        assert_eq!((counts.other_versions, counts.answers_sent), (1, 0));
        assert_eq!(
            simulation.nodes[1].channels.next_timeout_ns(),
            None,
            "no channel waits for a first packet"
        );

        // This node asks the other one.
        let mut simulation = Simulation::new(2, 42);
        simulation.cut = vec![(address_of(0), address_of(1))];
        simulation.connect(0, 1);
        let hello = simulation.recorded[0].bytes.clone();
        let answer = foreign_answer(&hello, &payload(versions, u16::MAX, &[0xff; 100], ANSWER_PAYLOAD));
        simulation.give(0, address_of(1), &answer);
        let node = simulation.key(1);
        assert_eq!(simulation.nodes[0].events, [Event::OtherVersion { node }]);
        simulation.run(15 * SECOND);
        assert_eq!(
            (simulation.recorded.len(), simulation.nodes[0].events.len()),
            (1, 1),
            "it asks less often"
        );
        simulation.run(2 * SECOND);
        assert_eq!(simulation.recorded.len(), 2);
    }
}

/// An answer of the second node with any payload.
fn foreign_answer(hello: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut state = handshake(&key_of(1), None, &hello[..HEADER_BYTES]);
    let message = &hello[HEADER_BYTES..HELLO_BYTES - 2 * MAC_BYTES];
    state.read_message(message, &mut vec![0; HELLO_BYTES]).expect("it is for this node");
    let connection = Header::parse(hello).expect("a packet").connection;
    let mut packet = vec![0; HELLO_BYTES];
    packet[..HEADER_BYTES].copy_from_slice(&header(PacketKind::Answer, connection, 0));
    state.write_message(payload, &mut packet[HEADER_BYTES..]).expect("it fits");
    make_mac1(key_of(0).public(), &mut packet);
    packet
}

#[test]
fn malformed_greetings_of_a_known_node_get_no_answer_and_make_no_channel() {
    let length = GREETING.len() as u16;
    let mut other_number = GREETING;
    other_number[18] = 78;
    let cases = [
        ((3, 1), length, GREETING),
        ((1, 1), length - 1, GREETING),
        ((1, 1), length + 1, GREETING),
        ((1, 1), 0, GREETING),
        ((1, 1), u16::MAX, GREETING),
        ((1, 1), length, [0xff; 20]),
        ((1, 1), length, other_number),
    ];
    for (versions, length, greeting) in cases {
        let mut simulation = Simulation::new(2, 43);
        let hello = payload(versions, length, &greeting, HELLO_PAYLOAD);
        assert_eq!(answer_to(&mut simulation, &hello), None, "{versions:?} {length} {greeting:?}");
        if greeting != other_number {
            let mut simulation = Simulation::new(2, 44);
            simulation.cut = vec![(address_of(0), address_of(1))];
            simulation.connect(0, 1);
            let hello = simulation.recorded[0].bytes.clone();
            let answer = foreign_answer(&hello, &payload(versions, length, &greeting, ANSWER_PAYLOAD));
            simulation.give(0, address_of(1), &answer);
            assert!(!simulation.is_up(0, 1));
            let counts = simulation.nodes[0].channels.status(&simulation.key(1)).expect("known").counts;
            assert_eq!((counts.answers_refused, counts.answers_received), (1, 0));
        }
    }
}

#[test]
fn a_known_node_cannot_take_the_place_of_another_one() {
    // It has both public keys, and only its own private key.
    let mut simulation = Simulation::new(3, 45);
    let hello = payload((1, 1), GREETING.len() as u16, &GREETING, HELLO_PAYLOAD);
    let header = header(PacketKind::Hello, NUMBER, 1);
    let mut state = handshake(&key_of(2), Some(key_of(1).public()), &header);
    let mut packet = vec![0; HELLO_BYTES];
    packet[..HEADER_BYTES].copy_from_slice(&header);
    let length = state.write_message(&hello, &mut packet[HEADER_BYTES..]).expect("it fits");
    packet[HEADER_BYTES + length..].fill(0);
    make_mac1(key_of(1).public(), &mut packet);
    let from: SocketAddr = address_of(0);
    simulation.give(1, from, &packet);
    let counts =
        [0, 2].map(|of| simulation.nodes[1].channels.status(&simulation.key(of)).expect("known").counts);
    assert_eq!(counts.map(|counts| counts.hellos_received), [0, 1], "the key decides, and not the address");
}
