use std::time::{Duration, Instant};

use bywire_sys::deferred::ReceivedFd;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::Received;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::engines::Engine;
use super::*;
use crate::identity::Name;
use crate::protocol::{PACKET_BYTES, link, place};

/// Has the writing end of this pipe been closed?
fn is_closed(reader: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(reader, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut asked, Some(&at_once)).expect("poll");
    asked[0].revents().contains(PollFlags::HUP)
}

/// Pipes in place of the files that a program sends, and their other ends.
fn pair() -> ([OwnedFd; 2], [OwnedFd; 2]) {
    let pipes = [(); 2].map(|()| rustix::pipe::pipe().expect("pipe"));
    let [(first, doorbell), (second, page)] = pipes;
    ([doorbell, page], [first, second])
}

/// A program of a user that has said nothing, by its number, and its end of the connection to the service.
fn admitted(registry: &mut Registry, user: u32) -> (u64, Socket) {
    assert!(registry.attend(user, Poller::new().expect("epoll")));
    let place = registry.admit(user).expect("a place");
    let (socket, program) = Socket::pair().expect("socketpair");
    (registry.enter(user, &Arc::new(socket), place, None).expect("heard"), program)
}

/// A program that has said hello.
fn enter(registry: &mut Registry, user: u32) -> (u64, Socket) {
    let (tag, program) = admitted(registry, user);
    assert!(registry.answer(tag, CheckedPacket::Hello(pair().0), Space::Own(0)));
    (tag, program)
}

fn identity(namespace: u64, cookie: u64, ends: [std::net::SocketAddr; 2]) -> Identity {
    let [local, remote] = ends.map(Name::Address);
    Identity { namespace, cookie, local, remote, is_established: true, is_bound_to_device: false, peer: None }
}

#[test]
fn no_file_of_a_program_is_closed_under_the_lock() {
    const USER: u32 = 7;
    const TAG: u64 = 1;
    const SPACE: Space = Space::Own(0);
    let mut registry = Registry::new(Scope::Machine, TAG);
    let (tag, _program) = admitted(&mut registry, USER);
    assert_eq!(tag, TAG);
    let (first, first_readers) = pair();
    let (again, again_readers) = pair();
    assert!(registry.answer(TAG, CheckedPacket::Hello(first), SPACE));
    assert!(!registry.answer(TAG, CheckedPacket::Hello(again), SPACE), "it has said hello already");
    assert!(!again_readers.iter().any(is_closed), "what is refused");
    let identity = Err(Errno::BADF);
    let (segment, segment_readers) = pair();
    let [segment, other] = segment.map(|file| vec![file]);
    assert!(registry.answer(TAG, CheckedPacket::Offer { token: 1, segment, identity }, SPACE));
    assert!(registry.answer(TAG, CheckedPacket::Offer { token: 1, segment: other, identity }, SPACE));
    assert!(!segment_readers.iter().any(is_closed), "what cannot be paired");
    registry.dismiss(TAG);
    assert!(!first_readers.iter().any(is_closed), "what a program leaves");
    let shared = Mutex::new(registry);
    change(&shared, |_| ());
    let readers = [first_readers, again_readers, segment_readers];
    assert!(readers.iter().flatten().all(is_closed), "without the lock it is all closed");
}

