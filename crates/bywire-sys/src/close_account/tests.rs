use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::kind::{COMMON_MAX, COMMON_USERS_MAX, HELD_MAX, PLACES_MAX};
use super::registry::THREADS;
use super::*;
use crate::deferred::{Deferred, ReceivedFd, close_common};
use crate::socket::{Received, Socket};

/// Users of these tests alone.
const ONE: u32 = 700_001;
const OTHER: u32 = 700_002;

/// A socket whose last close waits for an hour, as the receiver does not read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let sender = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (receiver, _) = listener.accept().expect("accept");
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4096).expect("a small one");
    rustix::net::sockopt::set_socket_send_buffer_size(&sender, 1 << 20).expect("a large one");
    sender.set_nonblocking(true).expect("it does not wait");
    while (&sender).write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).expect("lingers");
    (sender.into(), receiver)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_lingering_file_is_closed_by_another_thread_and_uncounted() {
    let account = Account::of(ONE);
    let (received, receivers): (Vec<_>, Vec<_>) = (0..HELD_MAX)
        .map(|_| {
            let (sender, receiver) = lingering();
            (ReceivedFd::new(sender, &account), receiver)
        })
        .unzip();
    assert!(account.is_over() && !Account::of(OTHER).is_over());
    drop(received);
    until("it is all closed", || account.lane.held.load(Ordering::Relaxed) == 0);
    assert!(!account.is_over());
    drop(receivers);
}

#[test]
fn a_file_that_was_taken_is_not_counted() {
    let account = Account::of(OTHER);
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    let received = ReceivedFd::new(reader, &account);
    assert_eq!(account.lane.held.load(Ordering::Relaxed), 1);
    drop(received.into_inner());
    assert_eq!(account.lane.held.load(Ordering::Relaxed), 0);
}

#[test]
fn descriptors_sent_with_stream_bytes_delay_nobody() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::os::unix::net::UnixStream;
    let began = Instant::now();
    let null = std::fs::File::open("/dev/null").expect("open");
    for (count, expected) in [(1, Ok(6)), (7, Err(rustix::io::Errno::MSGSIZE))] {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (ours, mut buffer) = (Deferred::new(ours), [0; 64]);
        let mut receivers = Vec::new();
        for _ in 0..2 {
            let (sender, receiver) = lingering();
            let mut many = vec![null.as_fd(); count];
            many[count - 1] = sender.as_fd();
            let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(7))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            let words = [std::io::IoSlice::new(b"status")];
            rustix::net::sendmsg(&theirs, &words, &mut control, SendFlags::empty()).expect("sent");
            receivers.push(receiver);
        }
        assert_eq!(crate::socket::receive_first(&*ours, &mut buffer), expected, "{count}");
        drop(ours);
        drop(receivers);
    }
    assert!(began.elapsed() < Duration::from_secs(60), "whoever asks is not held up");
}

#[test]
fn sockets_are_closed_with_what_lingers_in_their_queues() {
    let began = Instant::now();
    let mut receivers = Vec::new();
    for _ in 0..50 {
        let (ours, theirs) = Socket::pair().expect("a pair");
        for _ in 0..2 {
            let (sender, receiver) = lingering();
            ours.send(b"!", &[sender.as_fd()]).expect("passed");
            receivers.push(receiver);
        }
        drop(theirs);
        assert!(matches!(ours.receive(&mut [0; 8]), Ok(Received::Closed)), "it hears of it at once");
    }
    assert!(began.elapsed() < Duration::from_secs(60), "whoever drops it is not held up");
    // Each close is interrupted, and the kernel ends the connection by itself.
    let sockets = Account::of_sockets(rustix::process::geteuid().as_raw());
    until("all is closed", || sockets.lane.held.load(Ordering::Relaxed) == 0);
}

/// An account in a registry of its own.
fn alone(user: u32) -> Account {
    Account::in_registry(Box::leak(Box::new(Registry::new(1 << 19))), Kind::Files(user))
}

/// The same, while other users' files hang in as many threads as these users get.
fn without_threads(user: u32) -> Account {
    let account = alone(user);
    let mut threads = lock(&account.registry.threads);
    let taken = (1..).take_while(|other| threads[0].take(*other)).count();
    assert!(taken > 200 && taken < 256, "{taken} threads");
    drop(threads);
    account
}

#[test]
fn files_that_wait_without_a_thread_get_one_as_soon_as_possible() {
    let account = alone(ONE);
    // As after a thread that could not be started.
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    for _ in 0..HELD_MAX {
        account.hold();
        lock(&account.lane.waiting).files.push_back(reader.try_clone().expect("dup").into());
    }
    until("it is closed, and more may come", || !account.is_over());
}

