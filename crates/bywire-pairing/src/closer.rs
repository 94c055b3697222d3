//! Closes what strangers have sent, where they cannot hold the service up.
//!
//! Closing the last descriptor of a lingering socket, or of a file of a user's own file system, takes as long as its
//! sender likes. Another thread does it, and is waited for only so long. Whoever holds up too much waits behind itself:
//! the service never closes for it.
//!
//! Sockets of those who are not let in are without number, so none of them may wait: what lingers in their queues is
//! interrupted, as it would be by the end of this process.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bywire_sys::interrupt::Interruptible;

/// What takes longer was meant to.
const PATIENCE: Duration = Duration::from_millis(20);
/// What is not to wait is left alone so long before it is interrupted, each time.
const MOMENT: Duration = Duration::from_micros(100);
/// Orders of one user that may be unfinished. Nothing is waited for any more after that, nor taken from its programs.
const UNFINISHED_BY_USER_MAX: usize = 8;
/// Orders of all users: from here on nobody else is let in. Whoever is not served has no more of them than it had programs,
/// and these are fewer, in all and by far for one user.
const UNFINISHED_MAX: usize = 1 << 15;
/// Threads that are kept for the next orders.
const IDLE_MAX: usize = 8;
/// They do nothing but close.
const STACK_BYTES: usize = 64 << 10;

/// Threads that close.
#[derive(Debug)]
pub struct Closer {
    idle: Vec<Worker>,
    held_up: Vec<HeldUp>,
    places: Places,
}

/// Threads that may be held up at once.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// By whoever comes.
    common: usize,
    /// Beyond those, for users that hold up none: each has one, so that nobody's ends wait behind another's.
    first: usize,
}

#[derive(Debug)]
struct HeldUp {
    worker: Worker,
    user: u32,
    /// Not finished.
    orders: usize,
    /// Nothing that it closes may linger.
    is_hurried: bool,
}

#[derive(Debug)]
struct Worker {
    orders: Sender<Vec<OwnedFd>>,
    done: Receiver<()>,
    /// Itself, once it runs.
    thread: Arc<OnceLock<Interruptible>>,
}

impl Default for Closer {
    fn default() -> Self {
        Self { idle: Vec::new(), held_up: Vec::new(), places: Places { common: 256, first: 1024 } }
    }
}

impl Closer {
    /// Closes what this user has sent.
    pub fn close(&mut self, user: u32, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() {
            return;
        }
        let unfinished = self.unfinished(user);
        let first = if unfinished == 0 { self.places.first } else { 0 };
        let has_place = self.held_up.len() < self.places.common + first;
        let worker = (unfinished < UNFINISHED_BY_USER_MAX && has_place)
            .then(|| self.idle.pop().or_else(Worker::start))
            .flatten();
        let Some(worker) = worker else { return self.queue(user, descriptors) };
        // It waits for orders, so this does not wait.
        let is_done = worker.orders.send(descriptors).is_ok() && worker.done.recv_timeout(PATIENCE).is_ok();
        match is_done {
            true => self.rest(worker),
            false => self.held_up.push(HeldUp { worker, user, orders: 1, is_hurried: false }),
        }
    }

    /// Closes the socket of somebody who is not let in, with what lies in its queue, however many of them come.
    pub fn refuse(&mut self, user: u32, socket: OwnedFd) {
        let has_place = self.held_up.len() < self.places.common + self.places.first;
        let worker = has_place.then(|| self.idle.pop().or_else(Worker::start)).flatten();
        let Some(worker) = worker else { return self.queue(user, vec![socket]) };
        let is_done = worker.orders.send(vec![socket]).is_ok() && worker.hurry();
        match is_done {
            true => self.rest(worker),
            // The machine is busy, and its turn comes.
            false => self.held_up.push(HeldUp { worker, user, orders: 1, is_hurried: true }),
        }
    }