#[test]
fn a_programs_files_keep_their_slots_until_they_are_closed() {
    const USER: u32 = 100_000;
    let mut registry = Registry::new(Scope::Machine, 1);
    registry.users = Users::new(Scope::Machine, process::user(), Limits::new(Scope::Machine, 1024));
    let free = |registry: &mut Registry| {
        let programs: Vec<_> =
            std::iter::repeat_with(|| registry.admit(USER)).map_while(|place| place).collect();
        programs.iter().for_each(|_| registry.turn_back(USER));
        let doorbells =
            std::iter::repeat_with(|| registry.users.doorbells.take(USER)).map_while(|place| place);
        (programs.len(), doorbells.collect::<Vec<_>>().len())
    };
    let all = free(&mut registry);
    let (tag, _program) = admitted(&mut registry, USER);
    let (pair, _readers) = pair();
    assert!(
        registry.answer(tag, CheckedPacket::Hello(pair), Space::Own(0)) && registry.ensure_doorbell(tag, 7)
    );
    let others = free(&mut registry);
    assert!(others.0 < all.0 && others.1 < all.1);
    registry.dismiss(tag);
    assert_eq!(free(&mut registry), others, "nothing of it has been closed");
    registry.left.clear();
    registry.doorbells_left.clear();
    assert_eq!(free(&mut registry), all);
}

#[test]
fn a_slow_namespace_lookup_delays_no_other_user() {
    use bywire_sys::namespace::NamespaceName;
    let directory = tempfile::tempdir().expect("a directory");
    // Opening a fifo for reading waits until another process opens it for writing.
    let place = directory.path().join("namespace");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &place, rustix::fs::FileType::Fifo, mode, 0).expect("a fifo");
    let mut registry = Registry::new(Scope::Machine, 1);
    registry.spaces = Arc::new(Spaces::new(vec![vec![NamespaceName::Path(place.clone())]]).expect("spaces"));
    let shared = Mutex::new(registry);
    let ends = ["10.1.0.1:1", "10.1.0.2:2"].map(|text| text.parse().expect("an address"));
    let identity = identity(7, 1, ends);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let offer = CheckedPacket::Offer { token: 1, segment: Vec::new(), identity: Ok(identity) };
            hear(&shared, 1, offer, &Interrupter::here())
        });
        // The thread waits in the open by now.
        std::thread::sleep(Duration::from_millis(100));
        let is_free = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            shared.try_lock().is_ok()
        });
        // Opens the fifo for writing, without waiting, once the thread waits to read.
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        let began = Instant::now();
        let writer = loop {
            match rustix::fs::open(&place, flags, rustix::fs::Mode::empty()) {
                Ok(writer) => break writer,
                Err(_) => assert!(began.elapsed() < Duration::from_secs(60), "nobody looks"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(!looking.join().expect("no panic"), "there is no such program");
        assert!(is_free, "the lock of all users is held during a look");
        drop(writer);
    });
}

#[test]
fn an_end_is_paired_with_a_waiting_one_even_if_the_table_is_full() {
    const USER: u32 = 7;
    let mut registry = Registry::new(Scope::Machine, 1);
    registry.users = Users::new(Scope::Machine, 999, Limits::new(Scope::Machine, 1024));
    let (tag, _program) = enter(&mut registry, USER);
    let offer = |registry: &mut Registry, token: u64, local: u16, remote: u16| {
        let ends = [local, remote].map(|port| ([127, 0, 0, 1], port).into());
        let (([segment, _], _), identity) = (pair(), Ok(identity(1, token, ends)));
        registry.answer(tag, CheckedPacket::Offer { token, segment: vec![segment], identity }, Space::Own(0))
    };
    let mut count = 0;
    while registry.users.place_to_wait(USER).is_some() {
        count += 1;
        assert!(offer(&mut registry, count, count as u16, 1000));
    }
    assert!(offer(&mut registry, count + 1, 1000, 1));
    registry.left.clear();
    assert!(registry.users.place_to_wait(USER).is_some(), "one of {count} waits no more");
}

/// A socket whose last close waits for long, and its other end.
fn lingering() -> [OwnedFd; 2] {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let sender = std::net::TcpStream::connect(address).expect("connect");
    let (receiver, _) = listener.accept().expect("accept");
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4096).expect("a small one");
    sender.set_nonblocking(true).expect("it does not wait");
    while (&sender).write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(40))).expect("lingers");
    [sender.into(), receiver.into()]
}

