//! How a connection leaves the kernel: it is offered to the pairing service, its segments are mapped, and both ends get
//! ready.

use core::mem::MaybeUninit;
use core::net::IpAddr;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use bywire_pairing::protocol::{
    Kind, PACKET_BYTES, Packet, TIMEOUT_MS, VERSION, Verdict, address_words, link,
};
use bywire_pairing::reason::Reason;
use bywire_ring::passage;
use bywire_ring::stream::{News, SEGMENT_BYTES, Window};

use crate::connection::sockets::{self, STREAM, Socket};
use crate::connection::{idle_memory, options, owed, policy};
use crate::datagram::{answers, sockets as datagram};
use crate::epoll::control;
use crate::memory::arena::{self, SharedSocket, stage};
use crate::memory::lock::{Lock, rank};
use crate::memory::segment::{self, Files};
use crate::memory::{descriptors, vforked};
use crate::os::{errno, kernel, own_call, pid, real};
use crate::pairing::seek;
use crate::wakeup::{doorbell, peers};

/// A service that does not answer is not asked again for this time.
const REST_NS: u64 = 1_000_000_000;
/// The user number that stands for users unknown to this user namespace, such as the machine's root.
const UNMAPPED: u32 = 65_534;
/// Answers are checked for once in this many calls on sockets that wait for one. The service sends only a few more
/// packets than that to a program that does not read.
pub(super) const LOOK_EVERY: u32 = 32;

static CALLS_WAITING: AtomicU32 = AtomicU32::new(0);
pub(super) static SERVICE: AtomicI32 = AtomicI32::new(-1);
pub(super) static TALKING: Lock<{ rank::TALKING }> = Lock::new();
static REST_UNTIL: AtomicU64 = AtomicU64::new(0);
static QUESTIONS: AtomicU64 = AtomicU64::new(0);
/// The question that the service has not answered; 0: none.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// Time when the service last said that it listens.
static LEAVE_NS: AtomicU64 = AtomicU64::new(0);
/// The offer that the service has not answered; 0: none.
pub(super) static OFFERED: AtomicU64 = AtomicU64::new(0);
/// The links that an engine serves for this user, as the service has said last.
static LINKS: AtomicU8 = AtomicU8::new(0);
/// The memory of this program's rings that the service knows of.
pub(super) static NOTED_BYTES: AtomicU64 = AtomicU64::new(0);
/// The service's address: the bytes, and their length, which is published last.
static PATH: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
static PATH_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets where the service listens, and when to ask it.
pub fn configure(path: &[u8], calls_min: Option<u32>) {
    if let Some(calls) = calls_min {
        policy::configure(calls);
    }
    if path.is_empty() || path.len() > 107 {
        return;
    }
    for (place, bytes) in PATH.iter().zip(path.chunks(4)) {
        let mut word = [0; 4];
        word.iter_mut().zip(bytes).for_each(|(target, byte)| *target = *byte);
        place.store(u32::from_ne_bytes(word), Ordering::Relaxed);
    }
    // Release: pairs with the acquire loads of the length. The path is written before.
    PATH_BYTES.store(path.len(), Ordering::Release);
}

/// Waits for a thread that is about to make a connection carried. Afterwards none does so for sockets that were told to
/// stay before.
pub fn await_preparation() {
    drop(TALKING.hold_undisturbed());
}

/// From here on there is no service for this process, and nothing can be carried.
pub fn unconfigure() {
    PATH_BYTES.store(0, Ordering::Relaxed);
    disconnect();
}

/// Whether anything can be carried at all.
pub fn is_configured() -> bool {
    // Acquire: pairs with the release store in `configure`. The path was written before.
    PATH_BYTES.load(Ordering::Acquire) > 0
}

/// Called at the beginning of every other call that moves data over a socket that is not carried. `before_offer` may find
/// that nothing is to be carried.
#[inline(always)]
pub fn consider(socket: &Socket, before_offer: impl FnOnce()) {
    let calls = socket.shared.calls.fetch_add(1, Ordering::Relaxed);
    // Acquire: pairs with the stores of the stage in `answered` and `prepare`. What was mapped comes before.
    match socket.shared.stage.load(Ordering::Acquire) {
        stage::PLAIN if calls >= policy::calls_min() && socket.shared.never.load(Ordering::Relaxed) == 0 => {
            before_offer();
            quietly(|| offer(socket));
        }
        stage::WAITING => {
            if calls.is_power_of_two()
                || CALLS_WAITING.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY)
            {
                quietly(look);
            }
            if LINKS.load(Ordering::Relaxed) & link::FABRIC != 0 && seek::is_far_due(socket) {
                quietly(|| seek_far(socket));
            }
            if seek::is_due(calls) {
                quietly(|| seek_engine(socket));
            }
        }
        stage::PAIRED if calls.is_multiple_of(4) => quietly(|| prepare(socket)),
        _ => {}
    }
}