    /// Behind what this user holds up, or else behind anything.
    fn queue(&mut self, user: u32, descriptors: Vec<OwnedFd>) {
        let behind = self.held_up.iter_mut().min_by_key(|held_up| (held_up.user != user, held_up.orders));
        // Where nothing is held up, no thread can be started: then there is no other way.
        let Some(behind) = behind else { return drop(descriptors) };
        // It listens as long as it is known here.
        if behind.worker.orders.send(descriptors).is_ok() {
            behind.orders += 1;
        }
    }

    /// Is this user still served? Not while closing what it has sent holds up too much.
    pub fn bears(&mut self, user: u32) -> bool {
        self.unfinished(user) < UNFINISHED_BY_USER_MAX
    }

    /// May somebody else be let in, who would have to be closed as well?
    pub fn has_room(&mut self) -> bool {
        self.collect();
        self.held_up.iter().map(|held_up| held_up.orders).sum::<usize>() < UNFINISHED_MAX
    }

    /// Orders of this user's.
    fn unfinished(&mut self, user: u32) -> usize {
        self.collect();
        self.held_up.iter().filter(|held_up| held_up.user == user).map(|held_up| held_up.orders).sum()
    }

    /// Takes note of what is finished.
    fn collect(&mut self) {
        for held_up in &mut self.held_up {
            held_up.orders = held_up.orders.saturating_sub(held_up.worker.done.try_iter().count());
            if held_up.is_hurried && held_up.orders > 0 {
                held_up.worker.interrupt();
            }
        }
        let free: Vec<_> = self.held_up.extract_if(.., |held_up| held_up.orders == 0).collect();
        free.into_iter().for_each(|held_up| self.rest(held_up.worker));
    }

    /// Keeps it for the next order, or lets it end.
    fn rest(&mut self, worker: Worker) {
        if self.idle.len() < IDLE_MAX {
            self.idle.push(worker);
        }
    }
}