#[test]
fn a_doorbell_between_users_is_closed_by_a_separate_thread() {
    let mut registry = Registry::new(Scope::Machine, 1);
    let mut readers = Vec::new();
    let [one, other] = [7, 8].map(|user| {
        let (tag, program) = admitted(&mut registry, user);
        readers.push(program);
        tag
    });
    // In place of each doorbell there is a file whose last close is delayed.
    let mut ends = Vec::new();
    for (tag, user) in [(one, 8), (one, 9), (other, 7)] {
        assert!(registry.ensure_doorbell(tag, user));
        let [sender, receiver] = lingering();
        ends.push(receiver);
        let doorbell = registry
            .programs
            .get_mut(&tag)
            .and_then(|program| program.other_user_doorbells.doorbells.get_mut(&user));
        doorbell.expect("it was found").file = sender.into();
    }
    let shared = Mutex::new(registry);
    let began = Instant::now();
    // The first doorbell is withdrawn and acknowledged, the second only withdrawn, and the third goes with its
    // program.
    let name = change(&shared, |registry| {
        registry.release_doorbell(one, 8);
        registry.release_doorbell(one, 9);
        let withdrawn = &registry.programs[&one].other_user_doorbells.withdrawn;
        *withdrawn.iter().find(|(_, doorbell)| doorbell.users == [7, 8]).expect("it is kept").0
    });
    let withdrawn = CheckedPacket::Other(Packet::new(Kind::Withdrawn, name));
    assert!(hear(&shared, one, withdrawn, &Interrupter::here()));
    assert_eq!(
        lock(&shared).programs[&one].other_user_doorbells.withdrawn.len(),
        1,
        "the program is not the last to close it"
    );
    change(&shared, |registry| [one, other].map(|tag| registry.dismiss(tag)));
    assert!(began.elapsed() < Duration::from_secs(30), "a user's thread is held up");
    assert!(lock(&shared).doorbells_left.is_empty());
}

#[test]
fn connections_between_two_users_leave_watches_to_others() {
    let mut registry = Registry::new(Scope::Machine, 1);
    let limits = Limits::new(Scope::Machine, 1024);
    let common = limits.between.others.common;
    assert!(common * 4 <= limits::watches_of_user() / 2, "{common} connections");
    registry.users = Users::new(Scope::Machine, 999, limits);
    let [one, other, third, fourth] = [7, 8, 9, 10].map(|user| enter(&mut registry, user));
    let mut number = 0;
    let mut received = Vec::new();
    // Offers both ends, and the first one again. Returns whether they were paired, and keeps what their programs received.
    let mut connect =
        |registry: &mut Registry, programs: [&(u64, Socket); 2], received: &mut Vec<OwnedFd>| {
            number += 1;
            let before = registry.users.status(0).carried_ever;
            received.clear();
            for at in [0, 1, 0] {
                let ends = [at, 1 - at].map(|end| ([127, 0, 0, 1 + end as u8], number).into());
                let cookie = 2 * u64::from(number) + at as u64;
                let identity = identity(1, cookie, ends);
                let segment = vec![Mapping::create("bywire-test", 4096).expect("memory").1];
                let packet = CheckedPacket::Offer { token: cookie, segment, identity: Ok(identity) };
                assert!(registry.answer(programs[at].0, packet, Space::Own(0)));
                registry.left.clear();
                for (_, socket) in programs {
                    while let Ok(Received::Packet(_, files)) = socket.receive(&mut [0; PACKET_BYTES]) {
                        // They are closed by this thread, and at once.
                        received.extend(files.into_iter().map(ReceivedFd::into_inner));
                    }
                }
            }
            (registry.users.status(0).carried_ever > before).then_some(number)
        };
    let mut last = 0;
    let count = std::iter::from_fn(|| {
        connect(&mut registry, [&one, &other], &mut received).inspect(|number| last = *number)
    })
    .count();
    assert!((common / 6..common / 4).contains(&count), "{count} of {common}");
    assert!(connect(&mut registry, [&third, &fourth], &mut received).is_some(), "other users are held back");
    // An end gives the places of a connection back once its memory has gone as well, and nothing else need happen for that.
    let end = |registry: &mut Registry, number: u16| {
        let packet = Packet::new(Kind::End, 2 * u64::from(number));
        assert!(registry.answer(one.0, CheckedPacket::Other(packet), Space::Own(0)));
    };
    end(&mut registry, last);
    let again = connect(&mut registry, [&one, &other], &mut received).expect("its places are free");
    assert!(connect(&mut registry, [&one, &other], &mut Vec::new()).is_none());
    end(&mut registry, again);
    let later = std::mem::take(&mut received);
    assert!(connect(&mut registry, [&one, &other], &mut received).is_none(), "its memory is still there");
    drop(later);
    assert!(connect(&mut registry, [&one, &other], &mut received).is_some());
    assert!(connect(&mut registry, [&one, &other], &mut received).is_none());
}

