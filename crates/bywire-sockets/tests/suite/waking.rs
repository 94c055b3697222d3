//! No thread sleeps on an event that a polling thread left behind and that nobody else will handle, in shared, nested,
//! level- and edge-triggered sets, over TCP and carried. A registration of a connection that has bytes wakes whoever
//! sleeps in the set, around it or in poll.
//!
//! Each test is a program on one core whose looking thread is in the real-time class. Sleepers that were woken do not
//! run before it pauses. What otherwise happens once in many rounds happens in each. Where there is no real-time class,
//! the sleepers have the policy `SCHED_IDLE` instead, and are late on a busy machine.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::test_service::calls::{add, one_event, register};
use crate::test_service::{self, Running, TestService};

/// More than the looks after which a set also asks the kernel.
const EXCHANGES: u32 = 18;

/// Runs this test as a program over TCP, and with the library, where connections must be carried. `true`: this is one
/// of these programs, on one core.
fn is_driver() -> bool {
    if test_service::role().is_some() {
        // SAFETY: a live set; zeros are an empty one.
        unsafe {
            let mut core: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut core);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&core), &raw const core), 0);
        }
        // Other threads of this program are not in that class.
        let is_ahead = set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
        IS_AHEAD.store(is_ahead, Ordering::SeqCst);
        return true;
    }
    let pairing = TestService::new();
    for (role, calls, spin) in [("plain", None, "0"), ("carried", Some(1), "0"), ("carried", Some(1), "1")] {
        let mut command = pairing.program(role, calls);
        command.env("BYWIRE_SOCKETS_SPIN", spin);
        println!("{role}, spinning: {spin}");
        assert!(Running::start(&mut command).end().success(), "{role}, spinning: {spin}");
    }
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
    false
}

/// The looking thread is in the real-time class.
static IS_AHEAD: AtomicBool = AtomicBool::new(false);

/// Sets the policy of this thread, if it may have that.
fn set_policy(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: a live structure; only this thread changes.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

/// Two non-blocking ends, carried if the library is loaded.
fn pair() -> (RawFd, RawFd) {
    let ends = test_service::pair();
    if test_service::role().as_deref() == Some("carried") {
        test_service::carry(ends);
    }
    ends
}

/// A thread that runs only while the looking thread does not want its core.
struct Sleeper {
    number: i32,
}

impl Sleeper {
    fn start(work: impl FnOnce() + Send + 'static) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            assert!(IS_AHEAD.load(Ordering::SeqCst) || set_policy(libc::SCHED_IDLE, 0));
            // SAFETY: no pointers.
            sender.send(unsafe { libc::gettid() }).expect("heard");
            work();
        });
        Self { number: receiver.recv().expect("it has begun") }
    }

    /// Waits until it sleeps.
    fn await_sleep(&self) {
        let path = format!("/proc/self/task/{}/stat", self.number);
        test_service::eventually("it sleeps", || {
            let stat = std::fs::read_to_string(&path).expect("a thread of ours");
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" S"))
        });
    }
}

