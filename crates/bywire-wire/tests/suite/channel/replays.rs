//! Replayed hellos and first packets displace no answered hello and move no channel, while the genuine node makes one.

use std::net::SocketAddr;

use bywire_wire::packet::PacketKind;

use super::simulation::{MS, Packet, SECOND, Simulation, address_of, identity_of};

fn stranger(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 999))
}

fn is(packet: &[u8], kind: PacketKind) -> bool {
    packet[0] == kind as u8
}

/// Hellos of node 0 to node 1, by services with these numbers, which have never reached it. Each has a cookie for `from`, the
/// address of the replaying sender, if node 1 gives one.
fn seen(
    simulation: &mut Simulation,
    services: std::ops::Range<u64>,
    from: Option<SocketAddr>,
) -> Vec<Vec<u8>> {
    let mut hellos = Vec::new();
    for start in services {
        let mut old = Simulation::new(2, start);
        old.restart(0, identity_of(0, start));
        old.cut = vec![(address_of(0), address_of(1))];
        old.connect(0, 1);
        if let Some(from) = from {
            let first = old.recorded.last().expect("a hello").bytes.clone();
            let sent = simulation.recorded.len();
            simulation.give(1, from, &first);
            if let Some(cookie) =
                simulation.recorded[sent..].iter().find(|sent| is(&sent.bytes, PacketKind::Cookie))
            {
                old.give(0, address_of(1), &cookie.bytes);
            }
            old.run(SECOND / 2);
            simulation.run(50 * MS);
        }
        hellos.push(old.recorded.last().expect("a hello").bytes.clone());
    }
    hellos
}

/// Node 0 makes a channel over a long round trip. Meanwhile these hellos are replayed from these addresses without a pause, one
/// group after the other.
fn connect_beside(simulation: &mut Simulation, groups: &[Vec<(SocketAddr, Vec<u8>)>], within_ns: u64) {
    simulation.faults.delay_ns = (50 * MS, 50 * MS + 1);
    let mut group = groups.iter().cycle();
    let mut repeat = |simulation: &mut Simulation| {
        for (from, hello) in group.next().expect("there is one") {
            simulation.give(1, *from, hello);
        }
        simulation.run(45 * MS);
    };
    // The first ones have taken their places.
    repeat(simulation);
    simulation.connect(0, 1);
    let until_ns = simulation.now_ns + within_ns;
    while !(simulation.is_up(0, 1) && simulation.is_up(1, 0)) {
        assert!(simulation.now_ns < until_ns, "replayed hellos keep the genuine one out");
        repeat(simulation);
    }
    assert_eq!((simulation.ups(0), simulation.ups(1)), (1, 1));
    simulation.send(0, 1, b"here I am");
    simulation.await_that("it has come", SECOND, |simulation| simulation.messages(1, 0).last().is_some());
}

#[test]
pub fn replays_of_services_that_were_never_heard_displace_no_answered_hello() {
    // Node 1 has just started, so it does not know which of these services is the current one.
    let mut simulation = Simulation::new(2, 40);
    let hellos = seen(&mut simulation, 100..120, None);
    let repeated = hellos.into_iter().map(|hello| (stranger(7), hello)).collect();
    // The first hello is answered with a cookie. The second one makes the channel a quarter of a second later.
    connect_beside(&mut simulation, &[repeated], SECOND);
    assert!(simulation.nodes[1].channels.strangers().cookies_sent > 0);

    // The sender has proved its addresses, and replays as many hellos as each address may. No network
    // of them is limited further.
    let mut simulation = Simulation::new(2, 41);
    let mut groups = vec![Vec::new(); 14];
    let distant = |number: u8| SocketAddr::from(([number, 0, 2, 7], 999));
    for number in 1..=8 {
        let services = 1000 * u64::from(number);
        for (group, hello) in
            groups.iter_mut().zip(seen(&mut simulation, services..services + 14, Some(distant(number))))
        {
            group.push((distant(number), hello));
        }
    }
    let has_cookie = |(_, hello): &(SocketAddr, Vec<u8>)| hello[hello.len() - 16..] != [0; 16];
    assert!(
        groups.iter().flatten().filter(|repeated| has_cookie(repeated)).count() > 50,
        "most have a cookie"
    );
    simulation.run(20 * SECOND);
    connect_beside(&mut simulation, &groups, SECOND);
}

#[test]
pub fn a_first_packet_that_is_repeated_from_elsewhere_moves_no_channel() {
    for is_hello_repeated in [false, true] {
        let mut simulation = Simulation::new(2, 42);
        simulation.cut = vec![(address_of(0), address_of(1))];
        simulation.connect(0, 1);
        let hello = simulation.recorded.last().expect("a hello").bytes.clone();
        if is_hello_repeated {
            // A sender on the path is faster than the node.
            simulation.give(1, stranger(7), &hello);
        }
        simulation.give(1, address_of(0), &hello);
        simulation.run(MS);
        assert!(simulation.is_up(0, 1) && !simulation.is_up(1, 0));
        let mut sent = simulation.recorded.iter().filter(|packet| packet.from == address_of(0));
        let first =
            sent.find(|packet| is(&packet.bytes, PacketKind::Data)).expect("a first packet").bytes.clone();
        simulation.give(1, stranger(7), &first);
        let status = simulation.nodes[1].channels.status(&simulation.key(0)).expect("known");
        assert_eq!(status.channel.expect("it is up").path.peer, address_of(0));
        simulation.cut.clear();
        simulation.send(1, 0, b"to whom?");
        simulation.await_that("it has come", 10 * MS, |simulation| simulation.messages(0, 1).len() == 1);
    }
}