#[test]
fn packets_without_descriptors_are_unaffected_when_every_thread_is_blocked() {
    let (ours, theirs) = Socket::pair().expect("a pair");
    ours.set_account(without_threads(OTHER));
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    theirs.send(b"bare", &[]).expect("sent");
    theirs.send(b"laden", &[reader.as_fd()]).expect("sent");
    let mut buffer = [0; 8];
    assert!(matches!(ours.receive(&mut buffer), Ok(Received::Packet(4, _))));
    assert_eq!(ours.receive(&mut buffer).err(), Some(rustix::io::Errno::DQUOT));
    let own = rustix::process::geteuid().as_raw();
    for trusted in [own, 0] {
        let (ours, theirs) = Socket::pair().expect("a pair");
        ours.set_account(without_threads(trusted));
        theirs.send(b"laden", &[reader.as_fd()]).expect("sent");
        assert!(matches!(ours.receive(&mut buffer), Ok(Received::Packet(5, _))), "user {trusted}");
    }
}

#[test]
fn a_thread_that_hangs_in_one_users_socket_keeps_no_other_users_sockets_open() {
    const NAME: &str =
        "close_account::tests::a_thread_that_hangs_in_one_users_socket_keeps_no_other_users_sockets_open";
    if !is_alone(NAME) {
        return;
    }
    let [hanging, other] = [710_001, 710_002].map(Account::of_sockets);
    // As if its close never ended: the lane has a thread, which takes nothing from it.
    lock(&hanging.lane.waiting).is_attended = true;
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    for _ in 0..hanging.share() {
        assert!(!hanging.refuses_connections());
        for account in [&hanging, &other] {
            account.hold();
            account.close(reader.try_clone().expect("dup"));
        }
    }
    assert!(hanging.refuses_connections() && is_pressed());
    until("the other's are closed", || other.lane.held.load(Ordering::Relaxed) == 0);
    assert!(hanging.refuses_connections() && has_room());
    lock(&hanging.lane.waiting).is_attended = hanging.start_thread();
    until("so are these", || hanging.lane.held.load(Ordering::Relaxed) == 0);
    until("its connections are let in", || !is_pressed());
}

#[test]
fn no_user_takes_all_slots_of_a_small_table() {
    for descriptors in [256, 1024, 4096, 1 << 14, 1 << 19] {
        let registry: &'static Registry = Box::leak(Box::new(Registry::new(descriptors)));
        for kind in [Kind::Files, Kind::Sockets] {
            let of = |user| Account::in_registry(registry, kind(user));
            let one = of(ONE);
            (0..2 * HELD_MAX).for_each(|_| one.hold());
            assert!(
                one.is_over() && one.refuses_connections() && !registry.is_full(one.kind),
                "{descriptors}"
            );
            of(OTHER).hold();
            assert!(
                !of(OTHER).is_over() && !of(OTHER).refuses_connections(),
                "one of {descriptors} keeps others out"
            );
            // As many again for users without a waiting file, then only for root.
            let many = (0..).map(|number| of(1000 + number)).take_while(|next| {
                let may_come = !next.is_over();
                (0..DESCRIPTORS_MAX).for_each(|_| next.hold());
                may_come
            });
            let many: Vec<_> = many.take(20_000).collect();
            assert!(many.len() * DESCRIPTORS_MAX < 2 * registry.places_max, "{descriptors}");
            assert!(of(900_000).is_over() && of(900_000).refuses_connections() && !of(0).is_over());
        }
    }
}

#[test]
fn a_ticket_is_kept_until_its_file_is_closed() {
    let (account, ticket) = (alone(ONE), Arc::new(()));
    // As if its close never ended.
    lock(&account.lane.waiting).is_attended = true;
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    account.hold();
    account.close(Held::new(reader, Some(Arc::clone(&ticket) as Ticket)));
    assert_eq!(Arc::strong_count(&ticket), 2);
    lock(&account.lane.waiting).is_attended = account.start_thread();
    until("it is closed", || Arc::strong_count(&ticket) == 1);
}

#[test]
fn slot_counts_are_correct_for_every_user() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can be other users; run this test as root");
        return;
    }
    let ours = alone(ONE);
    let as_itself = || {
        let user = rustix::process::Uid::from_raw(ONE);
        rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
        Account::in_registry(ours.registry, Kind::Files(ONE))
    };
    let theirs = std::thread::scope(|scope| scope.spawn(as_itself).join().expect("no panic"));
    theirs.hold();
    ours.release();
    assert_eq!(ours.registry.places[0].load(Ordering::Relaxed), 0);
}

