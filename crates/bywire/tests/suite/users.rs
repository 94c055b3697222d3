//! Several users on one machine: the users that are admitted, and what a third user can do. Needs root, to act as
//! other users.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use bywire::handshake::Packet;
use bywire::{Admit, Confirm, ConnectError, Event, OpenError, Port, PortOptions, Priority, Refusal};
use bywire_ring::memory::Memory;
use bywire_sys::memory::Mapping;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::here::is_root;
use bywire_testing::rogue;
use rustix::fs::OFlags;

use crate::ports::{MINUTE, PortDirectory, address, name, named, next, serve, until_ended};

/// Users and groups without an entry in the user database.
const ALICE: &str = "54321";
const BOB: &str = "54322";
const GROUP: u32 = 54_400;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("user", user)];

/// Becomes another user, then follows its orders: `open RULE`, `connect NAME`, `reach PID`.
fn user(context: &mut Context) {
    become_user(context.argument(0), context.argument(1));
    context.tell("ready");
    let mut port = None;
    while let Some(line) = context.hear() {
        let (command, argument) = line.split_once(' ').expect("two words");
        match command {
            "open" => {
                let admit = match argument {
                    "group" => Admit::Group(GROUP),
                    "everyone" => Admit::Everyone,
                    _ => Admit::SameUser,
                };
                let name = Some(name("theirs"));
                let opened = Port::open(PortOptions { name, admit, ..context.options() });
                context.tell(format!("{:?}", opened.as_ref().err()));
                port = opened.ok();
                answer_one(port.as_mut());
            }
            "connect" => context.tell(attempt(context, argument)),
            "hoard" => hoard(context, argument),
            "keep" => keep(context, argument),
            "reach" => context.tell(reach(argument)),
            "listen" => answer_one(port.as_mut()),
            other => panic!("{other}"),
        }
    }
}

fn become_user(user: u32, group: u32) {
    // SAFETY: these calls take numbers. The raw ones change only this thread, and no other thread acts here.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(group, group, group), 0);
        assert_eq!(libc::setresuid(user, user, user), 0);
    }
    // As in a program that this user has started.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).expect("prctl");
}

/// Answers one peer until it leaves or this actor is killed.
fn answer_one(port: Option<&mut Port>) {
    let Some(port) = port else { return };
    while let Ok(Some(event)) = port.wait(Some(MINUTE)) {
        match event {
            Event::Message(message) => {
                let info = port.peer_info(message.peer).expect("connected");
                let text = format!("{} {}", info.uid().expect("local"), info.pid().expect("seen"));
                port.send(message.peer, Priority::Low, text.as_bytes()).expect("room");
            }
            Event::Disconnected { .. } => return,
            _ => {}
        }
    }
}

/// Connects and asks the other end for this end's identity. Returns the answer, or the error.
fn attempt(context: &Context, name: &str) -> String {
    let mut port = match Port::open(context.options()) {
        Ok(port) => port,
        Err(error) => return format!("{error:?}"),
    };
    let peer = match port.connect(&address(name), MINUTE) {
        Ok(peer) => peer,
        Err(error) => return format!("{error:?}"),
    };
    port.send(peer, Priority::Low, b"who am I?").expect("room");
    loop {
        match port.wait(Some(MINUTE)).expect("wait") {
            Some(Event::Message(message)) => {
                return String::from_utf8(message.payload.to_vec()).expect("text");
            }
            Some(_) => {}
            None => return "no answer".to_owned(),
        }
    }
}

/// Several ports begin long messages to one port, and stop in the middle until told to go on.
fn hoard(context: &mut Context, name: &str) {
    let address = address(name);
    let mut ports: Vec<Port> = (0..3)
        .map(|_| {
            let mut port = Port::open(context.options()).expect("open");
            let peer = port.connect(&address, MINUTE).expect("connect");
            port.send_buffer(peer, Priority::Low, vec![7; 1 << 20], Confirm::Copied).expect("token");
            port
        })
        .collect();
    context.tell("begun");
    context.hear();
    let mut sent = 0;
    while sent < ports.len() {
        for port in &mut ports {
            if let Some(event) = port.poll() {
                assert!(matches!(event, Event::Sent { result: Ok(()), .. }), "{event:?}");
                sent += 1;
            }
        }
    }
    context.tell("sent");
    context.hear();
}

