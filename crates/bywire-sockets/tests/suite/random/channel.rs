//! Processes and threads that carry out orders: one set of them over plain TCP, and one with the library.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::test_service::TestService;

/// The same numbers as in actor.c.
const FIRST_CHANNEL: RawFd = 400;
const MAILBOX: RawFd = 420;
/// Actors that a script may have, including dead ones.
pub const ACTORS: usize = 12;
/// The programs of each run descend from two processes, like those of two users' shells.
pub const FOUNDERS: usize = 2;
const CHANNELS: usize = ACTORS + FOUNDERS;

/// The orders that an actor can get, in the order of actor.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Operation {
    Listen,
    Connect,
    Accept,
    Send,
    Receive,
    SendAll,
    ReceiveAll,
    Fill,
    Poll,
    NewSet,
    Control,
    Wait,
    Duplicate,
    Close,
    Pass,
    Take,
    Fork,
    Exec,
    Spawn,
    Thread,
    Shutdown,
    Handle,
    Handled,
    Look,
    Set,
    Settle,
    SettleEnd,
    Limit,
    Sandbox,
    Exit,
    Reap,
    Moved,
    Run,
    Adopt,
    SettleShut,
    Attach,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Order {
    pub operation: Operation,
    pub fd: i32,
    pub way: i32,
    pub flags: i32,
    pub to: i32,
    pub milliseconds: i32,
    pub size: u64,
    pub position: u64,
}