/// Does work that the program must not notice, unless the library may make no calls any more. A child in its parent's
/// memory does not: the descriptors that it would get are not its parent's.
pub(super) fn quietly(work: impl FnOnce()) {
    if !vforked::is_child()
        && let Some(_own) = own_call::begin()
    {
        errno::keep(work);
    }
}

#[inline(never)]
fn offer(socket: &Socket) {
    let shared = socket.shared;
    if shared.never.load(Ordering::Relaxed) != 0 || !is_configured() {
        return;
    }
    // Acquire: pairs with the changes of the count in `sockets::count_fork` and `sockets::let_go`.
    if shared.processes.load(Ordering::Acquire) != 1 {
        return hinder(shared, Reason::Shared);
    }
    // A failed attempt is not repeated at once. No call of a connection that is required is one of the first again.
    if shared.is_required.load(Ordering::Relaxed) == 0 {
        shared.calls.store(0, Ordering::Relaxed);
    }
    let Some(account) = socket.byte_counts() else {
        return socket.stay(Reason::Refused);
    };
    if !account.is_established {
        return hinder(shared, Reason::Short);
    }
    // SeqCst, both: pair with the additions in `sockets::KernelCall`. The byte counts are complete when nobody is
    // inside.
    let is_quiet = shared.kernel_readers.load(Ordering::SeqCst) == 0
        && shared.kernel_writers.load(Ordering::SeqCst) == 0;
    shared.hindered.store(0, Ordering::Relaxed);
    if is_quiet && !account.is_steady {
        return;
    }
    if is_quiet && !accounts_agree(socket, &account) {
        return socket.stay(Reason::Unseen);
    }
    if options::are_any_set(socket.fd) {
        return socket.stay(Reason::Option);
    }
    // An earlier program may have requested that, or an inline system call.
    if kernel::is_signalled(socket.fd) {
        return socket.stay(Reason::Signals);
    }
    let _held = TALKING.hold_undisturbed();
    // Acquire: pairs with the release stores of the stage in `answered`.
    if shared.stage.load(Ordering::Acquire) != stage::PLAIN || !connect() {
        return;
    }
    if !may_offer() {
        return;
    }
    idle_memory::set_bound();
    let Some((files, address)) = segment::make() else {
        return socket.stay(Reason::Memory);
    };
    // SAFETY: mapped with this length above.
    STREAM.found(&unsafe { Window::new(address, SEGMENT_BYTES) });
    // AcqRel: pairs with the acquire loads of `own` in `sockets::mapped` and the swap in `sockets::unmap_now`. The
    // segment is initialised before.
    let stale = socket.local.own.swap(address, Ordering::AcqRel);
    if !stale.is_null() {
        // SAFETY: an offer that a fork has withdrawn: nobody has used its segment.
        unsafe { segment::remove(stale) };
    }
    if socket.local.offered.swap(1, Ordering::Relaxed) != 0 {
        // A fork has withdrawn an offer without telling the service. This is another offer.
        say(&Packet::new(Kind::End, token(socket)), &[]);
        shared.generation.fetch_add(1, Ordering::Relaxed);
    }
    shared.backed.store(0, Ordering::Relaxed);
    shared.keeps_memory.store(0, Ordering::Relaxed);
    shared.offered_ns.store(kernel::now_ns(), Ordering::Relaxed);
    // Release: pairs with the acquire loads of the stage. What is offered is mapped before.
    shared.stage.store(stage::WAITING, Ordering::Release);
    let token = token(socket);
    let packet = Packet::new(Kind::Offer, token);
    let is_sent = match files.rest {
        -1 => say(&packet, &[socket.fd, files.head]),
        rest => say(&packet, &[socket.fd, files.head, rest]),
    };
    drop(files);
    if is_sent {
        OFFERED.store(token, Ordering::Relaxed);
        listen_for(|packet| packet.kind == Kind::Answer && packet.token == token);
    }
}

