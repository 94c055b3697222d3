//! Closes what strangers have sent, where they cannot hold the service up.
//!
//! Closing the last descriptor of a lingering socket, or of a file of a user's own file system, takes as long as its
//! sender likes. Another thread does it, and is waited for only so long.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// What takes longer was meant to.
const PATIENCE: Duration = Duration::from_millis(20);
/// Threads that may be held up at once; beyond them, so is the service.
const HELD_UP_MAX: usize = 256;
/// Of one user. Nothing is waited for any more after that, nor taken from its programs.
const HELD_UP_BY_USER_MAX: usize = 8;

/// Threads that close.
#[derive(Debug, Default)]
pub struct Closer {
    idle: Vec<Worker>,
    held_up: Vec<(Worker, u32)>,
}

#[derive(Debug)]
struct Worker {
    orders: SyncSender<Vec<OwnedFd>>,
    done: Receiver<()>,
}

impl Closer {
    /// Closes what this user has sent.
    pub fn close(&mut self, user: u32, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() {
            return;
        }
        let idle = self.idle.pop();
        let Some(worker) = idle.or_else(|| (self.held_up.len() < HELD_UP_MAX).then(Worker::start)?) else {
            return drop(descriptors);
        };
        let patience = if self.bears(user) { PATIENCE } else { Duration::ZERO };
        // It waits for orders, so this does not wait.
        let is_done = worker.orders.send(descriptors).is_ok() && worker.done.recv_timeout(patience).is_ok();
        if is_done { self.idle.push(worker) } else { self.held_up.push((worker, user)) }
    }

    /// Is this user still served? Not while closing what it has sent holds up too much.
    pub fn bears(&mut self, user: u32) -> bool {
        let freed = self.held_up.extract_if(.., |(worker, _)| worker.done.try_recv().is_ok());
        self.idle.extend(freed.map(|(worker, _)| worker));
        self.held_up.iter().filter(|(_, other)| *other == user).count() < HELD_UP_BY_USER_MAX
    }
}

impl Worker {
    fn start() -> Option<Self> {
        let (orders, ordered) = sync_channel::<Vec<OwnedFd>>(1);
        let (say, done) = sync_channel(1);
        let work = move || {
            while let Ok(descriptors) = ordered.recv() {
                drop(descriptors);
                if say.send(()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("closer".to_owned()).spawn(work).ok()?;
        Some(Self { orders, done })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const ONE: u32 = 1000;
    const OTHER: u32 = 1001;

    fn any() -> Vec<OwnedFd> {
        vec![std::fs::File::open("/").expect("a file").into()]
    }

    /// A socket whose end has to wait for long, as nobody reads it.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let mut sender = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
        let (receiver, _) = listener.accept().expect("accept");
        sender.set_nonblocking(true).expect("it does not wait");
        while sender.write(&[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(600))).expect("lingers");
        (sender.into(), receiver)
    }

    #[test]
    fn sockets_that_linger_hold_up_nobody_and_cost_their_user_the_service() {
        let mut closer = Closer::default();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..HELD_UP_BY_USER_MAX).map(|_| lingering()).unzip();
        senders.into_iter().for_each(|sender| closer.close(ONE, vec![sender]));
        assert!(!closer.bears(ONE) && closer.bears(OTHER));
        closer.close(OTHER, any());
        // They are reset, so their ends need not wait any longer.
        drop(receivers);
        let began = std::time::Instant::now();
        while !closer.bears(ONE) || !closer.held_up.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "the threads come back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
