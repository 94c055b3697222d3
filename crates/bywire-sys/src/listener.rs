//! Listening Unix sockets that keep packet boundaries, and refuse users with too many sockets to close.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::close_account::{self, Account};
use crate::credentials;
use crate::deferred;
use crate::option;
use crate::socket::{Socket, check_packet_socket, packet_socket};

/// The most connections that one accept turns away.
const TURNED_AWAY_MAX: usize = 16;
/// The most connections that wait to be accepted, unless [`Listener::set_backlog`] changes it.
const BACKLOG: i32 = 4096;

/// A listening, non-blocking packet socket.
#[derive(Debug)]
pub struct Listener {
    file: ManuallyDrop<OwnedFd>,
    /// The process that has bound it; 0: another process has made it and goes on listening.
    owner: u32,
    /// The kernel refuses descriptors that are sent to connections before they are accepted.
    is_guarded: AtomicBool,
    /// The guard has been on at some time. A connection made then refuses descriptors until it is accepted.
    was_guarded: AtomicBool,
    turned_away: AtomicU64,
}

impl Listener {
    /// Binds and listens at `path`, which must not exist.
    ///
    /// # Errors
    /// The error of the kernel: [`Errno::ADDRINUSE`], [`Errno::ACCESS`], [`Errno::NOENT`], …
    pub fn bind(path: &Path) -> Result<Self, Errno> {
        let file = packet_socket()?;
        rustix::net::bind(&file, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&file, BACKLOG)?;
        Ok(Self::new(file, std::process::id()))
    }

    /// Takes a socket that another process has made and listens on.
    ///
    /// # Errors
    /// [`Errno::PROTOTYPE`] if it is no packet socket, [`Errno::INVAL`] if it does not listen.
    pub fn from_descriptor(file: OwnedFd) -> Result<Self, Errno> {
        check_packet_socket(&file)?;
        if !rustix::net::sockopt::socket_acceptconn(&file)? {
            return Err(Errno::INVAL);
        }
        let listener = Self::new(file, 0);
        // The process that has served it before may have ended with the guard on.
        let is_known = may_pass_rights(&listener, true);
        listener.was_guarded.store(is_known, Ordering::Relaxed);
        Ok(listener)
    }

    fn new(file: OwnedFd, owner: u32) -> Self {
        let [is_guarded, was_guarded] = [false; 2].map(AtomicBool::new);
        let turned_away = AtomicU64::new(0);
        Self { file: ManuallyDrop::new(file), owner, is_guarded, was_guarded, turned_away }
    }

    /// Changes how many connections may wait to be accepted. While as many wait, clients get [`Errno::AGAIN`].
    ///
    /// # Errors
    /// The error of `listen`.
    pub fn set_backlog(&self, connections: i32) -> Result<(), Errno> {
        // The kernel lets one more wait.
        rustix::net::listen(&*self.file, connections - 1)
    }

    /// The number of connections that were turned away, as their users have too many sockets to close.
    pub fn turned_away(&self) -> u64 {
        // Relaxed: a count that nothing else depends on.
        self.turned_away.load(Ordering::Relaxed)
    }