/// Takes every byte of the connections of a set, and counts them by connection.
fn take_all(set: RawFd, servers: Vec<RawFd>, taken: &'static [AtomicU64]) {
    loop {
        let Some(number) = one_event(set, -1).map(|number| number as usize) else { continue };
        while test_service::receive(servers[number], 1, 0).0 == 1 {
            taken[number].fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Sends a byte and takes it by a look, unless the sleeper is faster.
fn exchange(set: RawFd, client: RawFd, servers: &[RawFd]) {
    assert_eq!(test_service::send(client, b"!", 0), 1);
    if let Some(number) = one_event(set, 0) {
        test_service::receive(servers[number as usize], 1, 0);
    }
}

fn looks_leave_the_next_news_to_the_sleeper(mode: i32) {
    static TAKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let (first, second) = (pair(), pair());
    let set = test_service::epoll();
    let servers = vec![first.1, second.1];
    for (number, server) in servers.iter().enumerate() {
        add(set, *server, libc::EPOLLIN | mode, number as u64);
    }
    let of_sleeper = servers.clone();
    let sleeper = Sleeper::start(move || take_all(set, of_sleeper, &TAKEN));
    for exchanges in 0..EXCHANGES {
        sleeper.await_sleep();
        (0..exchanges).for_each(|_| exchange(set, first.0, &servers));
        let before = TAKEN[1].load(Ordering::SeqCst);
        assert_eq!(test_service::send(second.0, b"!", 0), 1);
        // This thread is busy from here on, and returns only when the sleeper has done its part.
        test_service::eventually("the sleeper takes it", || TAKEN[1].load(Ordering::SeqCst) > before);
    }
}

#[test]
fn a_non_blocking_look_leaves_the_next_event_to_the_sleeper() {
    if is_driver() {
        looks_leave_the_next_news_to_the_sleeper(0);
    }
}

#[test]
fn an_edge_triggered_look_leaves_the_next_event_to_the_sleeper() {
    if is_driver() {
        looks_leave_the_next_news_to_the_sleeper(libc::EPOLLET);
    }
}

#[test]
fn a_sleeper_takes_kernel_events_left_by_a_full_array() {
    if !is_driver() {
        return;
    }
    // For each order in which a look examines them.
    for order in [[0, 1, 2], [2, 1, 0]] {
        told_by_the_kernel_behind_a_full_array(order);
    }
}

/// The last of three connections has its bytes in the kernel.
fn told_by_the_kernel_behind_a_full_array(order: [usize; 3]) {
    let taken: &'static [AtomicU64; 3] = Box::leak(Box::new([const { AtomicU64::new(0) }; 3]));
    let pairs = [(); 3].map(|()| pair());
    let servers = pairs.map(|(_, server)| server).to_vec();
    let set = test_service::epoll();
    for number in order {
        add(set, servers[number], libc::EPOLLIN | libc::EPOLLET, number as u64);
    }
    // It returns to the kernel here.
    assert_eq!(test_service::pass(pairs[2].0), 1);
    let of_sleeper = servers.clone();
    let sleeper = Sleeper::start(move || take_all(set, of_sleeper, taken));
    for exchanges in 0..EXCHANGES {
        sleeper.await_sleep();
        (0..exchanges).for_each(|_| exchange(set, pairs[0].0, &servers));
        let before = [0, 1, 2].map(|number| taken[number].load(Ordering::SeqCst));
        pairs.iter().rev().for_each(|(client, _)| assert_eq!(test_service::send(*client, b"!", 0), 1));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        // SAFETY: room for two events.
        let found = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 2, 0) };
        let mine: Vec<usize> = events.iter().take(found as usize).map(|event| event.u64 as usize).collect();
        for number in (0..3).filter(|number| !mine.contains(number)) {
            test_service::eventually("the sleeper takes what is left", || {
                taken[number].load(Ordering::SeqCst) > before[number]
            });
        }
        mine.into_iter().for_each(|number| assert!(test_service::receive(servers[number], 1, 0).0 <= 1));
    }
}

#[test]
fn a_lasting_level_triggered_event_wakes_one_sleeper_after_another() {
    if !is_driver() {
        return;
    }
    static WOKEN: AtomicUsize = AtomicUsize::new(0);
    let (client, server) = pair();
    let set = test_service::epoll();
    add(set, server, libc::EPOLLIN, 0);
    let sleepers = [(); 3].map(|()| {
        Sleeper::start(move || {
            assert_eq!(one_event(set, -1), Some(0));
            WOKEN.fetch_add(1, Ordering::SeqCst);
            std::thread::park();
        })
    });
    sleepers.iter().for_each(Sleeper::await_sleep);
    assert_eq!(test_service::send(client, b"!", 0), 1);
    test_service::eventually("each of them", || WOKEN.load(Ordering::SeqCst) == 3);
}

#[test]
fn a_sleeper_in_an_outer_set_is_woken() {
    if !is_driver() {
        return;
    }
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let (client, server) = pair();
    let [inner, middle, outer] = [(); 3].map(|()| test_service::epoll());
    add(inner, server, libc::EPOLLIN, 7);
    add(outer, middle, libc::EPOLLIN, 9);
    add(middle, inner, libc::EPOLLIN, 8);
    let sleeper = Sleeper::start(move || {
        loop {
            assert_eq!(one_event(outer, -1), Some(9));
            if one_event(middle, 0) == Some(8) && one_event(inner, 0) == Some(7) {
                TAKEN.fetch_add(test_service::receive(server, 1, 0).0.max(0) as u64, Ordering::SeqCst);
            }
        }
    });
    for round in 1..=20 {
        sleeper.await_sleep();
        assert_eq!(test_service::send(client, b"!", 0), 1);
        test_service::eventually("it takes the byte", || TAKEN.load(Ordering::SeqCst) == round);
    }
}

#[test]
fn a_look_reports_kernel_events_after_rings_for_others() {
    if !is_driver() {
        return;
    }
    let (client, server) = pair();
    let set = test_service::epoll();
    add(set, server, libc::EPOLLIN, 0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    add(set, listener.as_raw_fd(), libc::EPOLLIN, 1);
    // Somebody sleeps elsewhere, so the doorbell is rung.
    let (_other, elsewhere) = pair();
    let sleeper = Sleeper::start(move || {
        test_service::poll_for(elsewhere, -1);
    });
    for _ in 0..3 {
        sleeper.await_sleep();
        assert_eq!(test_service::send(client, b"!", 0), 1);
        assert_eq!(test_service::receive(server, 1, 0).0, 1);
        let _caller =
            std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
        assert_eq!(one_event(set, 0), Some(1));
        listener.accept().expect("a caller");
    }
}

/// How a thread waits for the bytes of a connection that another thread registers in its set.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    InTheSet,
    BesideAnotherConnection,
    InAnOuterSet,
    InPoll,
}

/// Registers a connection that has a byte, again and again: the sleeper must hear of each registration.
fn registrations_wake(waiting: Waiting) {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let ((client, server), other) = (pair(), pair());
    let [set, outer] = [(); 2].map(|()| test_service::epoll());
    match waiting {
        Waiting::BesideAnotherConnection => add(set, other.1, libc::EPOLLIN, 1),
        Waiting::InAnOuterSet => add(outer, set, libc::EPOLLIN, 2),
        Waiting::InTheSet | Waiting::InPoll => {}
    }
    let before = TAKEN.load(Ordering::SeqCst);
    // It ends with the program.
    let sleeper = Sleeper::start(move || {
        loop {
            match waiting {
                Waiting::InTheSet | Waiting::BesideAnotherConnection => {
                    assert_eq!(one_event(set, -1), Some(0))
                }
                Waiting::InAnOuterSet => assert_eq!(one_event(outer, -1), Some(2)),
                Waiting::InPoll => _ = test_service::poll_for(set, -1),
            }
            // SAFETY: no memory is passed. The registration ends before the byte is taken, and the next one is made
            // afterwards.
            unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, server, std::ptr::null_mut()) };
            TAKEN.fetch_add(test_service::receive(server, 1, 0).0.max(0) as u64, Ordering::SeqCst);
        }
    });
    for round in 1..=40 {
        // In every other round it may be anywhere on its way to sleep.
        if round % 2 == 0 {
            sleeper.await_sleep();
        }
        assert_eq!(test_service::send(client, b"!", 0), 1);
        if round % 4 < 2 {
            add(set, server, libc::EPOLLIN, 0);
        } else {
            add(set, server, 0, 0);
            assert_eq!(register(set, libc::EPOLL_CTL_MOD, server, libc::EPOLLIN, 0), 0);
        }
        test_service::eventually("it takes the byte", || TAKEN.load(Ordering::SeqCst) - before == round);
    }
}

#[test]
fn a_registration_wakes_whoever_sleeps_in_the_set_around_it_or_in_poll() {
    if !is_driver() {
        return;
    }
    let ways = [Waiting::InTheSet, Waiting::BesideAnotherConnection, Waiting::InAnOuterSet, Waiting::InPoll];
    for waiting in ways {
        println!("{waiting:?}");
        registrations_wake(waiting);
    }
}