impl Order {
    pub fn new(operation: Operation, fd: i32) -> Self {
        Self { operation, fd, way: 0, flags: 0, to: 0, milliseconds: 0, size: 0, position: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Reply {
    pub result: i64,
    pub error: i32,
    pub is_wrong: u32,
    pub more: u64,
    pub detail: u64,
}

/// The outcome of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Replied(Reply),
    Died,
}

struct Actor {
    process: i32,
    thread: i32,
    /// Readable when the process has ended.
    end: Rc<OwnedFd>,
}

/// The programs of one run.
pub struct Programs {
    channels: Vec<OwnedFd>,
    founders: Vec<Child>,
    actors: Vec<Option<Actor>>,
    /// What nobody has taken out of it is discarded after each script.
    mailbox: OwnedFd,
}

impl Programs {
    /// With the library if `calls` is given: the number of calls after which a connection may leave the kernel.
    pub fn new(service: &TestService, program: &Path, calls: Option<u64>) -> Self {
        let pairs: Vec<_> = (0..CHANNELS).map(|_| pair(libc::SOCK_SEQPACKET)).collect();
        let mailbox = pair(libc::SOCK_SEQPACKET);
        let theirs: Vec<(RawFd, RawFd)> = (pairs.iter().enumerate())
            .map(|(at, (_, far))| (far.as_raw_fd(), FIRST_CHANNEL + at as RawFd))
            .chain([(mailbox.0.as_raw_fd(), MAILBOX), (mailbox.1.as_raw_fd(), MAILBOX + 1)])
            .collect();
        let founders = (0..FOUNDERS).map(|founder| {
            let places = theirs.clone();
            let mut command = service.command(program, calls);
            command.arg((ACTORS + founder).to_string()).stdin(Stdio::null()).stdout(Stdio::null());
            // Paths of listeners are relative to this directory.
            command.current_dir(service.path(""));
            // SAFETY: system calls alone, between fork and exec, on descriptors that are open.
            unsafe {
                command.pre_exec(move || {
                    let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
                    libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
                    places.iter().for_each(|(from, to)| assert!(libc::dup2(*from, *to) == *to));
                    Ok(())
                });
            }
            command.spawn().expect("an actor")
        });
        let founders = founders.collect();
        let channels = pairs.into_iter().map(|(near, _)| near).collect();
        let actors = (0..CHANNELS).map(|_| None).collect();
        let mut programs = Self { channels, founders, actors, mailbox: mailbox.1 };
        for founder in 0..FOUNDERS {
            programs.greet(ACTORS + founder, None).expect("a founder begins");
            programs.tell(ACTORS + founder, Order::new(Operation::Adopt, -1));
            programs.outcome(ACTORS + founder, Duration::from_secs(20)).expect("adopted");
        }
        programs
    }

    /// Reads a new actor's first reply. A thread has its process's end.
    pub fn greet(&mut self, actor: usize, thread_of: Option<usize>) -> Option<()> {
        let shared = thread_of.and_then(|of| self.actors[of].as_ref()).map(|of| of.end.clone());
        let hello = self.word(actor, Duration::from_secs(20))?;
        let process = hello.more as i32;
        let end = match shared {
            Some(end) => end,
            None => Rc::new(process_end(process)?),
        };
        self.actors[actor] = Some(Actor { process, thread: hello.result as i32, end });
        Some(())
    }

    /// The actor's process has executed another program, and the actor is its first thread.
    pub fn renew(&mut self, actor: usize, hello: Reply) {
        if let Some(found) = &mut self.actors[actor] {
            found.thread = hello.result as i32;
        }
    }

    pub fn tell(&self, actor: usize, order: Order) {
        // SAFETY: a structure of plain numbers, which lives until the call is over.
        let sent = unsafe {
            let size = size_of::<Order>();
            libc::send(self.channels[actor].as_raw_fd(), (&raw const order).cast(), size, libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent, size_of::<Order>() as isize, "an order");
    }

    /// The outcome of the last order, if it is known in time.
    pub fn outcome(&self, actor: usize, timeout: Duration) -> Option<Outcome> {
        let end = self.actors[actor].as_ref()?.end.as_raw_fd();
        let channel = self.channels[actor].as_raw_fd();
        if !ready([channel, end], timeout) {
            return None;
        }
        // A dead process may have answered before.
        Some(receive(channel).map_or(Outcome::Died, Outcome::Replied))
    }

    fn word(&self, actor: usize, timeout: Duration) -> Option<Reply> {
        let channel = self.channels[actor].as_raw_fd();
        ready([channel, -1], timeout).then(|| receive(channel)).flatten()
    }

    /// Waits until its process has ended.
    pub fn ends(&self, actor: usize, timeout: Duration) -> bool {
        self.actors[actor].as_ref().is_some_and(|actor| ready([actor.end.as_raw_fd(), -1], timeout))
    }

    /// Waits until this thread has ended; its process may continue.
    pub fn thread_ends(&self, actor: usize, timeout: Duration) -> bool {
        let Some(found) = &self.actors[actor] else { return false };
        let path = format!("/proc/{}/task/{}", found.process, found.thread);
        let started = Instant::now();
        while Path::new(&path).exists() {
            if started.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }

    pub fn process(&self, actor: usize) -> i32 {
        self.actors[actor].as_ref().map_or(-1, |actor| actor.process)
    }

    /// Sends a signal to this thread.
    pub fn signal(&self, actor: usize, signal: i32) {
        if let Some(actor) = &self.actors[actor] {
            // SAFETY: no pointers; the process is not reaped before it is forgotten here.
            unsafe { libc::syscall(libc::SYS_tgkill, actor.process, actor.thread, signal) };
        }
    }

    /// Waits until an actor that carries out an order sleeps in it; `deeply`: for longer than the library waits for its
    /// service.
    pub fn falls_asleep(&self, actor: usize, deeply: bool) {
        let Some(found) = &self.actors[actor] else { return };
        let path = format!("/proc/{}/task/{}/", found.process, found.thread);
        let (pause, wanted) = if deeply { (1000, 30) } else { (50, 3) };
        let (mut looks, mut before) = (0, String::new());
        let timeout = Instant::now() + Duration::from_secs(5);
        while looks < wanted && Instant::now() < timeout {
            let stat = std::fs::read_to_string(format!("{path}stat")).unwrap_or_default();
            let call = std::fs::read_to_string(format!("{path}syscall")).unwrap_or_default();
            let sleeps = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
            let is_same = sleeps && call == before && !Self::is_listening(&call, actor);
            looks = if is_same { looks + 1 } else { 0 };
            before = call;
            if ready([self.channels[actor].as_raw_fd(), -1], Duration::ZERO) {
                return;
            }
            std::thread::sleep(Duration::from_micros(pause));
        }
    }

    /// Whether it waits for an order.
    fn is_listening(call: &str, actor: usize) -> bool {
        call.starts_with(&format!("0 {:#x} ", FIRST_CHANNEL + actor as RawFd))
    }

    /// Ends every process of the script that still runs, and leaves the founders as they were.
    pub fn clear(&mut self) -> bool {
        let mut ends = Vec::new();
        for actor in self.actors.iter_mut().take(ACTORS) {
            if let Some(actor) = actor.take() {
                // SAFETY: no pointers; the descriptor names the process even when its number is another's.
                unsafe {
                    libc::syscall(libc::SYS_pidfd_send_signal, actor.end.as_raw_fd(), libc::SIGKILL, 0, 0)
                };
                ends.push(actor.end);
            }
        }
        let timeout = Duration::from_secs(20);
        let mut is_clear = ends.iter().all(|end| ready([end.as_raw_fd(), -1], timeout));
        for founder in ACTORS..CHANNELS {
            self.tell(founder, Order::new(Operation::Reap, -1));
            is_clear &= self.outcome(founder, timeout).is_some();
        }
        for channel in self.channels.iter().take(ACTORS) {
            while receive(channel.as_raw_fd()).is_some() {}
        }
        let mut byte = 0u8;
        // SAFETY: room for one byte; descriptors for which there is no room are closed.
        while unsafe { libc::recv(self.mailbox.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) }
            > 0
        {}
        is_clear
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for actor in self.actors.iter().flatten() {
            // SAFETY: no pointers; the descriptor is that of an actor of this programs's.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, actor.end.as_raw_fd(), libc::SIGKILL, 0, 0) };
        }
        for founder in &mut self.founders {
            let _gone = founder.kill();
            let _gone = founder.wait();
        }
    }
}

fn pair(kind: i32) -> (OwnedFd, OwnedFd) {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors, which are owned from here on.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

fn process_end(process: i32) -> Option<OwnedFd> {
    // SAFETY: no pointers; a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, process, 0) as RawFd;
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Whether one of them becomes readable in time.
fn ready(fds: [RawFd; 2], timeout: Duration) -> bool {
    let mut files = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: two live entries.
    unsafe { libc::poll(files.as_mut_ptr(), 2, timeout.as_millis() as i32) > 0 }
}

fn receive(channel: RawFd) -> Option<Reply> {
    let mut reply = Reply::default();
    // SAFETY: plain numbers, of which any bytes are some.
    let got = unsafe {
        let size = size_of::<Reply>();
        libc::recv(channel, (&raw mut reply).cast(), size, libc::MSG_DONTWAIT)
    };
    (got == size_of::<Reply>() as isize).then_some(reply)
}