#[test]
fn the_status_of_a_process_counts_its_own_connections_for_its_user_and_root_alone() {
    const USER: u32 = 7;
    let mut registry = Registry::new(Scope::Machine, 1);
    let (tag, _socket) = enter(&mut registry, USER);
    // Both ends of a socket pair are of this process.
    let process = std::process::id();
    let note = Packet { code: Reason::Plain as u8, first: 3, ..Packet::new(Kind::Note, 0) };
    assert!(registry.answer(tag, CheckedPacket::Other(note), Space::Own(0)));
    registry.set_state(tag, 1, OfferState::Paired { other_user: None });
    let expected = Status {
        processes: 1,
        carried: 1,
        carried_ever: 1,
        not_carried: vec![(Reason::Plain, 3)],
        ..Status::default()
    };
    assert_eq!(registry.process_status(USER, process), expected);
    assert_eq!(registry.process_status(0, process), expected);
    assert_eq!(registry.process_status(8, process), Status::default(), "another user's");
    assert_eq!(registry.process_status(0, process + 1), Status::default(), "another process");
    registry.forget(tag, 1);
    assert_eq!(registry.process_status(USER, process), Status { carried: 0, ..expected });
    registry.dismiss(tag);
    assert_eq!(registry.process_status(0, process), Status::default());
    assert!(registry.by_process.is_empty());
}

#[test]
fn unix_ends_of_two_users_are_paired_only_if_the_kernel_names_each_as_the_others_peer() {
    use bywire_sys::credentials::Credentials;
    const PARENT: u32 = 4242;
    let mut registry = Registry::new(Scope::Machine, 1);
    let programs = [7, 8].map(|user| enter(&mut registry, user));
    let this = std::process::id();
    for (tag, _) in &programs {
        registry.programs.get_mut(tag).expect("it was entered").parent = Some(PARENT);
    }
    let mut number = 0;
    // Offers both ends, and the first one again. Returns whether they were paired.
    let mut connect = |registry: &mut Registry, peers: [(u32, u32); 2]| {
        number += 2;
        let before = registry.users.status(0).carried_ever;
        for at in [0, 1, 0] {
            let [local, remote] = [at, 1 - at].map(|end| Name::Inode(number + end as u32));
            let (uid, pid) = peers[at];
            let peer = Some(Credentials { pid: pid as i32, uid, gid: 0 });
            let cookie = u64::from(number) + at as u64;
            let identity = Identity {
                namespace: 1,
                cookie,
                local,
                remote,
                is_established: true,
                is_bound_to_device: false,
                peer,
            };
            let segment = vec![Mapping::create("bywire-test", 4096).expect("memory").1];
            let packet = CheckedPacket::Offer { token: cookie, segment, identity: Ok(identity) };
            assert!(registry.answer(programs[at].0, packet, Space::Own(1)));
            registry.left.clear();
            for (_, socket) in &programs {
                while let Ok(Received::Packet(..)) = socket.receive(&mut [0; PACKET_BYTES]) {}
            }
        }
        registry.users.status(0).carried_ever > before
    };
    assert!(connect(&mut registry, [(8, 1), (7, 1)]), "by their users");
    assert!(connect(&mut registry, [(0, this), (7, 1)]), "a process that has become another user");
    assert!(connect(&mut registry, [(0, PARENT), (7, 1)]), "a worker of what listens");
    assert!(!connect(&mut registry, [(0, 1), (7, 1)]), "another process of root's");
    assert!(!connect(&mut registry, [(9, 1), (7, 1)]), "the end of a third user");
    assert!(!connect(&mut registry, [(8, 1), (9, 0)]), "a process that cannot be seen");
    for (tag, _) in &programs {
        registry.programs.get_mut(tag).expect("it was entered").parent = Some(1);
    }
    assert!(!connect(&mut registry, [(0, 1), (7, 1)]), "an orphan");
}

