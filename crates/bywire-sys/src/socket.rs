//! Unix sockets that keep packet boundaries: peers meet over them and pass descriptors.
//!
//! A packet is looked at before it is taken off its queue. A bad packet stays in the queue, for example one with more
//! descriptors than any of ours has, or than there is room for. So the kernel closes none of its descriptors in a
//! receive. They are closed with the socket, by threads of [`crate::deferred`].

use std::io::IoSlice;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::close_account::{Account, DESCRIPTORS_MAX};
use crate::credentials::{self, Credentials};
use crate::deferred::{self, Held, ReceivedFd, Ticket};
use crate::directory;

/// Kernel memory for packets that have not been read, where the queue is limited. The kernel doubles the number, and
/// counts at least 512 bytes of overhead for each packet.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// The most packets that wait if the sender has called [`Socket::limit_queue`].
pub const PACKETS_QUEUED_MAX: usize = 2 * SEND_BUFFER_BYTES / 512;

/// A connected, non-blocking packet socket. Dropping it ends the connection for both sides, unless another process
/// has passed it on and may have kept a copy.
#[derive(Debug)]
pub struct Socket {
    file: ManuallyDrop<OwnedFd>,
    /// The process that owns it. A forked child's copy ends nothing.
    owner: u32,
    is_passed_on: bool,
    /// The account of the user at the other end, once something has come from there.
    account: OnceLock<Account>,
    /// Given back when the socket is closed.
    ticket: OnceLock<Ticket>,
}

/// The result of one receive.
#[derive(Debug)]
pub enum Received {
    /// A packet of this many bytes, with the descriptors that came along.
    Packet(usize, Vec<ReceivedFd>),
    /// There is nothing now.
    Nothing,
    /// The other end has gone.
    Closed,
}

