//! Strangers attack a service: they send noise, hellos that they have seen and hellos with cookies.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bywire_node::key;
use bywire_sys::process;
use bywire_sys::udp::UdpSocket;
use bywire_testing::test_network::{Machine, TIMEOUT};
use bywire_wire::channel::{Channels, Options};
use bywire_wire::handshake::{HELLO_BYTES, Identity, PrivateKey};

use super::attack_test::{AttackTest, attack_time};

/// Packets that one call sends.
const AT_ONCE: usize = 32;
/// The number of earlier services of the other machine whose hellos are replayed.
const SEEN: u64 = 40;
/// The greatest share of a core that the service may use. To receive a flood alone takes a core.
const SHARE_MAX: f64 = 1.1;

fn random(bytes: &mut [u8]) {
    process::random(bytes).expect("random numbers");
}

/// Hellos of a node to a machine, each of another incarnation of its service, with the cookies that `answer` returns for them.
fn hellos(
    key: &PrivateKey,
    target: &Machine,
    count: u64,
    answer: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
) -> Vec<Vec<u8>> {
    let of = |incarnation: u64| {
        let identity = Identity { key: key.clone(), shared_secret: None, boot_id: [7; 16], incarnation };
        let mut channels = Channels::new(identity, Options { has_aes: true });
        assert!(channels.add(0, target.key, vec![target.address]));
        channels.connect(0, &target.key).expect("just added");
        let mut out = Vec::new();
        channels.transmit(0, &mut random, &mut out);
        if let Some(mut cookie) = out.last().and_then(|(_, hello)| answer(hello)) {
            channels.receive(0, &mut random, target.address, &mut cookie);
            let again_ns = channels.next_timeout_ns().expect("it waits for an answer");
            channels.transmit(again_ns, &mut random, &mut out);
        }
        out.pop().expect("a hello").1
    };
    (1..=count).map(of).collect()
}

/// Sends packets to a service, one batch after the other, until the sender of `kept` is dropped. Returns their number.
fn flood(udp: &UdpSocket, to: SocketAddr, batches: &[Vec<u8>], kept: &mpsc::Receiver<()>) -> u64 {
    let mut count = 0;
    for batch in batches.iter().cycle() {
        if kept.try_recv() == Err(mpsc::TryRecvError::Disconnected) {
            break;
        }
        // Packets without room are lost.
        count += udp.send_batch(Some(to), batch, HELLO_BYTES).map_or(0, |sent| sent / HELLO_BYTES) as u64;
        std::thread::sleep(Duration::from_micros(50));
    }
    count
}

fn bind(machine: &Machine) -> UdpSocket {
    machine.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound")
}

fn batches(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    packets.chunks(AT_ONCE).map(<[_]>::concat).collect()
}

#[test]
fn packets_of_unknown_machines_end_and_delay_nothing() {
    let Some(mut test) = AttackTest::begin() else { return };
    let machines = std::mem::take(&mut test.network.machines);
    let [here, there, stranger] = &machines[..] else { unreachable!() };
    let udp = bind(stranger);
    let seen = key::read(&there.configuration().join(key::FILE_NAME)).expect("its key");
    let mut bytes = [0; 32];
    random(&mut bytes);
    let unknown = PrivateKey::new(bytes);

    let noise: Vec<Vec<u8>> = (0..4096_u32)
        .map(|number| {
            let mut packet = vec![0; HELLO_BYTES];
            random(&mut packet);
            // Packets of every kind, and of channels with small numbers.
            packet[0] = 0xb1 + number as u8 % 4;
            packet[1] = 0;
            packet[2..4].copy_from_slice(&(HELLO_BYTES as u16).to_le_bytes());
            packet
        })
        .collect();
    let small: Vec<Vec<u8>> =
        (0..64).map(|_| [&[0xb4, 0, 16, 0][..], &[0; 12]].concat().repeat(HELLO_BYTES / 16)).collect();
    let none = |_: &[u8]| None;
    let replayed = hellos(&seen, here, SEEN, &none);
    let strange = hellos(&unknown, here, SEEN, &none);
    test.measure("no attack", (attack_time(), SHARE_MAX), || (), |()| 0);
    let ask = |hello: &[u8]| {
        // Under load the answer is a cookie. Its header has the number of the hello.
        let number = |packet: &[u8]| packet[4..8].to_vec();
        let deadline = Instant::now() + TIMEOUT / 6;
        while Instant::now() < deadline {
            let batch = strange.concat();
            let _ = udp.send_batch(Some(here.address), &batch, HELLO_BYTES);
            let _ = udp.send(Some(here.address), hello);
            std::thread::sleep(Duration::from_millis(2));
            let mut buffer = [0; 2048];
            let mut cookie = None;
            while let Ok(Some(length)) = udp.receive(&mut buffer) {
                let is_its = buffer[0] == 0xb3 && number(&buffer) == number(hello);
                cookie = is_its.then(|| buffer[..length].to_vec()).or(cookie);
            }
            if cookie.is_some() {
                return cookie;
            }
        }
        None
    };
    let proved = [hellos(&seen, here, 8, &ask), hellos(&unknown, here, 8, &ask)].concat();
    let cookies = proved.iter().filter(|hello| hello[HELLO_BYTES - 16..] != [0; 16]).count();
    assert!(cookies > 0, "some have a cookie");
    let attacks = [
        ("noise of every kind", noise),
        ("many packets in one datagram", small),
        ("hellos that were seen before", replayed),
        ("hellos of an unknown key", strange),
        ("hellos with cookies", proved),
    ];
    for (name, packets) in &attacks {
        let batches = batches(packets);
        std::thread::scope(|scope| {
            let begin = || {
                let (keep, kept) = mpsc::channel();
                let batches = &batches;
                // From the address and the port to which the cookies were given.
                let copy = udp.as_fd().try_clone_to_owned().expect("a copy");
                let udp = UdpSocket::from_descriptor(copy).expect("it is one");
                let flooding = scope.spawn(move || flood(&udp, here.address, batches, &kept));
                std::thread::sleep(Duration::from_millis(250));
                (keep, flooding)
            };
            test.measure(name, (attack_time(), SHARE_MAX), begin, |(keep, flooding)| {
                drop(keep);
                flooding.join().expect("no panic")
            });
        });
    }
    test.measure("no attack again", (attack_time(), SHARE_MAX), || (), |()| 0);
    test.end();
}
