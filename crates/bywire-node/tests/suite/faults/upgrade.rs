//! A transfer never notices that services are replaced one after the other, also by one of another version.

use std::time::Duration;

use bywire::{ConnectError, NoFabric};
use bywire_sys::listener::Listener;
use bywire_sys::socket::{Received, Socket};
use bywire_testing::actor::{Actor, Context};
use bywire_testing::test_network::{Machine, TestNetwork};
use bywire_wire::service::{self, Notice, Unregistered};

use super::cable::Stream;
use super::ends::start;
use super::is_long;
use super::node::start_node;
use super::stopped_services::{Connector, Transfer, meanwhile};

/// A service of another version, which refuses all ports for that reason.
pub fn refuse(context: &mut Context) {
    let listener = Listener::bind(&context.directory.join(service::SOCKET_NAME)).expect("bound");
    context.tell("serves");
    let refusal = service::to_bytes(&Notice::Refused(Unregistered::Version)).expect("short");
    let (mut callers, mut packet) = (Vec::new(), [0; service::PACKET_BYTES_MAX]);
    loop {
        callers.extend(listener.accept().ok().flatten());
        // Each caller is refused after its first packet. One that has gone needs no answer.
        callers.retain(|caller: &Socket| match caller.receive(&mut packet) {
            Ok(Received::Packet(..)) => caller.send(&refusal, &[]).is_err(),
            Ok(Received::Nothing) => true,
            Ok(Received::Closed) | Err(_) => false,
        });
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends a service and starts the next one, as an upgrade does. Returns the time until connects succeed.
fn replace(node: &mut Actor, machine: &Machine, stream: &mut Stream, connector: &mut Connector) -> Duration {
    node.tell("end");
    meanwhile(stream, || while node.hear().is_some() {});
    // From this thread, because a process ends with the thread that has started it.
    *node = start_node(machine);
    meanwhile(stream, || connector.until_it_succeeds())
}

#[test]
fn a_transfer_is_unaffected_by_upgraded_services() {
    let Some(network) = TestNetwork::without_services(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let Transfer { mut ours, mut theirs, mut stream, acceptor, mut connector } = Transfer::start(here, there);

    // One machine after the other, as in a rolling upgrade, and once more.
    for _ in 0..if is_long() { 3 } else { 2 } {
        let after = replace(&mut theirs, there, &mut stream, &mut connector);
        println!("the other service was replaced: connects succeed {after:?} after the next one began");
        let after = replace(&mut ours, here, &mut stream, &mut connector);
        println!("this service was replaced: connects succeed {after:?} after the next one began");
    }

    // Programs that were not upgraded do not speak the protocol of the next service.
    ours.tell("end");
    ours.finish();
    let mut other = start(here, "other version", &[]);
    other.expect("serves");
    let error = meanwhile(&mut stream, || connector.once()).expect_err("it is refused");
    assert_eq!(error, ConnectError::NoFabric(NoFabric::Version));
    let refused = Duration::from_secs(if is_long() { 3 } else { 1 });
    meanwhile(&mut stream, || std::thread::sleep(refused));
    other.kill();
    let _ours = start_node(here);
    let after = meanwhile(&mut stream, || connector.until_it_succeeds());
    println!("a service of another version: `{error}`; {after:?} after the next one began, connects succeed");
    let (count, reason) = stream.finish();
    println!("{count} messages, each right; then {reason:?}");
    acceptor.close();
}