/// Asks for an engine to relay what this connection sends, if that pays and there is one. Its offer goes on waiting
/// until the service answers.
#[inline(never)]
fn seek_engine(socket: &Socket) {
    if !seek::pays(socket) {
        return;
    }
    let _held = TALKING.hold_undisturbed();
    // Acquire: pairs with the release stores of the stage in `answered`.
    if socket.shared.stage.load(Ordering::Acquire) == stage::WAITING
        && connect()
        && may_offer()
        && LINKS.load(Ordering::Relaxed) & link::RELAY != 0
    {
        let token = token(socket);
        say(&Packet { code: link::RELAY, ..Packet::new(Kind::Seek, token) }, &[socket.fd]);
        if seek::is_for_all() {
            listen_for(|packet| packet.kind == Kind::Answer && packet.token == token);
        }
    }
}

/// Asks for an engine to carry this connection to another machine, if its other end may be there. Its offer goes on waiting
/// until the service answers.
#[inline(never)]
fn seek_far(socket: &Socket) {
    if !seek::may_be_far(socket) {
        return;
    }
    let _held = TALKING.hold_undisturbed();
    // Acquire: pairs with the release stores of the stage in `answered`.
    if socket.shared.stage.load(Ordering::Acquire) == stage::WAITING && connect() && may_offer() {
        say(&Packet { code: link::FABRIC, ..Packet::new(Kind::Seek, token(socket)) }, &[socket.fd]);
    }
}

/// Asks where an address is. `None`: the service does not answer.
pub fn locate(address: IpAddr, end_ns: u64) -> Option<u8> {
    let mut found = None;
    quietly(|| {
        let _held = TALKING.hold_undisturbed();
        if !connect() {
            return;
        }
        let question = QUESTIONS.fetch_add(1, Ordering::Relaxed) + 1;
        let [first, second] = address_words(address);
        if say(&Packet { first, second, ..Packet::new(Kind::Locate, question) }, &[]) {
            listen_within(left_ns(end_ns), |packet| {
                let is_answer = packet.kind == Kind::Located && packet.token == question;
                found = found.or(is_answer.then_some(packet.code));
                is_answer
            });
        }
    });
    found
}

/// Has an engine carry this connection to another machine, before any byte of it has gone through the kernel. Returns whether it
/// is carried by now. The two engines may not have agreed yet.
pub fn carry(socket: &Socket, end_ns: u64) -> bool {
    // The kernel alone honours these.
    if !seek::has_no_option(socket) {
        return false;
    }
    let mut has_sought = false;
    loop {
        // Acquire: pairs with the release stores of the stage in `offer` and `answered`.
        match socket.shared.stage.load(Ordering::Acquire) {
            stage::PLAIN => quietly(|| offer(socket)),
            stage::WAITING => quietly(|| has_sought |= require_far(socket, has_sought, end_ns)),
            stage::PAIRED => quietly(|| prepare(socket)),
            stage => return stage == stage::CARRIED,
        }
        let is_hopeless = socket.shared.never.load(Ordering::Relaxed) != 0
            || socket.shared.hindered.load(Ordering::Relaxed) != 0
            || !is_configured();
        // Acquire: pairs with the store of `CARRIED` in `prepare`.
        let is_carried = socket.shared.stage.load(Ordering::Acquire) == stage::CARRIED;
        if is_carried || is_hopeless || kernel::now_ns() >= end_ns {
            return is_carried;
        }
        // Acquire: pairs with the release stores of the stage in `offer` and `answered`.
        if matches!(socket.shared.stage.load(Ordering::Acquire), stage::PLAIN | stage::PAIRED) {
            // The service has an unanswered offer of this program, or a thread sleeps in the kernel with it.
            // SAFETY: no descriptors.
            unsafe { real::poll(ptr::null_mut(), 0, 1) };
        }
    }
}