/// A new packet socket.
pub(crate) fn packet_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Socket {
    pub(crate) fn new(file: OwnedFd) -> Self {
        let (owner, account, ticket) = (std::process::id(), OnceLock::new(), OnceLock::new());
        Self { file: ManuallyDrop::new(file), owner, is_passed_on: false, account, ticket }
    }

    /// Connects to the listener at `path` without waiting.
    ///
    /// # Errors
    /// [`Errno::NOENT`] and [`Errno::CONNREFUSED`] if nobody listens, [`Errno::ACCESS`] if the path's owner does not
    /// admit us, [`Errno::AGAIN`] if too many clients wait already.
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let file = packet_socket()?;
        rustix::net::connect(&file, &SocketAddrUnix::new(path)?)?;
        Ok(Self::new(file))
    }

    /// Connects in a directory in which other users may put entries, but only if the entry itself is a socket. Links
    /// are not followed: one may lead to a socket that another user must not reach, or into a file system that does
    /// not answer.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`Errno::CONNREFUSED`] if the entry is no socket, or, where `/proc` is absent, if
    /// another user could replace it; [`Errno::MFILE`].
    pub fn connect_entry(path: &Path) -> Result<Self, Errno> {
        Self::connect_entry_by(path, Path::new("/proc/self/fd"))
    }

    /// The same; `descriptors` is the directory with the names of this process's descriptors.
    fn connect_entry_by(path: &Path, descriptors: &Path) -> Result<Self, Errno> {
        let entry = directory::open_entry(path)?;
        if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode).is_socket() {
            return Err(Errno::CONNREFUSED);
        }
        match Self::connect(&descriptors.join(entry.as_raw_fd().to_string())) {
            // The descriptor has no name here, as in a process confined to a directory. The path will do if no other
            // user can have replaced the entry.
            Err(Errno::NOENT) if directory::is_lasting(path, &entry)? => Self::connect(path),
            Err(Errno::NOENT) => Err(Errno::CONNREFUSED),
            connected => connected,
        }
    }

    /// Two sockets connected to each other.
    ///
    /// # Errors
    /// The error of `socketpair` (out of descriptors).
    pub fn pair() -> Result<(Self, Self), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(a), Self::new(b)))
    }

    /// Takes a socket that another process has made and passed on, for example as standard input.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::PROTOTYPE`] if it is no packet socket.
    pub fn from_descriptor(file: OwnedFd) -> Result<Self, Errno> {
        check_packet_socket(&file)?;
        let mut socket = Self::new(file);
        socket.is_passed_on = true;
        Ok(socket)
    }

    /// Ends the connection for both sides and for every copy of the descriptor.
    pub fn shut_down(&self) {
        // A connection that has ended already is fine.
        let _ = rustix::net::shutdown(&*self.file, rustix::net::Shutdown::Both);
    }

    /// Gives up this process's copy of a socket. For other processes with a copy the connection goes on.
    pub fn release(self) {
        deferred::close_socket(OwnedFd::from(self));
    }

    /// Ends the connection for both sides. `true`: its queue holds no descriptor and nothing more can come, so
    /// closing it closes nothing else.
    fn ends_harmless(&self) -> bool {
        self.shut_down();
        // Packets without descriptors, which honest peers may leave.
        for _ in 0..PACKETS_QUEUED_MAX {
            match self.peek(&mut [0]) {
                Ok((1.., false)) if self.skip().is_ok() => {}
                // The peer closed without having read everything.
                Err(Errno::CONNRESET) => {}
                _ => break,
            }
        }
        self.is_at_its_end()
    }

    /// From now on nothing more can come from the other end. `true`: nothing has come before either, so closing the
    /// socket closes nothing else.
    pub fn hear_no_more(&self) -> bool {
        // The kernel records this under the lock under which it queues packets.
        let is_deaf = rustix::net::shutdown(&*self.file, rustix::net::Shutdown::Read).is_ok();
        is_deaf && self.is_at_its_end()
    }

    /// Is the queue empty? The caller has made sure that nothing more can come.
    fn is_at_its_end(&self) -> bool {
        // With this option, every packet, even an empty one, reports more control data than there is room for. The
        // end of the connection does not.
        let is_asked = rustix::net::sockopt::set_socket_passcred(&*self.file, true).is_ok();
        is_asked && self.peek(&mut []).is_ok_and(|(_, has_more)| !has_more)
    }

    /// Looks at the next packet without taking its descriptors. Returns how many bytes fit, and whether it has more
    /// than bytes.
    fn peek(&self, buffer: &mut [u8]) -> Result<(usize, bool), Errno> {
        let mut control = RecvAncillaryBuffer::default();
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let found = rustix::net::recvmsg(&*self.file, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
        Ok((found.bytes, found.flags.contains(ReturnFlags::CTRUNC)))
    }

    /// Takes the next packet off the queue. The kernel drops its own references to the descriptors.
    fn skip(&self) -> Result<(), Errno> {
        let mut control = RecvAncillaryBuffer::default();
        // The kernel drops what does not fit. qemu does not pass on a call without any buffer, and the packet would stay.
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let mut skip = || rustix::net::recvmsg(&*self.file, &mut parts, &mut control, RecvFlags::DONTWAIT);
        let mut result = rustix::io::retry_on_intr(&mut skip);
        // As in `look`: the peer may have closed since.
        if matches!(result, Err(Errno::CONNRESET)) {
            result = rustix::io::retry_on_intr(skip);
        }
        result.map(drop)
    }

    /// The account of the user at the other end. If that user is not known, the account is one that no user has.
    fn account(&self) -> &Account {
        self.account.get_or_init(|| Account::of(credentials::user(self)))
    }

    #[cfg(test)]
    pub(crate) fn set_account(&self, account: Account) {
        self.account.set(account).expect("nothing has come yet");
    }

    /// Gives `ticket` back when this is closed, which may take as long as the other end likes. Only the first ticket
    /// counts.
    pub fn hold_until_closed(&self, ticket: Ticket) {
        let _ = self.ticket.set(ticket);
    }

    /// Is so much held of the user at the other end that no more of its descriptors are taken?
    pub fn is_over_account(&self) -> bool {
        self.account().is_over()
    }

    /// Limits our packets that wait at the other end to [`PACKETS_QUEUED_MAX`], on any machine.
    pub fn limit_queue(&self) {
        // Every socket accepts this. One that did not would only hold more packets.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&*self.file, SEND_BUFFER_BYTES);
    }

    /// The number of the descriptor. It tells about how many are open.
    pub fn number(&self) -> u64 {
        self.file.as_raw_fd().unsigned_abs().into()
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn credentials(&self) -> Result<Credentials, Errno> {
        credentials::of(self)
    }

    /// The supplementary groups of the other end, at most 256 of them.
    ///
    /// # Errors
    /// The error of `getsockopt`; [`Errno::RANGE`] for more groups.
    pub fn groups(&self) -> Result<Vec<u32>, Errno> {
        credentials::groups(self)
    }

    /// A descriptor that becomes readable when the process at the other end ends. It works across pid namespaces from
    /// Linux 6.5 on, else by pid.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::SRCH`] if the process has ended.
    pub fn watch_process(&self) -> Result<OwnedFd, Errno> {
        credentials::watch_process(self)
    }

    /// Has the process at the other end ended, as far as the kernel can tell?
    pub fn peer_has_ended(&self) -> bool {
        match self.watch_process() {
            Ok(process) => crate::process::has_ended(&process),
            Err(error) => error == Errno::SRCH,
        }
    }

    /// Is the queue to the other end mostly empty? If it is, a few more packets are sure to fit.
    pub fn has_room(&self) -> bool {
        let mut asked = [PollFd::new(&*self.file, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut asked, Some(&at_once)))
            .is_ok_and(|ready| ready == 1)
    }

    /// Sends one packet with up to `DESCRIPTORS_MAX` descriptors.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if the socket's buffer is full, [`Errno::PIPE`] if the other end has gone.
    pub fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::INVAL);
        }
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&*self.file, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)
        })?;
        if sent == packet.len() { Ok(()) } else { Err(Errno::MSGSIZE) }
    }

    /// Receives one packet into `buffer`.
    ///
    /// # Errors
    /// [`Errno::MSGSIZE`] for a packet that is longer than `buffer` or has more than `DESCRIPTORS_MAX` descriptors.
    /// [`Errno::MFILE`] if this process has no room for its descriptors. [`Errno::DQUOT`] if it has descriptors and
    /// too many of its sender's are held already. The packet stays in the queue and blocks the packets behind it, so
    /// the caller has to end the connection. After `MFILE` and `DQUOT` it may also try again later.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        match self.look(buffer)? {
            (Received::Packet(..), false) => Err(Errno::MFILE),
            (received, _) => self.take(received),
        }
    }

    /// Receives one packet from a program of our own, whose descriptors are harmless. Without room for the
    /// descriptors the packet comes without them.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_from_own(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let (received, _) = self.look(buffer)?;
        self.take(received)
    }

    /// Copies the next packet, which stays in the queue. `true`: all its descriptors are there.
    fn look(&self, buffer: &mut [u8]) -> Result<(Received, bool), Errno> {
        let is_over = self.is_over_account();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        // Without a buffer for descriptors the kernel copies none, and reports whether there are any.
        let mut control =
            if is_over { RecvAncillaryBuffer::default() } else { RecvAncillaryBuffer::new(&mut space) };
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
        // An end can hide the last packets from two looks. If the peer closed without having read everything, the kernel first reports
        // that as an error, once. If a packet and the end come when it has just seen an empty queue, it reports the end alone. Nothing
        // follows an end, so the third look is right.
        let mut look = || rustix::net::recvmsg(&*self.file, &mut parts, &mut control, flags);
        let hides_packets = |result: &Result<RecvMsg, Errno>| match result {
            Ok(message) => message.bytes == 0,
            Err(error) => *error == Errno::CONNRESET,
        };
        let mut result = look();
        for _ in 0..2 {
            if hides_packets(&result) {
                result = look();
            }
        }
        let message = match result {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok((Received::Nothing, true)),
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok((Received::Closed, true)),
            Err(error) => return Err(error),
        };
        let descriptors = received_fds(&mut control, self.account());
        // Our packets are never empty, so an empty one is the end.
        if message.bytes == 0 {
            return Ok((Received::Closed, true));
        }
        let is_whole = !message.flags.contains(ReturnFlags::CTRUNC);
        if is_over && !is_whole {
            return Err(Errno::DQUOT);
        }
        // If a packet was cut with fewer descriptors than fit, the table was full.
        let is_surplus =
            descriptors.len() > DESCRIPTORS_MAX || !is_whole && descriptors.len() == DESCRIPTORS_MAX;
        if message.flags.contains(ReturnFlags::TRUNC) || is_surplus {
            return Err(Errno::MSGSIZE);
        }
        Ok((Received::Packet(message.bytes, descriptors), is_whole))
    }

    /// Takes a packet off the queue after `look` has copied its descriptors.
    fn take(&self, received: Received) -> Result<Received, Errno> {
        if matches!(received, Received::Packet(..)) {
            self.skip()?;
        }
        Ok(received)
    }
}