/// A member sends its hello from its own address and, with a forged source, from `victim`. It gets the answer that goes to its own
/// address, and sends all its packets from both. Returns where the channel is, and the bytes from and to the victim.
fn forge(simulation: &mut Simulation, victim: SocketAddr, is_victim_first: bool) -> (SocketAddr, [usize; 2]) {
    let began = simulation.recorded.len();
    let (mut forged, mut given) = (0, began);
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.connect(0, 1);
    for round in 0..200 {
        let new: Vec<_> = simulation.recorded[given..].to_vec();
        given = simulation.recorded.len();
        for packet in new.into_iter().filter(|packet| packet.from == address_of(0)) {
            let sources = [victim, address_of(0)];
            let is_hello = is(&packet.bytes, PacketKind::Hello);
            let sources = if is_victim_first { sources } else { [sources[1], sources[0]] };
            for from in sources.into_iter().filter(|from| is_hello || *from == victim) {
                forged += if from == victim { packet.bytes.len() } else { 0 };
                simulation.give(1, from, &packet.bytes);
            }
        }
        simulation.run(MS);
        if simulation.is_up(1, 0) && round % 10 == 0 {
            // The service's text is long.
            let node = simulation.key(0);
            let _ = simulation.nodes[1].channels.send(simulation.now_ns, &node, &[7; 4000]);
            simulation.collect(1);
        }
    }
    let sent = simulation.recorded[began..].iter().filter(|packet| packet.to == victim);
    let status = simulation.nodes[1].channels.status(&simulation.key(0)).expect("known");
    let address = status.channel.expect("it is up").path.peer;
    (address, [forged, sent.map(|packet| packet.bytes.len()).sum()])
}

#[test]
pub fn a_member_that_forges_an_address_is_sent_no_more_there_than_has_come_from_there() {
    for (is_victim_first, is_in_table) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut simulation = Simulation::new(2, 43);
        let victim = stranger(9);
        let table = if is_in_table { vec![victim] } else { Vec::new() };
        let (now_ns, member) = (simulation.now_ns, simulation.key(0));
        simulation.nodes[1].channels.add(now_ns, member, table);
        let (address, [forged, sent]) = forge(&mut simulation, victim, is_victim_first);
        assert_eq!(address, address_of(0), "the victim has received nothing of the member");
        assert!(sent <= forged && sent <= 2 * 1200, "{forged} bytes became {sent} there");
        let arrived = simulation.messages(0, 1).len();
        assert!(arrived >= 15, "the member itself is served: {arrived}");
    }
}

#[test]
fn somebody_who_repeats_hellos_and_passes_the_answers_on_first_keeps_no_channel() {
    let mut simulation = Simulation::pair(44);
    let thief = stranger(8);
    // The genuine answers come later.
    let late = |packet: &Packet| Some(if is(&packet.bytes, PacketKind::Answer) { 10 * MS } else { 0 });
    simulation.attacker = Some(Box::new(late));
    let (mut given, mut stolen, mut count) = (simulation.recorded.len(), 0, 0u32);
    let until_ns = simulation.now_ns + 300 * SECOND;
    while simulation.now_ns < until_ns {
        for (from, to) in [(0, 1), (1, 0)] {
            simulation.send(from, to, &count.to_le_bytes());
        }
        count += 1;
        for _ in 0..500 {
            simulation.run(MS);
            for at in given..simulation.recorded.len() {
                let packet = simulation.recorded[at].clone();
                let is_hello = is(&packet.bytes, PacketKind::Hello) && packet.from == address_of(0);
                if is_hello {
                    simulation.give(1, thief, &packet.bytes);
                }
                let answer = simulation.recorded.last().filter(|answer| is_hello && answer.to == thief);
                if let Some(answer) = answer.cloned() {
                    simulation.give(0, thief, &answer.bytes);
                    stolen += 1;
                }
            }
            given = simulation.recorded.len();
        }
    }
    assert!(stolen >= 2, "{stolen}");
    let expected: Vec<_> = (0..count).map(|message| message.to_le_bytes().to_vec()).collect();
    for (at, of) in [(0, 1), (1, 0)] {
        assert_eq!(simulation.messages(at, of), expected);
        assert_eq!((simulation.ups(at), simulation.downs(at).len()), (1, 0));
    }
    let status = simulation.nodes[1].channels.status(&simulation.key(0)).expect("known");
    assert_eq!(status.channel.expect("it is up").path.peer, address_of(0));
    let to_thief = simulation.recorded.iter().filter(|packet| packet.to == thief);
    let to_thief = to_thief.filter(|packet| is(&packet.bytes, PacketKind::Data)).count();
    println!("{stolen} hellos were repeated, and {to_thief} packets of {count} messages went there");
    assert!(to_thief <= 20 * stolen, "{to_thief}");
}