impl Worker {
    fn start() -> Option<Self> {
        let (orders, ordered) = channel::<Vec<OwnedFd>>();
        let (say, done) = channel();
        let thread = Arc::new(OnceLock::new());
        let own = Arc::clone(&thread);
        let work = move || {
            own.get_or_init(Interruptible::here);
            while let Ok(descriptors) = ordered.recv() {
                drop(descriptors);
                if say.send(()).is_err() {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("closer".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(work).ok()?;
        Some(Self { orders, done, thread })
    }

    /// Is its order done, with nothing that lingers?
    fn hurry(&self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.done.recv_timeout(MOMENT).is_ok() {
                return true;
            }
            self.interrupt();
        }
        false
    }

    fn interrupt(&self) {
        if let Some(thread) = self.thread.get() {
            thread.interrupt();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use bywire_sys::socket::Socket;

    use super::*;

    /// So long whoever closes it is held up.
    const LINGER: Duration = Duration::from_secs(120);
    const ONE: u32 = 1000;
    const OTHER: u32 = 1001;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let sender = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
        (sender, listener.accept().expect("accept").0)
    }

    /// A socket whose end has to wait for long, as nobody reads it.
    fn lingering() -> (OwnedFd, TcpStream) {
        let (mut sender, receiver) = connection();
        // More than the other end takes.
        rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4096).expect("a small one");
        rustix::net::sockopt::set_socket_send_buffer_size(&sender, 1 << 20).expect("a large one");
        sender.set_nonblocking(true).expect("it does not wait");
        while sender.write(&[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&sender, Some(LINGER)).expect("lingers");
        (sender.into(), receiver)
    }

    /// Has the last descriptor of the other end been closed?
    fn is_closed(mut receiver: TcpStream) -> bool {
        receiver.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        matches!(receiver.read(&mut [0]), Ok(0))
    }

    /// Nothing that was reset lingers any longer, and nothing else may have.
    fn await_all(closer: &mut Closer, began: Instant) {
        while !closer.bears(ONE) || !closer.held_up.is_empty() {
            assert!(began.elapsed() < LINGER / 2, "the threads come back");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(began.elapsed() < LINGER / 2, "this thread was held up");
    }

    #[test]
    fn sockets_that_linger_hold_up_nobody_and_cost_their_user_the_service() {
        let (mut closer, began) = (Closer::default(), Instant::now());
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..2 * UNFINISHED_BY_USER_MAX).map(|_| lingering()).unzip();
        senders.into_iter().for_each(|sender| closer.close(ONE, vec![sender]));
        assert!(!closer.bears(ONE) && closer.bears(OTHER) && closer.has_room());
        assert_eq!(closer.held_up.len(), UNFINISHED_BY_USER_MAX, "the rest waits behind them");
        let (sender, receiver) = connection();
        closer.close(OTHER, vec![sender.into()]);
        assert!(is_closed(receiver));
        // They are reset, so their ends need not wait any longer.
        drop(receivers);
        await_all(&mut closer, began);
        assert!(closer.idle.len() <= IDLE_MAX);
    }

    #[test]
    fn when_all_threads_are_held_up_the_service_is_not_and_each_user_has_one() {
        let began = Instant::now();
        let mut closer = Closer { places: Places { common: 2, first: 2 }, ..Closer::default() };
        let mut receivers = Vec::new();
        let mut linger = |closer: &mut Closer, user: u32| {
            let (sender, receiver) = lingering();
            closer.close(user, vec![sender]);
            receivers.push(receiver);
        };
        // More than there are threads for one, who then waits behind itself.
        (0..4).for_each(|_| linger(&mut closer, ONE));
        assert_eq!((closer.held_up.len(), closer.unfinished(ONE)), (2, 4));
        let (sender, receiver) = connection();
        closer.close(OTHER, vec![sender.into()]);
        assert!(is_closed(receiver), "somebody else does not");
        // As many users as there are places, and one more, for whom there is none.
        (2000..2003).for_each(|user| linger(&mut closer, user));
        assert_eq!(closer.held_up.len(), 4);
        assert!(closer.bears(2003) && closer.has_room());
        drop(receivers);
        await_all(&mut closer, began);
    }

    #[test]
    fn what_is_refused_is_closed_and_lingers_nowhere() {
        let (mut closer, began) = (Closer::default(), Instant::now());
        let (senders, _receivers): (Vec<_>, Vec<_>) =
            (0..UNFINISHED_BY_USER_MAX).map(|_| lingering()).unzip();
        senders.into_iter().for_each(|sender| closer.close(ONE, vec![sender]));
        assert!(!closer.bears(ONE));
        // Each with what would hold up whoever closes it, twice over.
        let mut receivers = Vec::new();
        for _ in 0..2 * UNFINISHED_BY_USER_MAX {
            let (ours, theirs) = Socket::pair().expect("a pair");
            for _ in 0..2 {
                let (sender, receiver) = lingering();
                ours.send(b"!", &[sender.as_fd()]).expect("passed");
                receivers.push(receiver);
            }
            closer.refuse(ONE, theirs.into());
        }
        // All is closed but what is waited for.
        while closer.unfinished(ONE) > UNFINISHED_BY_USER_MAX {
            assert!(began.elapsed() < LINGER / 2, "what is refused lingers");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!closer.bears(ONE) && began.elapsed() < LINGER / 2, "what lingered before lingers on");
    }

    #[test]
    fn nobody_is_let_in_when_too_much_waits() {
        let (mut closer, began) = (Closer::default(), Instant::now());
        let (sender, receiver) = lingering();
        closer.close(ONE, vec![sender]);
        (2..UNFINISHED_MAX).for_each(|_| closer.queue(ONE, Vec::new()));
        assert!(closer.has_room());
        closer.queue(ONE, Vec::new());
        assert!(!closer.has_room());
        drop(receiver);
        await_all(&mut closer, began);
        assert!(closer.has_room());
    }
}