/// The packets that wait for a program, by their kinds, codes and tokens, and the number of descriptors that came along.
fn told(program: &Socket) -> Vec<(Kind, u8, u64, usize)> {
    let mut found = Vec::new();
    let mut buffer = [0; PACKET_BYTES];
    while let Ok(Received::Packet(length, files)) = program.receive(&mut buffer) {
        let packet = Packet::decode(&buffer[..length]).expect("one of ours");
        found.push((packet.kind, packet.code, packet.token, files.len()));
    }
    found
}

/// A program of user 7 with an offer that waits under the token 1, and that user's engine.
struct Served {
    registry: Registry,
    program: (u64, Socket),
    engine: (u64, Socket),
    identity: Identity,
    connection: OwnedFd,
}

impl Served {
    const USER: u32 = 7;
    const LINK: u8 = link::RELAY;

    fn new() -> Self {
        let mut registry = Registry::new(Scope::Machine, 10);
        let program = enter(&mut registry, Self::USER);
        let place = registry.admit(Self::USER).expect("a place");
        let (socket, other) = Socket::pair().expect("socketpair");
        let tag = registry.enter(Self::USER, &Arc::new(socket), place, None).expect("heard");
        assert!(registry.answer(tag, CheckedPacket::Hello(pair().0), Space::Own(0)));
        let serve = Packet { code: Self::LINK, ..Packet::new(Kind::Serve, 0) };
        assert!(registry.answer(tag, CheckedPacket::Other(serve), Space::Own(0)));
        assert_eq!(told(&other), [(Kind::Answer, Verdict::Waiting as u8, 0, 0)]);
        let ends = ["10.1.0.1:1", "10.1.0.2:2"].map(|text| text.parse().expect("an address"));
        let identity = identity(7, 1, ends);
        let [file, _] = pair().0;
        let offer = CheckedPacket::Offer { token: 1, segment: vec![file], identity: Ok(identity) };
        assert!(registry.answer(program.0, offer, Space::Own(7)));
        assert_eq!(told(&program.1), [(Kind::Answer, Verdict::Waiting as u8, 1, 0)]);
        let [connection, _] = pair().0;
        Self { registry, program, engine: (tag, other), identity, connection }
    }

    fn seek(&mut self, token: u64, link: u8, cookie: u64) -> Vec<(Kind, u8, u64, usize)> {
        let identity = Ok(Identity { cookie, ..self.identity });
        let is_asked = self.registry.seek(self.program.0, token, [link, 0], &identity, &self.connection);
        let asked = told(&self.engine.1);
        assert_eq!(is_asked, !asked.is_empty());
        asked
    }

    /// The name of the request that the engine gets.
    fn sought(&mut self) -> u64 {
        let asked = self.seek(1, Self::LINK, 1);
        let [(Kind::Take, Self::LINK, name, 1)] = asked[..] else { panic!("{asked:?}") };
        name
    }

