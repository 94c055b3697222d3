//! Ports of containers: processes in other pid, network, mount and host-name namespaces that share the runtime
//! directory.

use std::process::Command;

use bywire::{DisconnectReason, Event, Port, PortOptions, Priority};
use bywire_testing::actor::{Actor, Context, Role};
use rustix::process::Signal;

use crate::ports::{MINUTE, PortDirectory, address, name, next};

/// A container as far as ports are concerned: it shares only files.
const CONTAINER: [&str; 9] =
    ["unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--net", "--uts", "--ipc", "--mount"];

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("echo", echo)];

/// Sends everything back until the other end has gone.
fn echo(context: &mut Context) {
    let mut port = Port::open(PortOptions { name: Some(name("echo")), ..context.options() }).expect("open");
    context.tell("ready");
    loop {
        match next(&mut port) {
            Event::Message(message) => {
                let pid = port.peer_info(message.peer).expect("connected").pid();
                context.tell(format!("pid {}", pid.unwrap_or(0)));
                port.send(message.peer, message.priority, &message.payload).expect("room for one");
            }
            Event::Disconnected { .. } => return,
            _ => {}
        }
    }
}

/// The command of a container, or `None` if none can be made.
fn container() -> Option<&'static [&'static str]> {
    let probe = Command::new(CONTAINER[0]).args(&CONTAINER[1..]).arg("true").output();
    match probe {
        Ok(output) if output.status.success() => Some(&CONTAINER),
        Ok(output) => {
            eprintln!("not run: namespaces need root ({})", String::from_utf8_lossy(&output.stderr).trim());
            None
        }
        Err(error) => {
            eprintln!("not run: unshare of util-linux is missing ({error})");
            None
        }
    }
}

#[test]
fn containers_that_share_the_directory_exchange_messages_and_detect_deaths() {
    let Some(container) = container() else { return };
    let place = PortDirectory::new();
    let mut port = place.open(place.options());
    // Each container is killed. The second one takes the name of the first.
    for _ in 0..2 {
        let mut echo = Actor::start_under(container, "echo", place.path(), &[]);
        echo.expect("ready");
        let peer = port.connect(&address("echo"), MINUTE).expect("connect");
        // The process inside is visible from outside, but ours is not from inside.
        assert!(port.peer_info(peer).expect("connected").pid().is_some_and(|pid| pid > 1));
        for length in [8, 4096] {
            port.send(peer, Priority::High, &vec![7; length]).expect("room");
            match next(&mut port) {
                Event::Message(message) => assert_eq!(&message.payload[..], vec![7; length]),
                other => panic!("{other:?}"),
            }
            assert_eq!(echo.expect("pid"), "0");
        }
        echo.signal(Signal::KILL);
        match next(&mut port) {
            Event::Disconnected { peer: gone, reason } => {
                assert_eq!((gone, reason), (peer, DisconnectReason::Died));
            }
            other => panic!("{other:?}"),
        }
    }
}