/// The descriptors of a packet, counted on their sender's account.
fn received_fds(control: &mut RecvAncillaryBuffer<'_>, account: &Account) -> Vec<ReceivedFd> {
    let rights = control.drain().filter_map(|item| match item {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    rights.flatten().map(|file| ReceivedFd::new(file, account)).collect()
}

/// Receives the first bytes from a connected stream of an untrusted process. Descriptors that come with them are
/// closed by another thread. To close the stream itself, see [`deferred::close_socket`].
///
/// # Errors
/// The error of the kernel; [`Errno::DQUOT`] if too many descriptors of unknown senders are held; [`Errno::MSGSIZE`]
/// for more descriptors than one of our packets has.
pub fn receive_first(stream: &impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let account = Account::of(u32::MAX);
    if account.is_over() {
        return Err(Errno::DQUOT);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let found = rustix::net::recvmsg(stream, &mut parts, &mut control, flags)?;
    let _held = received_fds(&mut control, &account);
    if found.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    let mut nothing = RecvAncillaryBuffer::default();
    let mut seen = [IoSliceMut::new(buffer.get_mut(..found.bytes).unwrap_or_default())];
    rustix::net::recvmsg(stream, &mut seen, &mut nothing, RecvFlags::DONTWAIT).map(|taken| taken.bytes)
}

pub(crate) fn check_packet_socket(file: &OwnedFd) -> Result<(), Errno> {
    if rustix::net::sockopt::socket_type(file)? != SocketType::SEQPACKET {
        return Err(Errno::PROTOTYPE);
    }
    rustix::io::ioctl_fionbio(file, true)
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        let mut socket = ManuallyDrop::new(socket);
        // SAFETY: `socket` is never dropped and not looked at again, so each part of it is taken once.
        unsafe {
            drop(core::ptr::read(&raw const socket.account));
            drop(core::ptr::read(&raw const socket.ticket));
            ManuallyDrop::take(&mut socket.file)
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_harmless = self.owner != std::process::id() || !self.is_passed_on && self.ends_harmless();
        // SAFETY: `drop` takes the file, and runs at most once. The conversion to `OwnedFd`, which takes it too,
        // keeps `drop` from running.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        let held = Held::new(file, self.ticket.take());
        if is_harmless { drop(held) } else { deferred::close_socket(held) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::listener::Listener;

    #[test]
    fn a_socket_is_found_at_its_path_and_symbolic_links_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let [path, link, file] = ["socket", "link", "file"].map(|name| directory.path().join(name));
        let listener = Listener::bind(&path).expect("bound");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        std::fs::write(&file, "").expect("written");
        assert!(Socket::connect_entry(&path).is_ok());
        assert!(listener.accept().expect("accept").is_some());
        for other in [&link, &file] {
            assert_eq!(Socket::connect_entry(other).err(), Some(Errno::CONNREFUSED), "{other:?}");
        }
        assert_eq!(Socket::connect_entry(&directory.path().join("none")).err(), Some(Errno::NOENT));
        assert!(listener.accept().expect("accept").is_none());
    }

    #[test]
    fn without_proc_only_irreplaceable_sockets_are_connected_to() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let nowhere = Path::new("/nonexistent");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path).expect("bound");
        let mut outcome = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path(), mode).expect("chmod");
            Socket::connect_entry_by(&path, nowhere).map(drop)
        };
        assert_eq!([0o700, 0o755, 0o1777].map(&mut outcome), [Ok(()); 3]);
        assert_eq!([0o777, 0o775].map(&mut outcome), [Err(Errno::CONNREFUSED); 2]);
        if crate::process::user() == 0 {
            chown(&path, Some(54_300), None).expect("chown");
            assert_eq!([0o755, 0o1777].map(&mut outcome), [Ok(()), Err(Errno::CONNREFUSED)]);
            chown(directory.path(), Some(54_300), None).expect("chown");
            assert_eq!([0o755, 0o1777].map(&mut outcome), [Err(Errno::CONNREFUSED); 2]);
        } else {
            println!("not run: only root can give a file to another user; run this test as root");
        }
        drop(listener);
    }

    #[test]
    fn packets_sent_before_an_end_are_received() {
        let (a, b) = Socket::pair().expect("socketpair");
        a.send(b"unread", &[]).expect("send");
        b.send(b"last words", &[]).expect("send");
        let mut buffer = [0; 16];
        let (received, _) = a.look(&mut buffer).expect("it is there");
        // Between look and take. The end of a peer that has not read everything is first reported as an error.
        drop(OwnedFd::from(b));
        assert!(matches!(a.take(received), Ok(Received::Packet(10, _))));
        assert!(matches!(a.receive(&mut buffer), Ok(Received::Closed)));
    }

    #[test]
    fn a_receiver_that_stops_has_received_nothing_or_reports_what_it_has() {
        let (a, b) = Socket::pair().expect("socketpair");
        assert!(a.hear_no_more());
        assert_eq!(b.send(b"late", &[]), Err(Errno::PIPE));
        a.send(b"to be heard", &[]).expect("send");
        assert!(matches!(b.receive(&mut [0; 16]), Ok(Received::Packet(11, _))));
        for said in [b"early".as_slice(), b""] {
            let (a, b) = Socket::pair().expect("socketpair");
            b.send(said, &[]).expect("send");
            assert!(!a.hear_no_more(), "{said:?}");
        }
    }

    #[test]
    fn packets_and_descriptors_are_received_and_the_end_is_seen() {
        let (a, b) = Socket::pair().expect("socketpair");
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        a.send(b"hello", &[writer.as_fd()]).expect("send");
        drop(writer);
        let mut buffer = [0; 16];
        let Received::Packet(5, descriptors) = b.receive(&mut buffer).expect("receive") else {
            panic!("no packet")
        };
        assert_eq!(&buffer[..5], b"hello");
        rustix::io::write(&descriptors[0], b"!").expect("the descriptor works");
        assert_eq!(rustix::io::read(&reader, &mut buffer), Ok(1));
        assert!(matches!(b.receive(&mut buffer), Ok(Received::Nothing)));
        drop(a);
        assert_closed(&b);
    }

    /// Waits for the end. A child process of a concurrent test has copies of all descriptors until its `exec`.
    pub(crate) fn assert_closed(socket: &Socket) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while matches!(socket.receive(&mut [0; 16]), Ok(Received::Nothing)) {
            assert!(std::time::Instant::now() < deadline, "it is still open");
        }
        assert!(matches!(socket.receive(&mut [0; 16]), Ok(Received::Closed)));
    }

    #[test]
    fn a_connection_with_waiting_descriptors_is_not_harmless() {
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        let descriptors = [reader.as_fd()];
        // For each packet its text and whether it brings a descriptor; for the queue whether it is harmless.
        let queues: [(&[(&str, bool)], bool); 8] = [
            (&[], true),
            (&[("!", false)], true),
            (&[("!", false), ("long", false)], true),
            (&[("!", true)], false),
            (&[("!", false), ("!", true)], false),
            (&[("", false)], false),
            (&[("", true)], false),
            (&[("", false), ("", true)], false),
        ];
        for (queue, is_harmless) in queues {
            for is_gone in [false, true] {
                let (ours, theirs) = Socket::pair().expect("socketpair");
                for (text, brings) in queue {
                    let brought = if *brings { &descriptors[..] } else { &[] };
                    theirs.send(text.as_bytes(), brought).expect("sent");
                }
                if is_gone {
                    drop(theirs);
                    assert_eq!(ours.ends_harmless(), is_harmless, "{queue:?}");
                } else {
                    assert_eq!(ours.ends_harmless(), is_harmless, "{queue:?}");
                    assert_eq!(theirs.send(b"!", &[]).err(), Some(Errno::PIPE), "nothing comes any more");
                }
            }
        }
    }

    #[test]
    fn credentials_and_the_process_descriptor_are_ours() {
        let (a, _b) = Socket::pair().expect("socketpair");
        let credentials = a.credentials().expect("credentials");
        assert_eq!(credentials.uid, crate::process::user());
        assert_eq!(credentials.pid, i32::try_from(std::process::id()).expect("pid"));
        a.groups().expect("groups");
        a.watch_process().expect("pidfd");
    }

    #[test]
    fn queued_packets_are_bounded_by_the_final_read() {
        let (a, b) = Socket::pair().expect("socketpair");
        a.limit_queue();
        let sent = std::iter::repeat_with(|| a.send(b"!", &[])).take_while(Result::is_ok).count();
        assert!((16..=PACKETS_QUEUED_MAX).contains(&sent), "{sent} packets");
        drop(a);
        let mut buffer = [0; 16];
        for _ in 0..sent {
            assert!(matches!(b.receive(&mut buffer), Ok(Received::Packet(1, _))));
        }
        assert_closed(&b);
    }

    #[test]
    fn a_packet_longer_than_the_buffer_is_an_error_and_not_a_part() {
        let (a, b) = Socket::pair().expect("socketpair");
        a.send(&[1; 100], &[]).expect("send");
        assert_eq!(b.receive(&mut [0; 10]).err(), Some(Errno::MSGSIZE));
    }
}