/// Asks for an engine to carry this connection to another machine, unless it was asked, and waits for the answer. Returns whether it was
/// asked.
#[inline(never)]
fn require_far(socket: &Socket, has_sought: bool, end_ns: u64) -> bool {
    let _held = TALKING.hold_undisturbed();
    // Acquire: pairs with the release stores of the stage in `answered`.
    if socket.shared.stage.load(Ordering::Acquire) != stage::WAITING || !connect() {
        return false;
    }
    let token = token(socket);
    let seek = Packet { code: link::FABRIC, first: 1, ..Packet::new(Kind::Seek, token) };
    let is_asked = has_sought || may_offer() && say(&seek, &[socket.fd]);
    if is_asked {
        listen_within(left_ns(end_ns), |packet| {
            packet.kind == Kind::Answer
                && packet.token == token
                && Verdict::of(packet.code) != Some(Verdict::Waiting)
        });
    }
    is_asked
}

/// Notes why a socket is not offered now. A later call may offer it.
fn hinder(shared: &SharedSocket, reason: Reason) {
    shared.hindered.store(reason as u8 + 1, Ordering::Relaxed);
}

/// Whether the service listens just now, without an unanswered offer. It is waited for once; a later answer is read
/// later.
pub(super) fn may_offer() -> bool {
    while hear().is_some() {}
    if OFFERED.load(Ordering::Relaxed) != 0 {
        return false;
    }
    if !has_leave() {
        if ASKED.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let question = QUESTIONS.fetch_add(1, Ordering::Relaxed) + 1;
        if !say(&Packet::new(Kind::Ask, question), &[]) {
            return false;
        }
        ASKED.store(question, Ordering::Relaxed);
        listen_for(|packet| packet.kind == Kind::Go && packet.token == question);
    }
    has_leave() && LEAVE_NS.swap(0, Ordering::Relaxed) != 0
}

fn has_leave() -> bool {
    kernel::now_ns() < LEAVE_NS.load(Ordering::Relaxed).saturating_add(TIMEOUT_MS as u64 * 1_000_000)
}

/// The name of this use of this record.
pub(super) fn token(socket: &Socket) -> u64 {
    u64::from(socket.shared.generation.load(Ordering::Relaxed)) << 32 | u64::from(socket.index)
}

/// Whether all bytes have passed through hooked calls.
fn accounts_agree(socket: &Socket, account: &kernel::ByteCounts) -> bool {
    // SeqCst, both: pair with the additions in `send::count` and `receive::count`, in calls that had left before
    // `prepare` found nobody inside.
    socket.shared.sent.load(Ordering::SeqCst) == account.given
        && socket.shared.received.load(Ordering::SeqCst) == account.taken
}

/// Handles the packets that the service has sent meanwhile.
#[inline(never)]
pub(super) fn look() {
    let _held = TALKING.hold_undisturbed();
    while hear().is_some() {}
}

/// Waits for a certain packet, and handles all that come before it.
pub(super) fn listen_for(wanted: impl FnMut(&Packet) -> bool) -> bool {
    listen_within(TIMEOUT_MS as u64 * 1_000_000, wanted)
}

fn left_ns(end_ns: u64) -> u64 {
    end_ns.saturating_sub(kernel::now_ns())
}

fn listen_within(limit_ns: u64, mut wanted: impl FnMut(&Packet) -> bool) -> bool {
    let end = kernel::now_ns().saturating_add(limit_ns);
    loop {
        while let Some(packet) = hear() {
            if wanted(&packet) {
                return true;
            }
        }
        let service = SERVICE.load(Ordering::Relaxed);
        let left_ns = end.saturating_sub(kernel::now_ns());
        // Rounded up, so that the last waits are not zero-length ones in a loop.
        if service < 0
            || left_ns == 0
            || kernel::wait(service, libc::POLLIN, left_ns.div_ceil(1_000_000) as i32).is_err()
        {
            return false;
        }
    }
}

/// The service is absent or does not answer: everything stays in the kernel for a while.
fn rest() {
    REST_UNTIL.store(kernel::now_ns() + REST_NS, Ordering::Relaxed);
}

pub(super) fn connect() -> bool {
    let service = SERVICE.load(Ordering::Relaxed);
    if service >= 0 {
        return descriptors::kind(service) == descriptors::DescriptorKind::Hidden;
    }
    if kernel::now_ns() < REST_UNTIL.load(Ordering::Relaxed) || vforked::is_child() {
        return false;
    }
    let Some((doorbell, page)) = doorbell::own() else {
        rest();
        return false;
    };
    let (address, length) = address();
    // SAFETY: a valid address; every result is checked.
    let fd = unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = real::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 {
            rest();
            return false;
        }
        if real::connect(fd, (&raw const address).cast(), length) != 0 || !is_trusted(fd) {
            real::close(fd);
            rest();
            return false;
        }
        fd
    };
    SERVICE.store(doorbell::hide_high(fd), Ordering::Relaxed);
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() };
    say(&Packet { number: pid as u32, first: VERSION, ..Packet::new(Kind::Hello, 0) }, &[doorbell, page])
}