    fn taken(&mut self, name: u64) {
        let [file, _] = pair().0;
        let taken = CheckedPacket::Taken { token: name, segment: vec![file] };
        assert!(self.registry.answer(self.engine.0, taken, Space::Own(0)));
    }
}

#[test]
fn an_engine_is_asked_once_for_a_connection_that_waits_and_for_no_other() {
    let mut served = Served::new();
    assert_eq!(served.seek(2, Served::LINK, 1), [], "no such offer");
    assert_eq!(served.seek(1, Served::LINK, 2), [], "another socket");
    assert_eq!(served.seek(1, 0x80, 1), [], "another link");
    let name = served.sought();
    assert_eq!(served.seek(1, Served::LINK, 1), [], "it was asked");
    let refusal = CheckedPacket::Taken { token: name, segment: Vec::new() };
    assert!(served.registry.answer(served.engine.0, refusal, Space::Own(0)));
    assert_eq!(told(&served.program.1), [], "it goes on waiting");
    assert_ne!(served.sought(), name);
}

#[test]
fn a_program_that_requires_an_engine_hears_of_a_refusal() {
    let mut served = Served::new();
    let identity = Ok(served.identity);
    let (program, link) = (served.program.0, [Served::LINK, 1]);
    assert!(served.registry.seek(program, 1, link, &identity, &served.connection));
    let asked = told(&served.engine.1);
    let [(Kind::Take, _, name, 1)] = asked[..] else { panic!("{asked:?}") };
    let refusal = CheckedPacket::Taken { token: name, segment: Vec::new() };
    assert!(served.registry.answer(served.engine.0, refusal, Space::Own(0)));
    assert_eq!(told(&served.program.1), [(Kind::Answer, Verdict::Refused as u8, 1, 0)]);
}

#[test]
fn an_address_is_a_nodes_once_the_engine_has_named_all_of_its_nodes() {
    let mut served = Served::new();
    let (program, engine) = (served.program.0, served.engine.0);
    let place_of = |registry: &mut Registry, address: [u64; 2]| {
        let [first, second] = address;
        let question = Packet { first, second, ..Packet::new(Kind::Locate, 5) };
        assert!(registry.answer(program, CheckedPacket::Other(question), Space::Own(0)));
        let [(Kind::Located, place, 5, 0)] = told(&served.program.1)[..] else { panic!("no answer") };
        place
    };
    assert_eq!(place_of(&mut served.registry, [0, 1]), place::UNKNOWN, "it only relays");
    served.registry.engines.by_user.insert(Served::USER, Engine { tag: engine, links: link::FABRIC });
    served.registry.engines.expect_nodes(engine, 2);
    let node = |second, code| CheckedPacket::Other(Packet { code, second, ..Packet::new(Kind::Node, 0) });
    for second in [1, 2] {
        assert_eq!(place_of(&mut served.registry, [0, 9]), place::UNKNOWN);
        assert!(served.registry.answer(engine, node(second, 1), Space::Own(0)));
    }
    assert_eq!([1, 2, 9].map(|second| place_of(&mut served.registry, [0, second])), [1, 1, 0]);
    assert!(served.registry.answer(engine, node(2, 0), Space::Own(0)));
    assert_eq!([1, 2].map(|second| place_of(&mut served.registry, [0, second])), [1, 0]);
    assert!(!served.registry.answer(program, node(3, 1), Space::Own(0)), "no engine");
    served.registry.dismiss(engine);
    assert_eq!(place_of(&mut served.registry, [0, 1]), place::UNKNOWN);
}