/// Connects and leaves repeatedly, but keeps the memory that it was given, until it is turned away, or 200 times.
/// Then it lets go of the memory, and is let in.
fn keep(context: &mut Context, argument: &str) {
    let (name, how) = argument.split_once(' ').expect("two words");
    let rogue =
        rogue::Rogue::new(&context.directory, &format!("keeper-{}", rustix::process::geteuid().as_raw()));
    let enter = || match rogue::answer(&rogue.approach(name, &rogue.hello(), &rogue.offer())) {
        Some((Packet::Welcome(theirs), mut files)) => Ok((theirs.geometry.segment_bytes(), files.remove(0))),
        other => Err(format!("{:?}", other.map(|(packet, _)| packet))),
    };
    let (mut kept, mut bytes) = (Vec::<Box<dyn std::any::Any>>::new(), 0);
    let refusal = loop {
        let (length, file) = match enter() {
            Ok(entered) if kept.len() < 200 => entered,
            Ok(_) => break "never turned away".to_owned(),
            Err(refusal) => break refusal,
        };
        bytes += length;
        kept.push(match how {
            "mapped" => Box::new(Mapping::accept(&file, length).expect("an honest offer")),
            "open" => Box::new(file),
            _ => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                Box::new(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("procfs"))
            }
        });
    };
    context.tell(format!("{bytes} {refusal}"));
    context.hear();
    drop(kept);
    context.tell(if enter().is_ok() { "let in" } else { "turned away" });
}

/// Tries to open all our memory that a process has, for writing. Returns how many pieces it saw and opened.
fn reach(pid: &str) -> String {
    let (mut seen, mut opened) = (0, 0);
    for directory in ["fd", "map_files"] {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/{directory}")) else { continue };
        for entry in entries.flatten() {
            let is_ours = std::fs::read_link(entry.path())
                .is_ok_and(|target| target.to_string_lossy().contains("/memfd:bywire-"));
            if !is_ours {
                continue;
            }
            seen += 1;
            let file = OpenOptions::new().read(true).write(true).open(entry.path());
            opened += usize::from(file.is_ok_and(|file| is_writable(&file)));
        }
    }
    format!("seen {seen} writable {opened}")
}

/// Can the file be written or mapped for writing?
fn is_writable(file: &std::fs::File) -> bool {
    use rustix::mm::{MapFlags, ProtFlags};
    use std::os::unix::fs::FileExt;
    if file.write_at(&[0], 0).is_ok() || file.set_len(0).is_ok() {
        return true;
    }
    // SAFETY: a fresh mapping, which is never touched and removed at once.
    unsafe {
        let mapped = rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        );
        mapped.is_ok_and(|base| rustix::mm::munmap(base, 4096).is_ok())
    }
}

fn start(place: &PortDirectory, user: &str, group: u32) -> Actor {
    let mut actor = Actor::start("user", place.path(), &[user, &group.to_string()]);
    actor.expect("ready");
    actor
}

fn ask(actor: &mut Actor, line: &str) -> String {
    actor.tell(line);
    actor.hear().expect("an answer")
}

#[test]
fn ports_admit_the_users_that_their_owner_names() {
    if !is_root() {
        return;
    }
    let denied = format!("{:?}", ConnectError::NotAdmitted);
    for (rule, bob_group, is_admitted) in [
        ("own", 60_000, false),
        ("own", GROUP, false),
        ("group", 60_000, false),
        ("group", GROUP, true),
        ("everyone", 60_000, true),
    ] {
        let place = PortDirectory::shared();
        // Only a member of a group may open a port for it.
        let mut alice = start(&place, ALICE, GROUP);
        let mut bob = start(&place, BOB, bob_group);
        assert_eq!(ask(&mut alice, &format!("open {rule}")), "None");
        let answer = ask(&mut bob, "connect theirs");
        let expected = if is_admitted { format!("{BOB} {}", bob.pid().as_raw_pid()) } else { denied.clone() };
        assert_eq!(answer, expected, "{rule}, group {bob_group}: the kernel's word on who asks");
        // Bob cannot take the name either, whether its port is alive or dead.
        let taken = ask(&mut bob, "open own");
        assert!(taken.contains("InUse"), "{taken}");
        alice.kill();
        let taken = ask(&mut bob, "open own");
        let name = name("theirs");
        let expected = OpenError::OtherUser(name.clone(), place.path().join("theirs.port"));
        assert!(
            [format!("Some({expected:?})"), format!("Some({:?})", OpenError::InUse(name))].contains(&taken),
            "{taken}"
        );
    }
}

#[test]
fn a_third_user_cannot_reach_memory_and_even_the_same_user_cannot_write_it() {
    if !is_root() {
        return;
    }
    let place = PortDirectory::shared();
    let mut alice = start(&place, ALICE, GROUP);
    let mut again = start(&place, ALICE, GROUP);
    let mut bob = start(&place, BOB, 60_000);
    assert_eq!(ask(&mut alice, "open own"), "None");
    assert_eq!(ask(&mut again, "connect theirs"), format!("{ALICE} {}", again.pid().as_raw_pid()));
    let pid = alice.pid().as_raw_pid();
    assert_eq!(ask(&mut bob, &format!("reach {pid}")), "seen 0 writable 0");
    let same = ask(&mut again, &format!("reach {pid}"));
    let (seen, writable) =
        same.strip_prefix("seen ").and_then(|rest| rest.split_once(" writable ")).expect("two numbers");
    assert_eq!(writable, "0", "{same}");
    assert_ne!(seen, "0", "the same user saw nothing: nothing was proved");
}