/// Whether the service at the other end belongs to this user, or to root. The program's own threads use and close what
/// it passes on, and a close may block. So the service must have checked the kind of every file, as a service of this
/// [`VERSION`] does.
fn is_trusted(fd: i32) -> bool {
    let mut credentials = [0; size_of::<libc::ucred>()];
    let found = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials);
    // Process, user and group, of four bytes each.
    let user = credentials.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    found == Some(credentials.len()) && user.is_some_and(|user| [own, 0, UNMAPPED].contains(&user))
}

fn address() -> (libc::sockaddr_un, libc::socklen_t) {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    // Acquire: pairs with the release store in `configure`. The path was written before.
    let length = PATH_BYTES.load(Ordering::Acquire);
    let bytes = PATH.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    address
        .sun_path
        .iter_mut()
        .zip(bytes.take(length))
        .for_each(|(target, byte)| *target = byte as libc::c_char);
    (address, (size_of::<u16>() + length + 1) as libc::socklen_t)
}

fn disconnect() {
    for pending in [&ASKED, &OFFERED, &LEAVE_NS, &NOTED_BYTES] {
        pending.store(0, Ordering::Relaxed);
    }
    let service = SERVICE.swap(-1, Ordering::Relaxed);
    if service >= 0 && descriptors::kind(service) == descriptors::DescriptorKind::Hidden {
        doorbell::discard(service);
    }
}

const DESCRIPTORS_MAX: usize = 4;
const CONTROL_BYTES: usize = 64;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends a packet. `false`: the connection to the service has ended.
pub(super) fn say(packet: &Packet, descriptors: &[i32]) -> bool {
    let service = SERVICE.load(Ordering::Relaxed);
    if service < 0 || descriptors.len() > DESCRIPTORS_MAX {
        return false;
    }
    let mut bytes = packet.encode();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: zeros are a valid message. All its parts live until the call is over, and the control buffer has more
    // room than these descriptors need.
    let sent = unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            let payload = size_of_val(descriptors) as u32;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            ptr::copy_nonoverlapping(
                descriptors.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                payload as usize,
            );
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let mut sent = real::sendmsg(service, &raw const message, flags);
        // A service under attack takes descriptors only from programs that it has accepted, which takes a moment.
        let mut tries_left = if packet.kind == Kind::Hello { TIMEOUT_MS } else { 0 };
        while sent < 0 && errno::last() == libc::EPERM && tries_left > 0 {
            real::poll(ptr::null_mut(), 0, 1);
            tries_left -= 1;
            sent = real::sendmsg(service, &raw const message, flags);
        }
        sent
    };
    if sent == bytes.len() as isize {
        return true;
    }
    disconnect();
    rest();
    false
}

/// Handles the next packet that has arrived; `None`: there is none.
fn hear() -> Option<Packet> {
    let service = SERVICE.load(Ordering::Relaxed);
    if service < 0 {
        return None;
    }
    let mut bytes = [0u8; PACKET_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut descriptors = [-1; DESCRIPTORS_MAX];
    // SAFETY: as in `say`. What the kernel has written is read within the length that it reports.
    let received = unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of_val(&descriptors) as u32) as usize;
        let received = real::recvmsg(service, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if received >= 0
            && !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let payload = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let payload = payload.min(size_of_val(&descriptors));
            ptr::copy_nonoverlapping(libc::CMSG_DATA(header), descriptors.as_mut_ptr().cast::<u8>(), payload);
        }
        received
    };
    if received < 0 && matches!(errno::last(), libc::EAGAIN | libc::EINTR) {
        return None;
    }
    let packet = bytes.get(..received.max(0) as usize).and_then(Packet::decode);
    match packet {
        Some(packet) if packet.kind == Kind::Answer => {
            let _ = OFFERED.compare_exchange(packet.token, 0, Ordering::Relaxed, Ordering::Relaxed);
            match datagram::is_flow(packet.token) {
                true => answers::answered(&packet, descriptors),
                false => answered(&packet, descriptors),
            }
        }
        Some(packet) if packet.kind == Kind::Doorbell => {
            let [doorbell, others @ ..] = descriptors;
            others.iter().for_each(|fd| close(*fd));
            doorbell::add_timer(packet.token, doorbell);
        }
        Some(packet) if packet.kind == Kind::Withdraw => {
            descriptors.iter().for_each(|fd| close(*fd));
            doorbell::remove_timer(packet.token);
            // Nobody waits for the answer: the service closes the doorbell when this program has ended at the latest.
            say(&Packet::new(Kind::Withdrawn, packet.token), &[]);
        }
        Some(packet) => {
            if packet.kind == Kind::Go && packet.token == ASKED.load(Ordering::Relaxed) {
                LINKS.store(packet.code, Ordering::Relaxed);
                ASKED.store(0, Ordering::Relaxed);
                LEAVE_NS.store(kernel::now_ns(), Ordering::Relaxed);
            }
            descriptors.iter().for_each(|fd| close(*fd));
        }
        None => {
            descriptors.iter().for_each(|fd| close(*fd));
            disconnect();
            rest();
        }
    }
    packet
}

fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: received for this process alone.
        unsafe { real::close(fd) };
    }
}

/// Handles the answer to an offer.
fn answered(packet: &Packet, descriptors: [i32; DESCRIPTORS_MAX]) {
    let [head, doorbell, page, rest] = descriptors;
    let socket = sockets::by_index(-1, packet.token as u32);
    let socket = socket.filter(|socket| {
        token(socket) == packet.token
            // Acquire, these four: pair with the exchange of `used` in `sockets::track`, the counts of processes, the
            // release store of `WAITING` and the swap of `own`.
            && socket.shared.used.load(Ordering::Acquire) == 1
            && socket.shared.processes.load(Ordering::Acquire) == 1
            && socket.shared.stage.load(Ordering::Acquire) == stage::WAITING
            && !socket.local.own.load(Ordering::Acquire).is_null()
    });
    let Some(socket) = socket else {
        return descriptors.iter().for_each(|fd| close(*fd));
    };
    let reason = match Verdict::of(packet.code) {
        Some(Verdict::Paired) => {
            let is_other_user = packet.first != 0;
            if is_other_user && !doorbell::has_timer(packet.first) {
                descriptors.iter().for_each(|fd| close(*fd));
                socket.stay(Reason::OtherUser);
                // Release: pairs with the acquire loads of the stage. The answer was handled before.
                socket.shared.stage.store(stage::PLAIN, Ordering::Release);
                return;
            }
            let remote = segment::accept(&Files { head, rest });
            let peer = peers::add(packet.number, packet.first, doorbell, page);
            let is_sound = !remote.is_null()
                // SAFETY: mapped with this length above.
                && STREAM.is_ours(&unsafe { Window::new(remote, SEGMENT_BYTES) });
            if let Some(peer) = peer.filter(|_| is_sound) {
                // Relaxed, all: before the stage.
                socket.shared.is_other_users.store(is_other_user.into(), Ordering::Relaxed);
                socket.shared.touched.store(0, Ordering::Relaxed);
                socket.shared.link.store(packet.second as u8, Ordering::Relaxed);
                socket.shared.watched_sent.store(0, Ordering::Relaxed);
                // Release: pairs with the acquire load in `Connection::tell`. The peer is added before.
                socket.local.peer.store(peer, Ordering::Release);
                socket.local.remote.store(remote, Ordering::Release);
                socket.shared.stage.store(stage::PAIRED, Ordering::Release);
                return;
            }
            peer.into_iter().for_each(peers::release);
            if !remote.is_null() {
                // SAFETY: mapped with this length above, and nobody else knows it.
                unsafe { libc::munmap(remote.cast(), SEGMENT_BYTES) };
            }
            Reason::Memory
        }
        Some(Verdict::Waiting) => return descriptors.iter().for_each(|fd| close(*fd)),
        // The offer is repeated later.
        Some(Verdict::Full) => {
            descriptors.iter().for_each(|fd| close(*fd));
            // Release: pairs with the acquire loads of the stage. The answer was handled before.
            return socket.shared.stage.store(stage::PLAIN, Ordering::Release);
        }
        // The service has forgotten the offer. The next call repeats it.
        Some(Verdict::Again) => {
            descriptors.iter().for_each(|fd| close(*fd));
            socket.shared.calls.store(policy::calls_min(), Ordering::Relaxed);
            return socket.shared.stage.store(stage::PLAIN, Ordering::Release);
        }
        Some(Verdict::OtherUser) => Reason::OtherUser,
        Some(Verdict::Device) => Reason::Device,
        Some(Verdict::Namespace) => Reason::Namespace,
        Some(Verdict::Memory) => Reason::Memory,
        _ => Reason::Refused,
    };
    socket.stay(reason);
    // Release: pairs with the acquire loads of the stage. The answer was handled before.
    socket.shared.stage.store(stage::PLAIN, Ordering::Release);
}