    /// The next waiting connection, if any.
    ///
    /// A connection of a user over its quota of sockets that wait to be closed is refused. While there is such a user,
    /// no client can send descriptors before it is accepted ([`Errno::PERM`]), so a refused connection can be closed at
    /// once.
    ///
    /// # Errors
    /// [`Errno::MFILE`] or [`Errno::NFILE`] if descriptors have run out. [`Errno::BUSY`] while too many sockets wait
    /// to be closed, if the kernel cannot refuse descriptors.
    pub fn accept(&self) -> Result<Option<Socket>, Errno> {
        let is_pressed = close_account::is_pressed();
        if is_pressed != self.is_guarded.load(Ordering::Relaxed) {
            self.guard(is_pressed);
        }
        if !self.was_guarded.load(Ordering::Relaxed) && !close_account::has_room() {
            return Err(Errno::BUSY);
        }
        for _ in 0..TURNED_AWAY_MAX {
            let Some(socket) = self.accept_any()? else { return Ok(None) };
            if !self.was_guarded.load(Ordering::Relaxed) {
                return Ok(Some(socket));
            }
            let account = Account::of_sockets(credentials::user(&socket));
            // The connection may be older than the guard. If it is refused, its drop looks at its queue.
            if !account.refuses_connections() && may_pass_rights(&socket, true) {
                return Ok(Some(socket));
            }
            self.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        Ok(None)
    }

    /// From now on, clients cannot (or can) send descriptors before they are accepted. `false`: the kernel does not
    /// support this (it requires Linux 6.16).
    pub fn guard(&self, is_guarded: bool) -> bool {
        let is_done = may_pass_rights(&self, !is_guarded);
        if is_done {
            self.was_guarded.fetch_or(is_guarded, Ordering::Relaxed);
            self.is_guarded.store(is_guarded, Ordering::Relaxed);
        }
        is_done
    }

    fn accept_any(&self) -> Result<Option<Socket>, Errno> {
        loop {
            match rustix::net::accept_with(&*self.file, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(file) => return Ok(Some(Socket::new(file))),
                Err(Errno::AGAIN) => return Ok(None),
                // The client gave up before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Listener {
    /// The connections that wait to be accepted are closed too, and everything that their clients have sent.
    fn drop(&mut self) {
        let is_ours = self.owner == std::process::id();
        let mut is_harmless = !is_ours;
        if is_ours {
            // No client can connect any more.
            let _ = rustix::net::shutdown(&*self.file, rustix::net::Shutdown::Both);
            while let Ok(Some(socket)) = self.accept_any() {
                drop(socket);
            }
            // Harmless if no connection is left, but not if descriptors have run out.
            let is_empty = matches!(self.accept_any(), Ok(None) | Err(Errno::INVAL));
            is_harmless = is_empty;
        }
        // SAFETY: only `drop` takes the file, and it runs once.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if is_harmless { drop(file) } else { deferred::close_socket(file) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Allows or forbids that descriptors are sent to a socket. The connections of a listening socket inherit the
/// setting. `false`: this kernel does not support it.
fn may_pass_rights(file: &impl AsFd, may: bool) -> bool {
    /// `SO_PASSRIGHTS` of asm-generic/socket.h, since Linux 6.16.
    const SO_PASSRIGHTS: i32 = 83;
    option::set(file, libc::SOL_SOCKET, SO_PASSRIGHTS, may.into()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Received;
    use crate::socket::tests::assert_closed;

    #[test]
    fn a_passed_socket_listens_or_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let theirs = Listener::bind(&path).expect("bound");
        let ours = Listener::from_descriptor(theirs.file.try_clone().expect("a copy")).expect("it listens");
        let _caller = Socket::connect(&path).expect("connected");
        assert!(ours.accept().expect("accepted").is_some());
        let (pair, _other) = Socket::pair().expect("socketpair");
        assert_eq!(Listener::from_descriptor(pair.into()).err(), Some(Errno::INVAL));
        let (stream, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(Listener::from_descriptor(stream.into()).err(), Some(Errno::PROTOTYPE));
    }

    #[test]
    fn a_backlog_holds_the_given_number_of_connections() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path).expect("bound");
        listener.set_backlog(3).expect("it listens");
        let waiting: Vec<_> = (0..3).map(|_| Socket::connect(&path).expect("a place")).collect();
        assert_eq!(Socket::connect(&path).err(), Some(Errno::AGAIN));
        assert!(listener.accept().expect("accepted").is_some());
        assert!(Socket::connect(&path).is_ok());
        drop(waiting);
    }

    #[test]
    fn under_load_descriptors_are_refused_before_acceptance() {
        if !close_account::is_alone("listener::tests::under_load_descriptors_are_refused_before_acceptance") {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path).expect("bound");
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        let accept = || listener.accept().expect("there is room");
        assert!(accept().is_none());
        if !may_pass_rights(&listener, true) {
            println!("not run: this kernel refuses no descriptors (SO_PASSRIGHTS, Linux 6.16)");
            return;
        }
        let over_quota = close_account::Backlog::of(710_003);
        assert!(accept().is_none(), "from here on");
        let caller = Socket::connect(&path).expect("connected");
        assert_eq!(caller.send(b"!", &[reader.as_fd()]), Err(Errno::PERM));
        let accepted = accept().expect("its user has no such sockets");
        caller.send(b"!", &[reader.as_fd()]).expect("it has been accepted");
        assert!(matches!(accepted.receive(&mut [0; 8]), Ok(Received::Packet(1, _))));
        let ours = close_account::Backlog::of(crate::process::user());
        let caller = Socket::connect(&path).expect("connected");
        assert_eq!(listener.turned_away(), 0);
        assert!(accept().is_none(), "its user is over the quota");
        assert_eq!(listener.turned_away(), 1);
        assert_closed(&caller);
        let early = Socket::connect(&path).expect("connected");
        drop((over_quota, ours));
        let accepted = accept().expect("no user is over the quota any more");
        early.send(b"!", &[reader.as_fd()]).expect("it has been accepted");
        assert!(matches!(accepted.receive(&mut [0; 8]), Ok(Received::Packet(1, _))));
        let caller = Socket::connect(&path).expect("connected");
        caller.send(b"!", &[reader.as_fd()]).expect("there is none any more");
        assert!(accept().is_some());
    }

    /// Connects as this user to two listeners, as of a process with two ports, and returns whether each lets it in.
    fn is_let_in(listeners: &[(Listener, std::path::PathBuf); 2], user: u32) -> [bool; 2] {
        listeners.each_ref().map(|(listener, path)| {
            let connect = || {
                let user = rustix::process::Uid::from_raw(user);
                rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
                Socket::connect(path).expect("connected")
            };
            let _caller = std::thread::scope(|scope| scope.spawn(connect).join().expect("no panic"));
            listener.accept().expect("there is room").is_some()
        })
    }

    #[test]
    fn users_with_thousands_of_waiting_sockets_exclude_nobody() {
        const NAME: &str = "listener::tests::users_with_thousands_of_waiting_sockets_exclude_nobody";
        const HONEST: u32 = 720_000;
        if !rustix::process::geteuid().is_root() {
            println!("not run: only root can be other users; run this test as root");
            return;
        }
        if !close_account::is_alone(NAME) {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let open = |path: &Path, mode| crate::directory::set_access(path, mode, None).expect("chmod");
        open(directory.path(), 0o755);
        let listeners = ["one", "other"].map(|name| {
            let path = directory.path().join(name);
            let listener = Listener::bind(&path).expect("bound");
            open(&path, 0o666);
            (listener, path)
        });
        if !may_pass_rights(&listeners[0].0, true) {
            println!("not run: this kernel refuses no descriptors (SO_PASSRIGHTS, Linux 6.16)");
            return;
        }
        // Thousands of connections of two users were closed, with unread descriptors.
        let two = [720_001, 720_002].map(|user| close_account::Backlog::of_many(user, 5000));
        assert_eq!(is_let_in(&listeners, HONEST), [true; 2], "two users fill all places");
        assert_eq!(is_let_in(&listeners, 0), [true; 2], "two users keep root out");
        assert_eq!(is_let_in(&listeners, 720_001), [false; 2]);
        drop(two);
        assert_eq!(is_let_in(&listeners, 720_001), [true; 2]);
        // Many users that each stay below the quota.
        let [places, share] = close_account::places();
        let below = |user: usize| close_account::Backlog::of_many(721_000 + user as u32, share - 1);
        let count = places / (share - 1) + 1;
        let many: Vec<_> = (0..count).map(below).collect();
        assert_eq!(is_let_in(&listeners, HONEST), [true; 2], "many users fill all places");
        assert_eq!(is_let_in(&listeners, 0), [true; 2], "many users keep root out");
        assert_eq!(is_let_in(&listeners, 721_000), [false; 2], "whoever has something waiting gets no more");
        // As many other users, which had no waiting socket before.
        let more: Vec<_> = (count..2 * count).map(below).collect();
        assert_eq!(is_let_in(&listeners, HONEST), [false; 2], "the table would be used up");
        assert_eq!(is_let_in(&listeners, 0), [true; 2], "more users keep root out");
        drop(more);
        assert_eq!(is_let_in(&listeners, HONEST), [true; 2]);
        drop(many);
        assert_eq!(is_let_in(&listeners, 721_000), [true; 2]);
    }
}
