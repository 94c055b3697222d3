//! Ethernet between seven machines: TCP connections between two of them miss no response for as long as a second while
//! others are killed, stopped (for 12 s, and in a soak for a minute), renumbered and removed, and one joins. Those with
//! the renumbered, the stopped and the killed one go on. A member that floods broadcasts is limited at the receivers.
//! Needs root.

use std::io::{ErrorKind, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use bywire_eth::address::MacAddress;
use bywire_node::fabric::Fabric;
use bywire_testing::here::has_taps;
use bywire_testing::test_network::{self, Machine, TestNetwork};
use bywire_testing::{Guarded, Tier, eventually};

use crate::segment::dialogue::Dialogue;
use crate::segment::member::Member;
use crate::segment::{
    self, address, await_among, await_no_interface, connected, drops, exchange, peer_of, processes, segment,
    up,
};
use crate::up::{Up as Service, inside, text};

/// Machines that nothing has happened to get each response within this time, on a machine that is busy with other tests. TCP
/// would take at least 200 ms for a response that was lost, and then twice as long each time.
const UNNOTICED: Duration = Duration::from_secs(1);

fn signal(signal: &str, processes: &[u64]) {
    let processes = processes.iter().map(u64::to_string);
    let done = Command::new("kill").arg(signal).args(processes).status().expect("`kill` runs");
    assert!(done.success());
}

/// Machines `a` to `f` of a fabric with the keeper `a`, each with its service and an interface. Machine `g` has nothing yet.
fn six_machines_and_one() -> Option<(TestNetwork, Vec<Service>, Vec<Guarded>)> {
    if !has_taps() {
        return None;
    }
    let network = TestNetwork::without_services(7)?;
    let (last, members) = network.machines.split_last().expect("seven");
    let mut fabric = Fabric { keeper: Some("a".to_owned()), ..network.fabric() };
    fabric.nodes.truncate(members.len());
    members.iter().for_each(|machine| machine.write(&fabric));
    for entry in std::fs::read_dir(last.configuration()).expect("a directory").flatten() {
        std::fs::remove_file(entry.path()).expect("removed");
    }
    let services = members.iter().map(|machine| Service::start(machine).0).collect();
    let ups = members.iter().zip(1..).map(|(machine, number)| up(machine, number, &[])).collect();
    await_among(&members.iter().collect::<Vec<_>>());
    Some((network, services, ups))
}

/// Runs a command on the keeper that changes the fabric.
fn change(keeper: &Machine, arguments: &[&str]) -> String {
    let configuration = keeper.configuration();
    let place = ["--config", configuration.to_str().expect("text")];
    let done = inside(keeper, &[arguments, &place].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    text(&done.stdout)
}

#[test]
fn connections_do_not_notice_that_other_machines_are_killed_stopped_renumbered_removed_or_join() {
    let Some((mut network, mut services, mut ups)) = six_machines_and_one() else { return };
    let stopped_for = Duration::from_secs(Tier::current().pick([12, 12, 60]));
    let [a, b, c, d, e, f, _] = &network.machines[..] else { unreachable!() };
    let unaffected = [Dialogue::start(a, b, address(2, 7000)), Dialogue::start(b, a, address(1, 7000))];
    let (near, far) = connected(b, c, address(3, 7000));
    let with_stopped = Dialogue::start(a, d, address(4, 7000));
    let with_moved = Dialogue::start(a, e, address(5, 7000));
    let (cut, mut far_of_cut) = connected(f, a, address(1, 7001));
    exchange(&near, &far, 1 << 20);
    unaffected.iter().for_each(|dialogue| dialogue.await_more("responses"));

    // Stopped: its service and all processes that carry its frames.
    let began_to_stop = Instant::now();
    let stopped = processes(d);
    services[3].signal("-STOP");
    signal("-STOP", &stopped);

    // Killed: the same processes of another one. The interface goes with them.
    services[2].signal("-KILL");
    let killed = processes(c);
    signal("-KILL", &killed);
    unaffected.iter().for_each(|dialogue| dialogue.await_more("responses after a machine was killed"));
    let began = Instant::now();
    services[2] = Service::start(c).0;
    drop(ups.remove(2));
    await_no_interface(c);
    ups.insert(2, up(c, 3, &[]));
    exchange(&near, &far, 1 << 20);
    println!("killed and started again: its connection went on after {:?}", began.elapsed());

    // Renumbered.
    test_network::ip(&e.namespace, &format!("address del {}/24 dev eth0", e.address.ip()));
    network.machines[4].address.set_ip([10, 78, 0, 77].into());
    let [a, b, c, d, e, _, g] = &network.machines[..] else { unreachable!() };
    e.configure_interface();
    let began = Instant::now();
    with_moved.await_more("responses of the machine that has moved");
    println!("renumbered: its connection went on after {:?}", began.elapsed());

    // Removed. It does not know, and sends on.
    let known = a.strangers("unknown_keys");
    change(a, &["node", "remove", "f"]);
    let began = Instant::now();
    for machine in [a, b, c, e] {
        eventually("the node is gone", || peer_of(machine, "f").is_none());
    }
    println!("removed: four machines had cut it off after {:?}", began.elapsed());
    far_of_cut.set_nonblocking(true).expect("set");
    let is_empty = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
    assert!(far_of_cut.read(&mut [0; 1]).is_err_and(is_empty), "nothing was sent so far");
    (&cut).write_all(&[7; 10_000]).expect("its own kernel takes it");
    eventually("its handshakes are counted", || a.strangers("unknown_keys") > known);

    // Joins.
    let printed = change(a, &["invite", "g"]);
    let line = printed.trim_end().strip_prefix("bywire join '").and_then(|rest| rest.strip_suffix('\''));
    let began = Instant::now();
    services.push(Service::run(g, &["join", line.expect("an invitation"), "--up"]).0);
    ups.push(up(g, 7, &[]));
    await_among(&[a, b, c, e, g]);
    println!("joined: five machines knew each other after {:?}", began.elapsed());
    let (near, far) = connected(g, c, address(3, 7002));
    exchange(&near, &far, 1 << 20);

    // Continued.
    std::thread::sleep(stopped_for.saturating_sub(began_to_stop.elapsed()));
    services[3].signal("-CONT");
    signal("-CONT", &stopped);
    let began = Instant::now();
    with_stopped.await_more("responses of the machine that was stopped");
    println!("stopped for {:?}: its connection went on after {:?}", began - began_to_stop, began.elapsed());
    eventually("it has cut the removed machine off", || peer_of(d, "f").is_none());
    await_among(&[a, b, c, d, e, g]);
    let (near, far) = connected(d, g, address(7, 7003));
    exchange(&near, &far, 1 << 20);

    assert!(far_of_cut.read(&mut [0; 1]).is_err_and(is_empty), "the removed machine has reached another one");
    for dialogue in unaffected {
        let (responses, longest) = dialogue.end();
        println!(
            "two machines that nothing happened to: {responses} responses, the longest took {longest:?}"
        );
        assert!(responses > 1000 && longest < UNNOTICED, "{responses} responses, {longest:?}");
    }
    for (name, dialogue) in [("stopped", with_stopped), ("renumbered", with_moved)] {
        let (responses, longest) = dialogue.end();
        println!("with the machine that was {name}: {responses} responses, the longest took {longest:?}");
    }
}

#[test]
fn a_member_that_floods_broadcasts_is_limited_by_each_receiver_and_stops_nobody() {
    const FRAMES_PER_SECOND: u64 = 50;
    const FRAMES: u64 = 20_000;
    let settings = tempfile::NamedTempFile::new().expect("a file");
    let text = format!("[ethernet]\nstorm_frames_per_second = {FRAMES_PER_SECOND}\n");
    std::fs::write(settings.path(), text).expect("written");
    let more = ["--config", settings.path().to_str().expect("text")];
    let Some((network, mut ups)) = segment(3, true, &more) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    // A program takes the place of the carrier of c.
    drop(ups.pop());
    eventually("it has ended", || peer_of(a, "c").is_none());
    let dialogue = Dialogue::start(a, b, address(2, 7000));
    let mut member = Member::join(c, "a");
    let own = MacAddress::of_place("default", "c", 0);
    member.introduce("c", &[own]);
    eventually("it is known", || {
        member.serve();
        peer_of(a, "c").is_some()
    });
    dialogue.await_more("responses before the flood");
    let multicast = MacAddress([1, 0, 0x5E, 0, 0, 7]);
    let began = Instant::now();
    for number in 0..FRAMES {
        let target = if number % 2 == 0 { MacAddress::BROADCAST } else { multicast };
        member.send(&[&[0; 8][..], &target.0, &own.0, &[0x88, 0xB5], &[7; 200]].concat());
    }
    let mut received = 0;
    eventually("what it has sent has arrived", || {
        member.serve();
        let before = received;
        received = peer_of(a, "c").map_or(0, |peer| peer["received"]["frames"].as_u64().unwrap_or(0));
        received == FRAMES || received > 0 && received == before
    });
    let elapsed = began.elapsed();
    let passed = received - drops(a, "c", "storm");
    println!("of {FRAMES} broadcasts {received} came within {elapsed:?}, and {passed} were passed on");
    // A full allowance at first, and what is earned meanwhile.
    let allowed = FRAMES_PER_SECOND * (2 + elapsed.as_secs());
    assert!(received > 5 * allowed && passed <= allowed, "{passed} of {received}");
    dialogue.await_more("responses after the flood");
    let (responses, longest) = dialogue.end();
    println!("meanwhile: {responses} responses, the longest took {longest:?}");
    assert!(longest < UNNOTICED, "{longest:?}");
    // Its other frames are taken as before.
    let taken = || segment::status(a)["interfaces"][0]["received"]["frames"].as_u64();
    let (mac_a, before) = (segment::status(a)["interfaces"][0]["mac"].clone(), taken());
    let mac_a: MacAddress = mac_a.as_str().expect("text").parse().expect("an address");
    member.send(&[&[0; 8][..], &mac_a.0, &own.0, &[0x88, 0xB5], &[7; 50]].concat());
    eventually("its frame for one machine arrives", || {
        member.serve();
        taken() > before
    });
}
