//! A machine with the name and the address of another one, and with another key.

use std::time::Duration;

use bywire::{Admit, ConnectError, Port, PortOptions};
use bywire_node::key;
use bywire_wire::service::status::Entry;

use crate::cable::Stream;
use crate::ends::{open, options};
use crate::stopped_services::{Acceptor, Connector, meanwhile};
use crate::test_network::{Machine, TestNetwork, ip};

/// A port of that machine that admits everyone.
fn open_decoy(machine: &Machine) -> Port {
    open(machine, PortOptions { admit: Admit::Everyone, ..options(&machine.runtime(), "open") })
}

/// Checks that no peer has connected to a port.
fn expect_nobody(port: &mut Port) {
    let event = port.poll();
    assert!(event.is_none() && port.peers().count() == 0, "{event:?} at the stranger's port");
}

/// Checks that a connect fails because no service answers.
fn expect_unreachable(connector: &mut Connector) {
    assert_eq!(connector.once(), Err(ConnectError::Unreachable));
}

#[test]
fn a_machine_with_a_wrong_key_connects_to_no_node_and_disturbs_none() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    // The fabric files have a node `b`. The machine with that name and address has another key, and knows all other nodes.
    let strangers = network.fabric();
    let mut fabric = strangers.clone();
    let elsewhere = tempfile::tempdir().expect("a directory");
    fabric.nodes[1].key = key::make(&elsewhere.path().join(key::FILE_NAME)).expect("a key").public();
    [0, 2].iter().for_each(|friend: &usize| network.machines[*friend].write(&fabric));
    network.machines[1].write(&strangers);
    network.machines.iter_mut().for_each(Machine::start);
    let [one, stranger, other] = &network.machines[..] else { unreachable!() };
    let mut stream = Stream::start(one, other, 1, [Duration::from_secs(30); 2]);
    let acceptors = [one, other].map(Acceptor::open);
    let mut decoy = open_decoy(stranger);

    // The stranger connects to both, and both connect to the node that the stranger claims to be.
    meanwhile(&mut stream, || {
        std::thread::scope(|scope| {
            for (here, address) in
                [(stranger, "a/open"), (stranger, "c/open"), (one, "b/open"), (other, "b/open")]
            {
                let mut connector = Connector::of(here, address);
                scope.spawn(move || expect_unreachable(&mut connector));
            }
        });
    });
    expect_nobody(&mut decoy);
    for friend in [one, other] {
        let Some(Entry::Service(service)) = friend.status().into_iter().next() else {
            panic!("it comes first")
        };
        assert!(friend.strangers("unknown_keys") > 0);
        assert_eq!(service.last_unknown, Some((stranger.key.0, stranger.address)), "the status names it");
        assert_eq!(
            (friend.count_of("b", "answers_sent"), friend.count_of("b", "channels")),
            (0, 0),
            "no answer"
        );
    }
    for friend in ["a", "c"] {
        assert_eq!(stranger.count_of(friend, "channels"), 0);
        assert_eq!(stranger.count_of(friend, "answers_received"), 0);
    }

    // The stranger takes the address of the other machine, whose link is down meanwhile.
    network.set_cable(2, false);
    ip(&stranger.namespace, &format!("address add {}/24 dev eth0", other.address.ip()));
    ip(&one.namespace, "neighbour flush dev eth0");
    stream.go_on(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| expect_unreachable(&mut Connector::of(one, "c/open")));
        while !asking.is_finished() {
            assert_eq!(stream.go_on(Duration::from_millis(500)), None, "nothing passes");
        }
    });
    expect_nobody(&mut decoy);
    ip(&stranger.namespace, &format!("address delete {}/24 dev eth0", other.address.ip()));
    ip(&one.namespace, "neighbour flush dev eth0");
    network.set_cable(2, true);
    let back = stream.time();
    let again = stream.go_on(Duration::from_secs(5)).expect("it goes on") - back;
    let after = meanwhile(&mut stream, || Connector::of(one, "c/open").until_it_succeeds());
    let (count, reason) = stream.finish();
    let came = acceptors.map(Acceptor::close);
    assert_eq!(came[0], 0, "only the stranger tried to connect to it");
    println!(
        "the transfer went on {again:?} after the stranger had left its address, and connects succeeded {after:?} later; \
         {count} messages, each right; then {reason:?}"
    );
    expect_nobody(&mut decoy);
}