/// Gets this end ready, if the kernel's counts equal the library's and nobody sleeps where a ring is not heard.
#[inline(never)]
fn prepare(socket: &Socket) {
    let shared = socket.shared;
    // Acquire: pairs with the changes of the count in `sockets::count_fork` and `sockets::let_go`.
    if shared.never.load(Ordering::Relaxed) != 0 || shared.processes.load(Ordering::Acquire) != 1 {
        return;
    }
    // A connection that hooked calls never wait for would wait without being woken.
    if kernel::is_nonblocking(socket.fd)
        && shared.awaited.load(Ordering::Relaxed) == 0
        && shared.is_required.load(Ordering::Relaxed) == 0
    {
        return;
    }
    let _held = TALKING.hold_undisturbed();
    // Checked again, because `await_preparation` waits for the lock only. Acquire: pairs with the release store of `PAIRED` in
    // `answered`.
    if shared.never.load(Ordering::Relaxed) != 0
        || shared.stage.load(Ordering::Acquire) != stage::PAIRED
        || !control::make_ready(socket)
    {
        return;
    }
    // Before any byte can go into the ring.
    if let Some(connection) = sockets::by_index(socket.fd, socket.index).and_then(|its| its.mapped().ok()) {
        connection.adopt_bounds();
    }
    let counts = [&shared.kernel_readers, &shared.kernel_pollers, &shared.kernel_writers];
    let sleepers = !passage::close(&shared.stage, stage::CARRIED, counts);
    // SeqCst: pairs with the fence in `control`'s `catch_up`. Either a new registration sees the stage there, or
    // `control::convert` finds it in the socket's list.
    fence(Ordering::SeqCst);
    let account = socket.byte_counts();
    let agrees = !sleepers
        && account.as_ref().is_some_and(|account| {
            account.is_established && account.is_steady && accounts_agree(socket, account)
        });
    if !agrees {
        passage::open(&shared.stage, stage::PAIRED);
        match account {
            _ if sleepers => {}
            // The other end has gone meanwhile, or either has shut down.
            Some(account) if !account.is_established => socket.stay(Reason::Short),
            Some(account) if !account.is_steady => {}
            _ => socket.stay(Reason::Unseen),
        }
        return;
    }
    if let Some(connection) =
        sockets::by_index(socket.fd, socket.index).and_then(|socket| socket.mapped().ok())
    {
        control::convert(&connection);
        STREAM.prepare(&connection.own);
        if connection.is_far() {
            // The engine opens the way once both programs are ready. From here on waits check whether it lives.
            owed::must_check_engine();
            connection.tell(News::Route);
        }
    }
}

/// Connects before this process gives up the privileges that it needs to reach the service. A child that was made by a
/// raw system call and runs in its parent's memory gives up only its own, as Chromium's does. It has no thread-local
/// variables either, so nothing here may access one before that is known.
pub fn connect_early() {
    if !is_configured() || !pid::is_noted() {
        return;
    }
    quietly(|| {
        let _held = TALKING.hold_undisturbed();
        connect();
    });
}

/// A child connects to the service by itself.
pub fn after_fork_in_child() {
    TALKING.reset();
    disconnect();
    REST_UNTIL.store(0, Ordering::Relaxed);
    sockets::each_held(|socket, _| socket.local.offered.store(0, Ordering::Relaxed));
}

/// The library's own descriptor `old` now has the number `new`.
pub fn renumber(old: i32, new: i32) {
    let _ = SERVICE.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
}

/// Whether anything can be mapped at all.
pub fn is_possible() -> bool {
    is_configured() && arena::shared().is_some()
}
