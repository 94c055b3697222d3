//! Another user of the machine attacks its service: it calls without a pause, keeps connections, sends what is wrong,
//! registers, asks, never reads, forges ends and sends descriptors.

use std::sync::mpsc;
use std::time::Duration;

use bywire_testing::actor::Actor;
use bywire_testing::test_network::{FakePort, Machine, introduction};
use bywire_wire::service::{Notice, Request};

use super::attack_test::{AttackTest, ROGUE, attack_time};
use super::rogue::{MANNERS, digits};
use crate::faults::ends::start;

/// The number of rogues that attack at the same time, enough for a machine with two cores.
const ROGUES: usize = 2;
/// How long a rogue attacks before the measurement, and behind it.
const AROUND: Duration = Duration::from_millis(250);
/// The fewest attacks in a second.
const RATE_MIN: u64 = 250;
/// The greatest share of a core that the service may use. It is a debug build.
const SHARE_MAX: f64 = 1.1;

/// A port of the other machine that accepts every offer until `kept` ends.
fn accept_all(machine: &Machine, kept: &mpsc::Receiver<()>) {
    let mut port = FakePort::open(machine, "accomplice");
    let mut connection = 0;
    while kept.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        if let Some(Notice::Offer { offer, .. }) = port.next_within(Duration::from_millis(50)) {
            connection += 1;
            port.send(&Request::Accept { offer, introduction: introduction(connection) });
        }
    }
}

#[test]
fn another_user_neither_ends_nor_delays_connections_of_others() {
    let Some(mut test) = AttackTest::begin() else { return };
    let machines = std::mem::take(&mut test.network.machines);
    let [here, there, _] = &machines[..] else { unreachable!() };
    let key = digits(&there.key);
    test.measure("no attack", (attack_time(), SHARE_MAX), || (), |()| 0);
    std::thread::scope(|scope| {
        let (keep, kept) = mpsc::channel();
        scope.spawn(move || accept_all(there, &kept));
        for (place, (name, ..)) in MANNERS.iter().enumerate() {
            // Longer than the measurement. Each attack has another user, who has used nothing of the service yet.
            let time = attack_time() + 2 * AROUND;
            let milliseconds = time.as_millis().to_string();
            let (user, place) = ((ROGUE + place as u32).to_string(), place.to_string());
            let begin = || {
                let start = |number: usize| {
                    let number = format!("{place}{number}");
                    start(here, "rogue", &[&user, &number, &key, &place, &milliseconds])
                };
                let mut rogues: Vec<Actor> = (0..ROGUES).map(start).collect();
                rogues.iter_mut().for_each(|rogue| drop(rogue.expect("ready")));
                rogues.iter_mut().for_each(|rogue| rogue.tell("attack"));
                // Until they attack in earnest.
                std::thread::sleep(AROUND);
                rogues
            };
            let end = |mut rogues: Vec<Actor>| {
                let told = rogues.iter_mut().map(|rogue| rogue.expect("").parse::<u64>().expect("a count"));
                let count: u64 = told.sum();
                assert!(
                    u128::from(count) > u128::from(RATE_MIN) * time.as_millis() / 1000,
                    "too few attacks: {count}"
                );
                count
            };
            test.measure(name, (attack_time(), SHARE_MAX), begin, end);
        }
        drop(keep);
    });
    test.measure("no attack again", (attack_time(), SHARE_MAX), || (), |()| 0);
    test.end();
}