#[test]
fn a_program_and_its_engine_are_paired_and_the_engine_hears_of_the_end() {
    for ends in [true, false] {
        let mut served = Served::new();
        let name = served.sought();
        served.taken(name);
        let paired = Verdict::Paired as u8;
        assert_eq!(told(&served.program.1), [(Kind::Answer, paired, 1, 3)]);
        assert_eq!(told(&served.engine.1), [(Kind::Answer, paired, name, 3)]);
        assert_eq!(served.registry.users.status(Served::USER).carried, 1);
        if ends {
            let end = CheckedPacket::Other(Packet::new(Kind::End, 1));
            assert!(served.registry.answer(served.program.0, end, Space::Own(0)));
        } else {
            served.registry.dismiss(served.program.0);
        }
        assert_eq!(told(&served.engine.1), [(Kind::Gone, 0, name, 0)]);
    }
}

#[test]
fn an_engine_that_answers_too_late_gets_nothing() {
    let mut served = Served::new();
    let name = served.sought();
    let end = CheckedPacket::Other(Packet::new(Kind::End, 1));
    assert!(served.registry.answer(served.program.0, end, Space::Own(0)));
    // It has the connection's descriptor, so it hears of the end.
    assert_eq!(told(&served.engine.1), [(Kind::Gone, 0, name, 0)]);
    served.taken(name);
    served.taken(name + 1000);
    let refused = Verdict::Refused as u8;
    assert_eq!(
        told(&served.engine.1),
        [(Kind::Answer, refused, name, 0), (Kind::Answer, refused, name + 1000, 0)]
    );
    assert_eq!(served.registry.users.status(Served::USER).carried, 0);
}

#[test]
fn a_user_has_one_engine_and_programs_of_other_users_have_none() {
    let mut served = Served::new();
    let place = served.registry.admit(Served::USER).expect("a place");
    let (socket, other) = Socket::pair().expect("socketpair");
    let second = served.registry.enter(Served::USER, &Arc::new(socket), place, None).expect("heard");
    let serve = CheckedPacket::Other(Packet { code: Served::LINK, ..Packet::new(Kind::Serve, 0) });
    assert!(!served.registry.answer(second, serve, Space::Own(0)), "it has not said hello");
    assert!(served.registry.answer(second, CheckedPacket::Hello(pair().0), Space::Own(0)));
    let serve = CheckedPacket::Other(Packet { code: Served::LINK, ..Packet::new(Kind::Serve, 0) });
    assert!(served.registry.answer(second, serve, Space::Own(0)));
    assert_eq!(told(&other), [(Kind::Answer, Verdict::Full as u8, 0, 0)]);
    assert_eq!([Served::USER, 8].map(|user| served.registry.engines.links(user)), [Served::LINK, 0]);
    // The next engine takes the place of one that has gone, and its requests are void.
    let name = served.sought();
    served.registry.dismiss(served.engine.0);
    let serve = CheckedPacket::Other(Packet { code: Served::LINK, ..Packet::new(Kind::Serve, 0) });
    assert!(served.registry.answer(second, serve, Space::Own(0)));
    served.engine = (second, other);
    assert_eq!(told(&served.engine.1), [(Kind::Answer, Verdict::Waiting as u8, 0, 0)]);
    assert_ne!(served.sought(), name);
}

#[test]
fn an_engine_hears_of_many_ends_as_fast_as_it_repeats_them() {
    let mut served = Served::new();
    let (program, engine) = (served.program.0, served.engine.0);
    let ends: Vec<u64> = (1..=1000).collect();
    for token in &ends {
        served.registry.engines.served.insert((program, *token), (engine, 10_000 + token));
        served.registry.set_state(program, *token, OfferState::Paired { other_user: None });
    }
    served.registry.dismiss(program);
    let mut heard = Vec::new();
    loop {
        let now = told(&served.engine.1);
        if now.is_empty() {
            break;
        }
        assert!(now.len() < 600, "{} at once", now.len());
        for (kind, _, name, _) in now {
            assert_eq!(kind, Kind::Gone);
            heard.push(name);
            let repeated = CheckedPacket::Other(Packet::new(Kind::Gone, name));
            assert!(served.registry.answer(engine, repeated, Space::Own(0)));
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, ends.iter().map(|token| 10_000 + token).collect::<Vec<_>>());
}
