//! Accidents: peers that end at a bad moment, disputed names, and directories and limits that get in the way.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bywire::{
    Confirm, ConnectError, DisconnectReason, Errno, Event, LendError, OpenError, Port, PortOptions, Priority,
    Refusal, Rights, SendError, TransferError,
};
use bywire_sys::listener::Listener;
use bywire_testing::actor::{Actor, Context, Role};
use rustix::process::{Resource, Rlimit};

use crate::ports::{MINUTE, PortDirectory, address, event, meet, name, next, open_descriptors, serve, until};

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("starved", starved), ("scarce", scarce)];

/// A put under way is known in two places. Only one of them may complete it.
#[test]
fn a_transfer_interrupted_by_the_peers_end_completes_once_and_returns_its_token() {
    let place = PortDirectory::new();
    let options = PortOptions { send_tokens: 4, ..place.options() };
    let (mut a, to_b, mut b, _) = place.pair(&options);
    let key = b.register(vec![0; 1 << 20], Rights { read: true, write: true }).expect("region");
    // More than a ring holds; the peer takes nothing.
    let mut ids = vec![
        a.put(to_b, Priority::Low, (key, 0), vec![1; 1 << 20], Some(b"note")).expect("token"),
        a.put(to_b, Priority::Low, (key, 0), vec![1; 10], None).expect("token"),
        a.get(to_b, Priority::Low, (key, 0), vec![0; 100]).expect("token"),
        a.send_buffer(to_b, Priority::Low, vec![2; 10], Confirm::Delivered).expect("token"),
    ];
    drop(b);
    loop {
        match event(&mut [&mut a]) {
            Event::Put { id, result, buffer } => {
                assert!(!buffer.as_ref().is_empty(), "the memory comes back with its completion");
                assert_eq!(result, Err(TransferError::Disconnected(DisconnectReason::Closed)));
                ids.remove(ids.iter().position(|other| *other == id).expect("completed once"));
            }
            Event::Got { id, result, .. } | Event::Sent { id, result, .. } => {
                assert_eq!(result, Err(TransferError::Disconnected(DisconnectReason::Closed)));
                ids.remove(ids.iter().position(|other| *other == id).expect("completed once"));
            }
            Event::Disconnected { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(ids.is_empty(), "{ids:?} never completed");
    let mut c = place.open(place.options());
    let (to_c, _) = meet(&mut a, &mut c);
    for _ in 0..4 {
        a.send_buffer(to_c, Priority::Low, vec![0; 1 << 20], Confirm::Copied).expect("all tokens are back");
    }
}

#[test]
fn a_refused_transfer_takes_no_token() {
    let place = PortDirectory::new();
    let options = PortOptions { send_tokens: 1, message_bytes_max: 100, ..place.options() };
    let (mut a, to_b, _b, _) = place.pair(&options);
    let refused = a.send_buffer(to_b, Priority::Low, vec![0; 101], Confirm::Delivered).expect_err("too long");
    assert_eq!(refused.error, SendError::TooLong { max: 100 });
    a.send_buffer(to_b, Priority::Low, vec![0; 100], Confirm::Delivered).expect("the only token is there");
    let refused = a.send_buffer(to_b, Priority::Low, vec![0; 1], Confirm::Delivered).expect_err("it is out");
    assert_eq!(refused.error, SendError::NoToken);
}

/// Messages that the peer took count as delivered, whichever call first notices its end.
#[test]
fn messages_taken_before_a_close_count_as_delivered() {
    let place = PortDirectory::new();
    let pace = Duration::from_millis(2);
    for polls in 0..64 {
        let (mut a, to_b, mut b, _) = place.pair(&place.options());
        let key = b.register(vec![0; 10], Rights { read: false, write: true }).expect("region");
        a.send_buffer(to_b, Priority::Low, vec![7; 100], Confirm::Delivered).expect("token");
        a.put(to_b, Priority::High, (key, 0), vec![8; 10], None).expect("token");
        for _ in 0..polls {
            assert!(a.poll().is_none());
        }
        assert!(matches!(event(&mut [&mut b]), Event::Message(_)));
        until(|| {
            b.poll();
            b.region(key) == Some(&[8; 10])
        });
        // These polls send the answer on its way.
        for _ in 0..4 {
            b.poll();
        }
        drop(b);
        // Long enough that the next look at the sockets is due.
        let start = Instant::now();
        while start.elapsed() < pace {
            std::hint::spin_loop();
        }
        let mut good = 0;
        loop {
            match event(&mut [&mut a]) {
                Event::Sent { result, .. } | Event::Put { result, .. } => {
                    assert_eq!(result, Ok(()), "after {polls} polls");
                    good += 1;
                }
                Event::Disconnected { reason: DisconnectReason::Closed, .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(good, 2);
    }
}

/// A buffer posted for one message may be taken by another. Then the first message is reported again.
#[test]
fn a_message_whose_buffer_was_taken_requests_another() {
    let place = PortDirectory::new();
    let mut target = place.open(place.options());
    let (mut slow, mut quick) = (place.open(place.options()), place.open(place.options()));
    let (to_target, from_slow) = meet(&mut slow, &mut target);
    let (quick_to_target, from_quick) = meet(&mut quick, &mut target);
    slow.send_buffer(to_target, Priority::Low, vec![1; 60_000], Confirm::Copied).expect("token");
    let needed = until(|| {
        // All of it fits into the lane, so it may be copied before the target looks.
        assert!(matches!(slow.poll(), None | Some(Event::Sent { result: Ok(()), .. })));
        target.poll()
    });
    match needed {
        Event::BufferNeeded { peer, length_bytes: 60_000, .. } => assert_eq!(peer, from_slow),
        other => panic!("{other:?}"),
    }
    // The high lane goes first, so this message takes the buffer.
    quick.send_buffer(quick_to_target, Priority::High, vec![2; 5000], Confirm::Copied).expect("token");
    target.post_receive(Priority::High, vec![0; 5000]).expect("token");
    quick.send_buffer(quick_to_target, Priority::Low, vec![2; 5000], Confirm::Copied).expect("token");
    let (mut received, mut asked) = (Vec::new(), 0);
    until(|| {
        for port in [&mut slow, &mut quick] {
            assert!(matches!(port.poll(), None | Some(Event::Sent { result: Ok(()), .. })));
        }
        match target.poll() {
            Some(Event::Message(message)) => {
                received.push((message.peer, message.payload.len()));
                if message.peer == from_quick && asked == 0 {
                    // Exactly the requested length. The short message may come first.
                    target.post_receive(Priority::Low, vec![0; 60_000]).expect("token");
                }
            }
            Some(Event::BufferNeeded { length_bytes, .. }) => {
                asked += 1;
                assert!(asked < 100, "said again only after a post that did not help");
                target.post_receive(Priority::Low, vec![0; length_bytes as usize]).expect("token");
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        received.len() == 3
    });
    assert!(received.contains(&(from_slow, 60_000)));
}

#[test]
fn a_port_is_opened_once() {
    let place = PortDirectory::new();
    let options = PortOptions { name: Some(name("twice")), ..place.options() };
    let first = place.open(options.clone());
    assert_eq!(Port::open(options.clone()).err(), Some(OpenError::InUse(name("twice"))));
    assert_eq!(place.entries().len(), 1, "no residue");
    drop(first);
    drop(place.open(options));
    assert_eq!(place.entries().len(), 0, "no residue");
}

/// Many openers of one name. Its last owner is dead, or gives it up at this moment.
#[test]
fn exactly_one_of_several_racing_openers_wins_the_name() {
    const OPENERS: usize = 4;
    let place = PortDirectory::new();
    let options = PortOptions { name: Some(name("race")), ..place.options() };
    let mut client = place.open(place.options());
    for round in 0..200 {
        let is_alive = round % 2 == 1;
        let mut owner = is_alive.then(|| place.open(options.clone()));
        if !is_alive {
            // A socket without a listener, as after SIGKILL.
            drop(Listener::bind(&place.path().join("race.port")).expect("a free path"));
        }
        let start = Barrier::new(OPENERS + 1);
        let mut won: Vec<Port> = std::thread::scope(|scope| {
            let race = |_| {
                scope.spawn(|| {
                    start.wait();
                    Port::open(options.clone())
                })
            };
            let threads: Vec<_> = (0..OPENERS).map(race).collect();
            start.wait();
            drop(owner.take());
            let outcomes = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            let judge = |outcome: Result<Port, OpenError>| match outcome {
                Ok(port) => Some(port),
                Err(error) => {
                    assert_eq!(error, OpenError::InUse(name("race")));
                    None
                }
            };
            outcomes.filter_map(judge).collect()
        });
        // Against a living owner all openers may lose.
        assert!(won.len() == 1 || is_alive && won.is_empty(), "round {round}: {} won", won.len());
        if let Some(winner) = won.first_mut() {
            let (peer, _) = meet(&mut client, winner);
            client.disconnect(peer);
            while client.poll().is_some() {}
        }
        drop(won);
        assert!(!place.path().join("race.port").exists(), "round {round}: a name without an owner");
    }
}

#[test]
fn an_unusable_runtime_directory_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("file");
    std::fs::write(&file, "").expect("write");
    let open = place.path().join("open");
    std::fs::create_dir(&open).expect("mkdir");
    // Every user may replace every other user's sockets here.
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let link = place.path().join("link");
    std::os::unix::fs::symlink(place.path(), &link).expect("symlink");
    for (path, cause) in [
        (place.path().join("missing/deep"), Errno::NOENT),
        (file, Errno::NOTDIR),
        (open, Errno::PERM),
        (link, Errno::NOTDIR),
    ] {
        let options = PortOptions { runtime_directory: Some(path.clone()), ..PortOptions::default() };
        let error = Port::open(options).expect_err("unusable");
        assert!(error.to_string().contains("BYWIRE_RUNTIME_DIR"), "{error}");
        assert_eq!(error, OpenError::RuntimeDirectory { path, cause });
    }
    let long = place.path().join("x".repeat(100));
    let options = PortOptions { runtime_directory: Some(long), ..PortOptions::default() };
    assert!(Port::open(options).is_err(), "longer than a socket's path can be");
}

/// The numbers of killed processes never come again, so each open removes a few dead entries.
#[test]
fn only_dead_entries_are_removed_a_few_at_a_time() {
    let place = PortDirectory::new();
    let at = |name: &str| place.path().join(name);
    let dead: Vec<String> = (0..40).map(|number| format!("{}.port", (1 << 30) + number)).collect();
    for name in &dead {
        drop(Listener::bind(&at(name)).expect("a free path"));
    }
    let old = ".0123456789abcdef.new";
    drop(Listener::bind(&at(old)).expect("a free path"));
    // The age counts from the last change, so only time makes it old.
    let start = Instant::now();
    let living = place.open(PortOptions::numbered(77));
    let _listening = Listener::bind(&at("1234567.port")).expect("a free path");
    drop(Listener::bind(&at("named.port")).expect("a free path"));
    std::fs::write(at("7.port"), "no socket").expect("write");
    std::fs::write(at(".1123456789abcdef.new"), "no socket").expect("write");
    let mut kept = vec!["77.port", "1234567.port", "named.port", "7.port", ".1123456789abcdef.new"];
    if rustix::process::geteuid().is_root() {
        drop(Listener::bind(&at("99.port")).expect("a free path"));
        std::os::unix::fs::chown(at("99.port"), Some(54_321), None).expect("chown");
        kept.push("99.port");
    } else {
        eprintln!("not run: only root can make a socket of another user's");
    }
    let left = || dead.iter().filter(|name| at(name).exists()).count();
    let mut before = left();
    let mut opens = 0;
    while before > 0 {
        drop(place.open(place.options()));
        assert!(before - left() <= 4, "a few at a time");
        before = left();
        opens += 1;
        assert!(opens < 1000, "{before} dead sockets stay forever");
    }
    // While it is young, its owner may be about to give it its name.
    let is_young = start.elapsed() < Duration::from_secs(9);
    assert!(at(old).exists() || !is_young);
    std::thread::sleep(Duration::from_secs(11).saturating_sub(start.elapsed()));
    let fresh = ".2123456789abcdef.new";
    drop(Listener::bind(&at(fresh)).expect("a free path"));
    until(|| {
        drop(place.open(place.options()));
        !at(old).exists()
    });
    kept.push(fresh);
    kept.retain(|name| !at(name).exists());
    assert!(kept.is_empty(), "{kept:?} are gone");
    drop(living);
}

#[test]
fn ports_open_while_others_remove_too_much() {
    /// An opener tries again this often. One removal fewer is made for each, as one that is noticed late counts for
    /// the next.
    const SWEPT_MAX: u32 = 8 - 1;
    let place = PortDirectory::new();
    let (opening, swept) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut of = (0, 0);
            loop {
                let now = opening.load(Ordering::Relaxed);
                if now == u32::MAX {
                    return;
                }
                if now != of.0 {
                    of = (now, 0);
                }
                let entries = std::fs::read_dir(place.path()).expect("the directory");
                let fresh = entries
                    .flatten()
                    .find(|entry| entry.path().extension().is_some_and(|text| text == "new"));
                if of.1 < SWEPT_MAX && fresh.is_some_and(|fresh| std::fs::remove_file(fresh.path()).is_ok()) {
                    of.1 += 1;
                    swept.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // Goes on until something was removed under an opener, as the sweeper may begin late.
        let deadline = Instant::now() + MINUTE;
        let goes_on =
            |number: &u32| *number <= 2000 || swept.load(Ordering::Relaxed) == 0 && Instant::now() < deadline;
        let opened: Vec<_> = (1..u32::MAX)
            .take_while(goes_on)
            .map(|number| {
                opening.store(number, Ordering::Relaxed);
                Port::open(place.options()).map(drop)
            })
            .collect();
        opening.store(u32::MAX, Ordering::Relaxed);
        assert!(opened.iter().all(Result::is_ok), "{:?}", opened.iter().find(|result| result.is_err()));
        assert!(swept.load(Ordering::Relaxed) > 0, "nothing was swept from under an opener");
    });
}

/// Answers everything. On demand it runs out of descriptors or of address space.
fn starved(context: &mut Context) {
    let mut port =
        Port::open(PortOptions { name: Some(name("starved")), ..context.options() }).expect("open");
    let peer = port.connect(&address("rich"), MINUTE).expect("connect");
    context.tell("ready");
    let used = open_descriptors() as u64;
    let status = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = status.split(' ').next().expect("a number").parse().expect("a number");
    let what: String = context.argument(0);
    let (resource, limit) = match what.as_str() {
        "descriptors" => (Resource::Nofile, used),
        "memory" => (Resource::As, pages * 4096 + (1 << 20)),
        "files" => (Resource::Fsize, 1024),
        other => panic!("no limit of {other}"),
    };
    rustix::process::setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
        .expect("lower");
    // Free numbers between the open ones count as descriptors, too.
    let _filler: Vec<_> = std::iter::from_fn(|| match what.as_str() {
        "descriptors" => std::fs::File::open("/dev/null").ok(),
        _ => None,
    })
    .collect();
    let name = Some(name("more"));
    let opened = Port::open(PortOptions { name, geometry: large(), ..context.options() });
    context.tell(format!("{:?}", opened.err()));
    context.tell(format!("{:?}", port.connect(&address("rich"), MINUTE).err()));
    context.tell(format!("{:?}", port.heap(peer, 1 << 20, 512).err()));
    loop {
        match port.wait(None).expect("wait") {
            Some(Event::Message(message)) => port.send(peer, Priority::Low, &message.payload).expect("room"),
            Some(Event::Disconnected { peer: gone, .. }) if gone == peer => return,
            _ => {}
        }
    }
}

/// Opens a port with no descriptor left, with one, with two, and so on until it succeeds. Reports each outcome.
fn scarce(context: &mut Context) {
    let limit = Some(open_descriptors() as u64 + 32);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("lower");
    let mut filler: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    loop {
        match Port::open(PortOptions { name: Some(name("scarce")), ..context.options() }) {
            Ok(_) => return context.tell(format!("{} left", filler.len())),
            Err(error) => context.tell(error),
        }
        if filler.pop().is_none() {
            return;
        }
    }
}

/// About 16 MiB.
fn large() -> bywire::Geometry {
    let lanes = [bywire::LaneGeometry { slots: 8192, bulk_bytes: 4 << 20 }; 3];
    bywire::Geometry { lanes, fragment_bytes: 4096 }
}

/// A port, and its peer that has run out of something.
struct Starved {
    place: PortDirectory,
    rich: Port,
    peer: bywire::Peer,
    _actor: Actor,
}

impl Starved {
    /// Returns also the errors of three calls that the starved peer has made: to open, to connect, and for a heap.
    fn new(what: &str) -> (Self, [String; 3]) {
        let place = PortDirectory::new();
        let mut rich = place.named("rich");
        let mut actor = Actor::start("starved", place.path(), &[what]);
        let Event::Connected(peer) = next(&mut rich) else { panic!("no connection") };
        actor.expect("ready");
        // Runs this end meanwhile, so that the actor can connect once more, if it has what it needs.
        let (errors, _) = serve(&mut rich, || [(); 3].map(|()| actor.hear().expect("an answer")));
        (Self { place, rich, peer, _actor: actor }, errors)
    }

    fn still_talks(&mut self) {
        for round in 0..100u8 {
            self.rich.send(self.peer, Priority::Low, &[round; 20]).expect("room");
            until(|| match next(&mut self.rich) {
                Event::Message(message) => {
                    assert_eq!(&message.payload[..], [round; 20]);
                    true
                }
                Event::Disconnected { peer: gone, reason } => {
                    assert_ne!(gone, self.peer, "{reason}");
                    false
                }
                _ => false,
            });
        }
    }

    /// A stranger is told the reason, and does not delay the connected peers.
    fn refuses_a_stranger(&mut self) {
        let mut stranger = self.place.open(self.place.options());
        let refused = stranger.connect(&address("starved"), MINUTE);
        assert_eq!(refused, Err(ConnectError::Refused(Refusal::NoResources)));
        self.still_talks();
    }
}

/// The errors of all three calls for one cause.
fn errors_of(cause: Errno) -> [String; 3] {
    [
        format!("{:?}", Some(OpenError::System(cause))),
        format!("{:?}", Some(ConnectError::System(cause))),
        format!("{:?}", Some(LendError::System(cause))),
    ]
}

#[test]
fn without_descriptors_calls_fail_and_connections_continue() {
    let (mut starved, errors) = Starved::new("descriptors");
    assert_eq!(errors, errors_of(Errno::MFILE));
    starved.still_talks();
    starved.refuses_a_stranger();
    assert!(!starved.place.path().join("more.port").exists(), "a port that was not opened has no name");
}

/// Another runtime directory would not help, so the error must name the descriptors.
#[test]
fn the_error_names_descriptors_whichever_one_is_missing() {
    let place = PortDirectory::new();
    let mut actor = Actor::start("scarce", place.path(), &[]);
    let mut lines: Vec<String> = std::iter::from_fn(|| actor.hear()).collect();
    let last = lines.pop().expect("an outcome");
    assert!(last.ends_with(" left"), "{last}");
    assert!(lines.len() > 4, "several descriptors are needed: {lines:?}");
    for line in lines {
        assert_eq!(line, OpenError::System(Errno::MFILE).to_string());
        assert!(line.contains("ulimit -n"), "{line}");
    }
}

#[test]
fn without_memory_calls_fail_and_connections_continue() {
    let (mut starved, [_, _, heap]) = Starved::new("memory");
    assert_eq!(heap, errors_of(Errno::NOMEM)[2]);
    starved.still_talks();
}

/// Memory files count for the limit. A signal ends a process that makes a longer one.
#[test]
fn under_a_file_size_limit_calls_fail_and_a_client_ends_no_server() {
    let (mut starved, errors) = Starved::new("files");
    assert_eq!(errors, errors_of(Errno::FBIG));
    assert!(OpenError::System(Errno::FBIG).to_string().contains("ulimit -f"), "it says what helps");
    starved.still_talks();
    starved.refuses_a_stranger();
}
