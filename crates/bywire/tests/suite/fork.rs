//! A forked child's ports are inert, and so is all else that it inherits. They hide nothing from the parent's peers,
//! and delay no notice of what the parent does.

use bywire::{
    Confirm, ConnectError, DisconnectReason, Event, LendError, OpenError, Peer, Port, PortOptions, Priority,
    SendError, WaitError,
};
use bywire_testing::actor::{Actor, Context, Role};
use rustix::process::Signal;

use crate::ports::{MINUTE, PortDirectory, address, name, next, until};

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("parent", parent)];

/// Opens a port, forks, and follows its orders. The child proves what it can and cannot do.
fn parent(context: &mut Context) {
    let mut port = Port::open(PortOptions { name: Some(name("parent")), ..context.options() }).expect("open");
    let peer = port.connect(&address("target"), MINUTE).expect("connect");
    let heap = port.heap(peer, 4096, 4).expect("heap");
    let lent = loop {
        if let Event::Lent(lent) = next(&mut port) {
            break lent;
        }
    };
    assert_eq!(lent.to_vec(), [5; 64]);
    // SAFETY: the other thread of this process waits for this one, and holds no lock that the child needs.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                child(context, port, peer, heap, lent)
            }));
            // SAFETY: ends the child without the parent's clean-up, as a forked child should.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        child => context.tell(format!("forked {child}")),
    }
    loop {
        match context.hear().as_deref() {
            Some("speak") => port.send(peer, Priority::Low, b"from the parent").expect("room"),
            Some("close") => break,
            Some("gone") => match next(&mut port) {
                Event::Disconnected { reason, .. } => context.tell(format!("{reason:?}")),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
    drop(port);
    context.tell("closed");
    context.hear();
}

fn child(context: &mut Context, mut port: Port, peer: Peer, heap: bywire::Heap, lent: bywire::Lent) {
    assert!(port.poll().is_none());
    assert!(matches!(port.wait(None), Err(WaitError::Forked)));
    assert_eq!(port.send(peer, Priority::Low, b"x"), Err(SendError::Forked));
    assert_eq!(port.send_datagram(peer, Priority::Low, b"x"), Err(SendError::Forked));
    assert_eq!(
        port.send_buffer(peer, Priority::Low, vec![1], Confirm::Copied).expect_err("inert").error,
        SendError::Forked
    );
    assert_eq!(port.connect(&address("target"), MINUTE), Err(ConnectError::Forked));
    assert_eq!(port.connect_start(&address("target")), Err(ConnectError::Forked));
    assert!(matches!(port.heap(peer, 64, 1), Err(LendError::Send(SendError::Forked))));
    assert!(!port.arm());
    assert_eq!(lent.read(0, &mut [0; 8]), 0, "the child has no such memory");
    if let Some(mut block) = heap.block() {
        assert!(block.is_empty());
        assert!(block.first_mut().is_none());
    }
    let taken = Port::open(PortOptions { name: Some(name("parent")), ..context.options() });
    assert!(matches!(taken, Err(OpenError::InUse(_))), "the parent has it");
    // The child's own port. Its memory may lie where the parent's did.
    let mut own = Port::open(PortOptions { name: Some(name("child")), ..context.options() }).expect("open");
    let to_target = own.connect(&address("target"), MINUTE).expect("connect");
    let own_heap = own.heap(to_target, 4096, 4).expect("heap");
    drop((port, heap, lent));
    let mut block = own_heap.block().expect("free");
    block[..9].copy_from_slice(b"from here");
    own.send_lent(Priority::Low, block, 9).expect("room");
    own.send(to_target, Priority::Low, b"from the child").expect("room");
    // Runs until it is told to end, or the target has gone.
    loop {
        if let Some(Event::Message(_) | Event::Disconnected { .. }) = own.wait(None).expect("wait") {
            return;
        }
    }
}

/// The observed port, with a forked family connected to it.
struct Family {
    place: PortDirectory,
    target: Port,
    parent: Actor,
    to_parent: Peer,
    to_child: Peer,
}

fn family() -> Family {
    let place = PortDirectory::new();
    let mut target = place.named("target");
    let mut parent = Actor::start("parent", place.path(), &[]);
    let Event::Connected(to_parent) = next(&mut target) else { panic!("no connection") };
    let heap = target.heap(to_parent, 64, 1).expect("heap");
    let mut block = heap.block().expect("free");
    block.fill(5);
    target.send_lent(Priority::Low, block, 64).expect("room");
    parent.expect("forked");
    let Event::Connected(to_child) = next(&mut target) else { panic!("no connection") };
    match next(&mut target) {
        Event::Lent(lent) => assert_eq!(lent.to_vec(), b"from here"),
        other => panic!("{other:?}"),
    }
    assert_eq!(text(next(&mut target), to_child), "from the child");
    assert_eq!(target.peer_info(to_child).expect("connected").port(), &name("child"));
    assert_ne!(
        target.peer_info(to_child).expect("connected").pid(),
        target.peer_info(to_parent).expect("connected").pid()
    );
    Family { place, target, parent, to_parent, to_child }
}

impl Family {
    /// The child's own port goes on until it is told to end. The child leaves by `_exit` after it has dropped that port.
    fn ends_with_the_child(&mut self) {
        self.target.send(self.to_child, Priority::Low, b"end").expect("room");
        assert_eq!(ended(next(&mut self.target), self.to_child), DisconnectReason::Closed);
    }
}

fn text(event: Event, from: Peer) -> String {
    match event {
        Event::Message(message) => {
            assert_eq!(message.peer, from);
            String::from_utf8(message.payload.to_vec()).expect("text")
        }
        other => panic!("{other:?} instead of a message"),
    }
}

fn ended(event: Event, from: Peer) -> DisconnectReason {
    match event {
        Event::Disconnected { peer, reason } if peer == from => reason,
        other => panic!("{other:?} instead of the end"),
    }
}

#[test]
fn a_childs_port_is_inert_and_its_end_leaves_the_parents_unaffected() {
    let mut family = family();
    family.ends_with_the_child();
    assert!(family.place.path().join("parent.port").exists());
    assert!(!family.place.path().join("child.port").exists());
    family.parent.tell("speak");
    assert_eq!(text(next(&mut family.target), family.to_parent), "from the parent");
    let mut other = family.place.open(family.place.options());
    let peer = other.connect_start(&address("parent")).expect("it still listens");
    other.disconnect(peer);
}

#[test]
fn a_childs_port_has_not_progressed_when_the_parents_last_poll_has() {
    let place = PortDirectory::new();
    let (mut port, peer, _other, _) = place.pair(&place.options());
    port.send_buffer(peer, Priority::Low, vec![1; 1 << 20], Confirm::Copied).expect("token");
    until(|| {
        port.poll();
        port.has_progressed()
    });
    // SAFETY: the child takes no lock and allocates nothing before its end.
    let child = match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        // SAFETY: ends the child without the parent's clean-up, as a forked child should.
        0 => unsafe { libc::_exit(i32::from(port.has_progressed())) },
        child => rustix::process::Pid::from_raw(child),
    };
    let (_, status) = rustix::process::waitpid(child, rustix::process::WaitOptions::empty())
        .expect("wait")
        .expect("an end");
    assert_eq!(status.exit_status(), Some(0));
    assert!(port.has_progressed(), "the parent's own says what it said");
}

#[test]
fn the_parents_death_is_detected_while_a_child_holds_its_sockets() {
    let mut family = family();
    family.parent.signal(Signal::KILL);
    assert_eq!(ended(next(&mut family.target), family.to_parent), DisconnectReason::Died);
    family.parent.kill();
    // The child still holds the listening socket, but the name is free.
    drop(family.place.named("parent"));
    family.ends_with_the_child();
}

#[test]
fn the_parents_close_is_detected_while_a_child_holds_its_sockets() {
    let mut family = family();
    family.parent.tell("close");
    assert_eq!(ended(next(&mut family.target), family.to_parent), DisconnectReason::Closed);
    family.parent.expect("closed");
    family.ends_with_the_child();
}

#[test]
fn a_disconnected_peer_is_told_while_a_child_holds_the_socket() {
    let mut family = family();
    family.target.disconnect(family.to_parent);
    assert_eq!(ended(next(&mut family.target), family.to_parent), DisconnectReason::Here);
    family.parent.tell("gone");
    family.parent.expect("Closed");
    family.ends_with_the_child();
}