#[test]
fn concurrent_starts_respect_the_thread_limit() {
    let one = alone(ONE);
    let accounts: Vec<_> =
        (1..=600).map(|user| Account::in_registry(one.registry, Kind::Files(user))).collect();
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    let taken = || {
        let threads = lock(&one.registry.threads);
        (1..=600).map(|user| threads[0].taken(user)).sum::<usize>()
    };
    let (reader, taken) = (&reader, &taken);
    std::thread::scope(|scope| {
        for accounts in accounts.chunks(100) {
            scope.spawn(move || {
                for account in accounts {
                    account.hold();
                    account.close(reader.try_clone().expect("dup"));
                    assert!(taken() <= THREADS.common);
                }
            });
        }
    });
    until("all is closed, by and by", || {
        attend_all(one.registry);
        accounts.iter().all(|account| account.lane.held.load(Ordering::Relaxed) == 0)
    });
    until("the threads end", || taken() == 0);
}

#[test]
fn an_owner_of_thousands_of_user_numbers_leaves_threads_and_slots_to_others() {
    let one = alone(ONE);
    let of = |user| Account::in_registry(one.registry, Kind::Files(user));
    let subordinate: Vec<_> = (0..1000).map(|number| of(200_000 + number)).collect();
    // As if each user's file hung.
    for account in &subordinate {
        account.hold();
        if !account.is_over() {
            lock(&account.lane.waiting).is_attended =
                lock(&one.registry.threads)[0].take(account.kind.user());
        }
    }
    let count = (0..1000).filter(|number| lock(&one.registry.threads)[0].taken(200_000 + number) > 0).count();
    assert_eq!(count, 128, "half of them");
    assert!(subordinate[999].is_over() && !one.is_over() && !of(1000).is_over());
    let full: Vec<_> = (0..PLACES_MAX / HELD_MAX).map(|user| of(1_000_000 + user as u32)).collect();
    full.iter().for_each(|account| (0..2 * HELD_MAX).for_each(|_| account.hold()));
    assert!(one.registry.is_full(Kind::Files(0)), "all places");
    assert!(!one.is_over() && !of(0).is_over(), "whoever has nothing there may send");
    one.hold();
    assert!(one.is_over(), "and then no more");
    full.iter().for_each(|account| (0..2 * HELD_MAX).for_each(|_| account.release()));
    assert!(!one.is_over());
}

#[test]
fn files_between_two_users_delay_only_these_two() {
    const NAME: &str = "close_account::tests::files_between_two_users_delay_only_these_two";
    if !is_alone(NAME) {
        return;
    }
    let (hostile, honest) = (730_000, 1000);
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    // As if its close never ended.
    let hang = |other| {
        let account = Account::in_registry(Registry::own(), Kind::common([hostile, other]));
        lock(&account.lane.waiting).is_attended = true;
        account
    };
    let account = hang(honest);
    for _ in 0..COMMON_MAX {
        assert!(may_have_common([honest, hostile]));
        close_common(reader.try_clone().expect("dup"), [honest, hostile]);
    }
    assert!(!may_have_common([honest, hostile]) && !may_have_common([hostile, honest]));
    assert!(may_have_common([honest, 1001]) && may_have_common([hostile, 1001]));
    close_common(reader.try_clone().expect("dup"), [honest, 1001]);
    let others = Account::in_registry(Registry::own(), Kind::common([1001, honest]));
    until("others' is closed", || others.lane.held.load(Ordering::Relaxed) == 0);
    for other in 1..COMMON_USERS_MAX as u32 {
        hang(1001 + other);
        assert!(may_have_common([hostile, 1001 + other]));
        close_common(reader.try_clone().expect("dup"), [hostile, 1001 + other]);
    }
    assert!(!may_have_common([hostile, 1001]), "it has that with too many");
    assert!(!may_have_common([hostile + 1, 1001]), "so has its next number");
    assert!(may_have_common([honest, 1001]));
    // One user has files in common with many others, and all of them wait.
    for other in 0..COMMON_USERS_MAX as u32 {
        let account = Account::in_registry(Registry::own(), Kind::common([990_000 + other, 33]));
        lock(&account.lane.waiting).is_attended = true;
        close_common(reader.try_clone().expect("dup"), [33, 990_000 + other]);
    }
    for other in [0, 1000, 1001, 2_000_000] {
        assert!(may_have_common([33, other]), "many numbers keep {other} from one user");
    }
    let full = Account::in_registry(Registry::own(), Kind::common([5, 6]));
    let places = &full.registry.places[full.kind.pool()];
    places.fetch_add(PLACES_MAX, Ordering::Relaxed);
    assert!(may_have_common([0, 33]) && may_have_common([1000, 33]), "without anything that waits");
    places.fetch_sub(PLACES_MAX, Ordering::Relaxed);
    lock(&account.lane.waiting).is_attended = account.start_thread();
    until("it is closed", || account.lane.held.load(Ordering::Relaxed) == 0);
}