/// Memory that a peer goes on mapping cannot be taken back. It is counted until the last process has let go of it, in
/// whatever way it was kept.
#[test]
fn another_user_that_keeps_memory_of_ended_connections_gets_no_more() {
    if !is_root() {
        return;
    }
    for how in ["mapped", "open", "a mere path"] {
        let place = PortDirectory::shared();
        let mut port = place.open(PortOptions { admit: Admit::Everyone, ..named("shared") });
        let (mut alice, mut bob) = (start(&place, ALICE, GROUP), start(&place, BOB, GROUP));
        alice.tell(&format!("keep shared {how}"));
        let line = hear(&mut port, &mut alice);
        let (bytes, refusal) = line.split_once(' ').expect("bytes and a refusal");
        let bytes: usize = bytes.parse().expect("a number");
        // Until the end of a connection is noticed, its memory counts as in use.
        assert!((15 << 20..=24 << 20).contains(&bytes), "{how}: {bytes} bytes are kept: {refusal}");
        assert_eq!(refusal, format!("{:?}", Some(Packet::Refuse(Refusal::MemoryKept))), "{how}");
        // Other users are not affected.
        bob.tell(&format!("keep shared {how}"));
        assert!(hear(&mut port, &mut bob).ends_with("MemoryKept))"), "{how}: with an account of his own");
        alice.tell("let go");
        assert_eq!(hear(&mut port, &mut alice), "let in", "{how}");
    }
}

/// Runs a port until an actor has sent a line.
fn hear(port: &mut Port, actor: &mut Actor) -> String {
    serve(port, || actor.hear().expect("a word")).0
}

/// How many receive buffers of low priority were missing. Posts them again.
fn missing(port: &mut Port) -> usize {
    let mut missing = 0;
    while port.post_receive(Priority::Low, vec![0; 1 << 20]).is_ok() {
        missing += 1;
    }
    missing
}

#[test]
fn another_user_cannot_hold_every_posted_buffer() {
    if !is_root() {
        return;
    }
    for (count, user, held) in [(4, ALICE, 1), (16, ALICE, 2), (4, "0", 3)] {
        let place = PortDirectory::shared();
        let options = PortOptions { admit: Admit::Everyone, receive_tokens: count, ..named("shared") };
        let mut port = place.open(options);
        assert_eq!(missing(&mut port), count as usize);
        let mut actor = start(&place, user, GROUP);
        actor.tell("hoard shared");
        serve(&mut port, || actor.expect("begun"));
        let mut later = Vec::new();
        // All the data is there by now, so polls alone would take it.
        (0..100_000).for_each(|_| later.extend(port.poll()));
        assert!(later.iter().all(|event| matches!(event, Event::Connected(_))), "{later:?}");
        assert_eq!(missing(&mut port), held, "user {user}, {count} buffers");
        // All messages arrive, one after the other.
        actor.tell("go on");
        let (_, mut events) = serve(&mut port, || actor.expect("sent"));
        let of_messages =
            |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Message(_))).count();
        while of_messages(&events) < 3 {
            events.push(next(&mut port));
        }
        assert!(!events.iter().any(|event| matches!(event, Event::BufferNeeded { .. })), "{events:?}");
        // The buffer held by a killed sender comes back.
        let mut killed = start(&place, user, GROUP);
        killed.tell("hoard shared");
        serve(&mut port, || killed.expect("begun"));
        missing(&mut port);
        killed.kill();
        (0..3).for_each(|_| _ = until_ended(&mut port, |_, _| {}));
        drop(port.post_receive(Priority::Low, vec![0]).expect_err("they are back"));
    }
}

/// A peer's user does not change. Our own user is read once for each connection, and not at each ring.
#[test]
fn a_port_rings_after_its_process_changes_its_user() {
    if !is_root() {
        return;
    }
    if !bywire_sys::wake::Doorbell::is_safe() {
        eprintln!("not run: this kernel has no RWF_NOSIGNAL (Linux 6.18), so that no doorbell is rung");
        return;
    }
    let place = PortDirectory::shared();
    let mut port = place.named("ringer");
    let rogue = rogue::Rogue::new(place.path(), "sleeper");
    let (inside, _) = serve(&mut port, || rogue.enter("ringer").expect("let in"));
    let peer = port.peers().next().expect("one");
    let mut bytes = [0; 256];
    for generation in 1..3u64 {
        rogue.page.store(0, generation << 2 | 3, std::sync::atomic::Ordering::Relaxed);
        if generation == 2 {
            // SAFETY: the call takes numbers, and changes only this thread.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 54_321, -1) }, 0);
        }
        let sent = port.send(peer, Priority::Low, b"wake up");
        // SAFETY: the call takes numbers, and changes only this thread.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 0, -1) }, 0);
        sent.expect("room");
        let woken = inside.socket.receive(&mut bytes).expect("receive");
        assert!(matches!(woken, bywire_sys::socket::Received::Nothing), "woken by the socket");
        assert_eq!(rustix::io::read(&rogue.doorbell, &mut bytes), Ok(1), "the doorbell is rung once");
    }
}
