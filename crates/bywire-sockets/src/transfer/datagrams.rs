//! Sending and receiving on the program's UDP sockets.
//!
//! A receive takes what is due in memory, in the order in which each other end has sent it, and what is in the kernel's
//! queue. It sleeps in the kernel only, by the program's own kind of call, with the gates of its flows closed.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use bywire_ring::datagrams::{Next, Way};
use libc::{c_int, msghdr};

use crate::connection::policy;
use crate::datagram::address::{Address, NAME_BYTES, Name};
use crate::datagram::flow::{Flow, RULES, Segments};
use crate::datagram::readiness::{Asleep, spins};
use crate::datagram::sockets::{self, ReceivingSide, Socket};
use crate::os::iovec::{Buffers, Control};
use crate::os::{errno, kernel, own_call, real, sanitizer};
use crate::pairing::flows;
use crate::process::inline;

/// Flags of a send that a ring honours.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// Flags of a receive that a ring honours.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_WAITALL
    | libc::MSG_CMSG_CLOEXEC;
/// The kernel's queue is looked into at one receive of this many, whatever the rings have.
const KERNEL_EVERY: u32 = 64;
/// While the counts of a flow have not begun, one of so many receives looks whether the kernel's queue is empty.
const SETTLE_EVERY: u32 = 4;
/// A send into a full receive buffer waits for so long for its reader: about as long as the kernel's own send takes.
const FULL_NS: u64 = 2_000;
/// A send waits for so long for its reader to account for what the kernel was given: a reader that is awake takes what is in
/// memory first.
const BEHIND_NS: u64 = 50_000;
/// While a socket has no flow, the sender of one datagram of this many is looked at, once a few were.
const SAMPLE_EVERY: u32 = 16;
const SAMPLES_MIN: u32 = 64;

/// What a receive yields beside the bytes.
pub struct Received {
    /// The sender.
    pub name: Name,
    /// The length of the control data.
    pub control_bytes: usize,
    /// The flags of the message.
    pub flags: c_int,
    /// The program's own call has stored all of that itself.
    pub is_stored: bool,
    /// It came out of memory.
    is_from_memory: bool,
}

impl Received {
    /// Nothing yet.
    pub const NONE: Self =
        Self { name: Name::NONE, control_bytes: 0, flags: 0, is_stored: false, is_from_memory: false };
}

/// A send by any call, to `target` or, without one, to where the socket is connected. `is_special`: the message has control
/// data. `real` is that call as the program has made it.
pub fn send(
    fd: i32,
    parts: &Buffers,
    flags: c_int,
    target: Option<Option<Address>>,
    is_special: bool,
    real: &dyn Fn() -> isize,
) -> isize {
    let Some(socket) = sockets::socket(fd).filter(|socket| !socket.is_kernels()) else { return real() };
    if own_call::are_over() {
        return real();
    }
    let mut side = socket.sending();
    let Some(address) = target.unwrap_or_else(|| side.peer()) else {
        drop(side);
        return real();
    };
    let Some(flow) = side.flow_to(address) else {
        let is_due = !socket.is_left() && side.is_due(address);
        drop(side);
        let sent = real();
        errno::keep(|| after_kernel(&socket, is_due.then_some(address)));
        return sent;
    };
    let length = parts.total();
    let Some(segments) = flow.segments() else {
        drop(side);
        return real();
    };
    let is_simple = flags & !SEND_FLAGS == 0 && !is_special && !parts.has_null();
    let mut now_ns = kernel::now_ns();
    let began_ns = now_ns;
    let is_sent = is_simple
        && loop {
            // SAFETY: the lock is held.
            let sending = unsafe { flow.sending() };
            match sending.writer.way(&RULES, &segments.own, &segments.remote, length, now_ns) {
                Way::Ring => break send_in_memory(flow, &segments, parts, length),
                Way::Kernel => break false,
                Way::Behind if now_ns.wrapping_sub(began_ns) >= BEHIND_NS => {
                    sending.writer.give_up();
                    break false;
                }
                Way::Ended => {
                    flow.end();
                    break false;
                }
                // As in the kernel, nobody is told.
                Way::Full if now_ns.wrapping_sub(began_ns) >= FULL_NS => return length as isize,
                Way::Full | Way::Behind => {
                    core::hint::spin_loop();
                    now_ns = kernel::now_ns();
                }
            }
        };
    if is_sent {
        return length as isize;
    }
    // SAFETY: the lock is held.
    unsafe { flow.sending() }.writer.begin_kernel(&segments.own, now_ns);
    let generation = flow.generation.load(Ordering::Relaxed);
    drop(side);
    let sent = real();
    errno::keep(|| {
        let _side = socket.sending();
        // Another thread may have ended the flow meanwhile.
        if generation == flow.generation.load(Ordering::Relaxed)
            && let Some(segments) = flow.segments()
        {
            // SAFETY: the lock is held.
            unsafe { flow.sending() }.writer.end_kernel(&segments.own);
        }
    });
    sent
}

/// Copies a datagram into the ring. `false`: it goes through the kernel. The sending lock is held.
#[inline(always)]
fn send_in_memory(flow: &Flow, segments: &Segments, parts: &Buffers, length: usize) -> bool {
    // SAFETY: the lock is held.
    let sending = unsafe { flow.sending() };
    if !sending.back_with_memory(&segments.own, length) {
        return false;
    }
    let mut at = 0;
    parts.each(0, length, |base, piece| {
        sanitizer::reads(base, piece);
        // SAFETY: the program's bytes, as the program has passed them; within the datagram whose way was the ring.
        unsafe { sending.writer.stage(&RULES, &segments.own, at, base, piece) };
        at += piece;
    });
    sanitizer::sends();
    let is_sent = sending.writer.publish(&RULES, &segments.own, &segments.remote, length);
    if is_sent {
        sending.bytes += length as u64;
        flow.idle.store(0, Ordering::Relaxed);
    }
    is_sent
}

/// A datagram went through the kernel. A flow with `due` is offered, if there is one.
fn after_kernel(socket: &Socket, due: Option<Address>) {
    if let Some(address) = due {
        inline::examine_once();
        if policy::given_up().is_none() {
            flows::offer(socket, address);
        }
    } else if socket.has_flows() {
        flows::look_at_times(socket.record.looks());
    }
}

/// A receive by any call. `control` is the program's room for control data. `real` is that call as the program has made it.
pub fn receive(
    fd: i32,
    parts: &Buffers,
    flags: c_int,
    control: Option<&Control>,
    received: &mut Received,
    real: &dyn Fn() -> isize,
) -> isize {
    received.is_stored = true;
    let Some(socket) = sockets::socket(fd).filter(|socket| !socket.is_kernels()) else { return real() };
    if own_call::are_over() || flags & !RECEIVE_FLAGS != 0 {
        return real();
    }
    let mut call = Call { socket: &socket, parts, flags, control, received };
    if !socket.has_flows() {
        return call.receive_plainly(real);
    }
    call.received.is_stored = false;
    call.run()
}

/// One receive.
struct Call<'a> {
    socket: &'a Socket,
    parts: &'a Buffers<'a>,
    flags: c_int,
    control: Option<&'a Control>,
    received: &'a mut Received,
}

/// The result of one look.
enum Step {
    /// So many bytes were received.
    Done(isize),
    /// This error number.
    Failed(c_int),
    /// There is nothing in memory.
    Nothing,
    /// There is nothing, nor in the kernel.
    Empty,
}

impl Call<'_> {
    /// Receives for a socket without flows, and looks at some of the senders.
    fn receive_plainly(&mut self, real: &dyn Fn() -> isize) -> isize {
        let mut asleep = Asleep::default();
        asleep.enter(self.socket);
        let looks = self.socket.record.looks();
        if self.socket.is_left() || looks > SAMPLES_MIN && !looks.is_multiple_of(SAMPLE_EVERY) {
            return real();
        }
        self.received.is_stored = false;
        let received = self.ask_kernel(self.flags);
        errno::keep(|| drop(asleep));
        if received >= 0 {
            errno::keep(|| self.saw_sender());
        }
        received
    }

    /// The sender of what came through the kernel may be worth a flow.
    fn saw_sender(&self) {
        let Some(address) = self.received.name.address() else { return };
        let is_due = !self.socket.is_left() && self.socket.sending().is_due(address);
        after_kernel(self.socket, is_due.then_some(address));
    }

    fn run(&mut self) -> isize {
        loop {
            let step = self.look();
            let is_empty = matches!(step, Step::Empty);
            if let Some(result) = self.result(step) {
                return result;
            }
            let waits = self.flags & libc::MSG_DONTWAIT == 0
                && !errno::keep(|| kernel::is_nonblocking(self.socket.fd));
            if !waits {
                let step =
                    if is_empty { Step::Nothing } else { self.look_in_kernel(&self.socket.receiving()) };
                return self.result(step).unwrap_or_else(|| errno::fail(libc::EAGAIN));
            }
            if spins(|| self.socket.has_news(), None) {
                continue;
            }
            let mut asleep = Asleep::default();
            asleep.enter(self.socket);
            let mut step = self.look();
            if matches!(step, Step::Nothing) && !self.is_settled() {
                step = self.look_in_kernel(&self.socket.receiving());
            }
            if let Some(result) = self.result(step) {
                errno::keep(|| drop(asleep));
                return result;
            }
            let received = self.ask_kernel(self.flags);
            errno::keep(|| drop(asleep));
            if received >= 0 && self.flags & libc::MSG_PEEK == 0 {
                errno::keep(|| {
                    let side = self.socket.receiving();
                    self.count(&side);
                });
            }
            if received >= 0 {
                errno::keep(|| self.saw_sender());
            }
            return received;
        }
    }

    /// The result of the call after a look; `None`: it goes on.
    fn result(&mut self, step: Step) -> Option<isize> {
        match step {
            Step::Done(length) => {
                if !self.received.is_from_memory {
                    errno::keep(|| self.saw_sender());
                }
                Some(length)
            }
            Step::Failed(number) => Some(errno::fail(number)),
            Step::Nothing | Step::Empty => None,
        }
    }

    fn is_settled(&self) -> bool {
        let side = self.socket.receiving();
        side.open_flows().all(|(_, flow)| {
            // SAFETY: the lock is held.
            flow.segments().is_none_or(|found| unsafe { flow.receiving() }.reader.is_settled(&found.remote))
        })
    }

    /// Looks at the rings, and into the kernel where the rings say that something is there.
    fn look(&mut self) -> Step {
        let side = self.socket.receiving();
        let record = self.socket.record;
        if record.is_kernels_turn(KERNEL_EVERY) {
            match self.look_in_kernel(&side) {
                Step::Nothing | Step::Empty => {}
                step => return step,
            }
        }
        let mut is_awaited = false;
        for (slot, flow) in side.open_flows() {
            let Some(segments) = flow.segments() else { continue };
            // SAFETY: the lock is held.
            match unsafe { flow.receiving() }.reader.next(&RULES, &segments.remote) {
                Ok(Next::Due(length)) => {
                    record.begin_after(slot);
                    let step = self.take(flow, &segments, length);
                    side.open_gates();
                    return step;
                }
                Ok(Next::Kernel) => is_awaited = true,
                Ok(Next::Nothing) => {}
                Err(_) => flow.end(),
            }
        }
        if is_awaited { self.look_in_kernel(&side) } else { Step::Nothing }
    }

    /// Looks into the kernel's queue. What a ring has from the sender of its first datagram comes before that. The receiving
    /// lock is held.
    fn look_in_kernel(&mut self, side: &ReceivingSide) -> Step {
        let Some(_own) = own_call::begin() else { return Step::Nothing };
        side.note_ended();
        let mut name = Name::NONE;
        let mut message = message(&mut name);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: a message without room for bytes, and with room for an address.
        if unsafe { real::recvmsg(self.socket.fd, &raw mut message, flags) } < 0 {
            return match errno::last() {
                libc::EAGAIN => {
                    side.found_empty();
                    Step::Empty
                }
                number => Step::Failed(number),
            };
        }
        name.length = message.msg_namelen;
        if let Some(flow) = name.address().and_then(|address| side.flow_from(address))
            && let Some(segments) = flow.segments()
            // SAFETY: the lock is held.
            && let Ok(Next::Due(length)) = unsafe { flow.receiving() }.reader.next(&RULES, &segments.remote)
        {
            return self.take(flow, &segments, length);
        }
        let received = self.ask_kernel(self.flags | libc::MSG_DONTWAIT);
        if received < 0 {
            return match errno::last() {
                libc::EAGAIN => Step::Nothing,
                number => Step::Failed(number),
            };
        }
        if self.flags & libc::MSG_PEEK == 0 {
            self.count(side);
        }
        Step::Done(received)
    }

    /// Takes a datagram out of the ring. The receiving lock is held.
    fn take(&mut self, flow: &Flow, segments: &Segments, length: usize) -> Step {
        // SAFETY: the lock is held.
        let receiving = unsafe { flow.receiving() };
        let copied = self.parts.total().min(length);
        if self.parts.has_null() && self.parts.before_null(0, copied) < copied {
            receiving.reader.consume(&segments.own, length);
            return Step::Failed(libc::EFAULT);
        }
        let mut at = 0;
        self.parts.each(0, copied, |base, piece| {
            sanitizer::writes(base, piece);
            // SAFETY: the program's own buffer, as the program has passed it; within the datagram.
            unsafe { receiving.reader.peek(&RULES, &segments.remote, at, base, piece) };
            at += piece;
        });
        sanitizer::has_received();
        if self.flags & libc::MSG_PEEK == 0 {
            receiving.reader.consume(&segments.own, length);
            receiving.bytes += length as u64;
            flow.idle.store(0, Ordering::Relaxed);
        }
        self.received.name = receiving.name;
        self.received.is_from_memory = true;
        self.received.control_bytes = 0;
        self.received.flags = if copied < length { libc::MSG_TRUNC } else { 0 };
        Step::Done(if self.flags & libc::MSG_TRUNC != 0 { length } else { copied } as isize)
    }

    /// Counts what has come through the kernel. The receiving lock is held.
    fn count(&self, side: &ReceivingSide) {
        let Some(flow) = self.received.name.address().and_then(|address| side.flow_from(address)) else {
            return side.open_gates();
        };
        // SAFETY: the lock is held.
        let receiving = unsafe { flow.receiving() };
        receiving.name = self.received.name;
        if let Some(Segments { own, remote }) = flow.segments() {
            if !receiving.reader.count(&own, &remote) {
                flow.end();
            }
            receiving.unsettled = receiving.unsettled.wrapping_add(1);
            if !receiving.reader.counts() && receiving.unsettled.is_multiple_of(SETTLE_EVERY) {
                self.settle(side);
            }
        }
        side.open_gates();
    }

    /// Looks whether the kernel's queue is empty, so that the counts of a flow can begin.
    fn settle(&self, side: &ReceivingSide) {
        let Some(_own) = own_call::begin() else { return };
        side.note_ended();
        if kernel::ready(self.socket.fd, libc::POLLIN) == 0 {
            side.found_empty();
        }
    }

    /// Receives through the kernel.
    fn ask_kernel(&mut self, flags: c_int) -> isize {
        let (list, count) = self.parts.as_list();
        let mut name = Name::NONE;
        let mut message = message(&mut name);
        message.msg_iov = list.cast_mut();
        message.msg_iovlen = count;
        if let Some(control) = self.control {
            (message.msg_control, message.msg_controllen) = control.room();
        }
        // SAFETY: the program's own buffers, as the program has passed them, and room for an address.
        let received = unsafe { real::recvmsg(self.socket.fd, &raw mut message, flags) };
        if received >= 0 {
            name.length = message.msg_namelen;
            self.received.name = name;
            self.received.control_bytes = message.msg_controllen;
            self.received.flags = message.msg_flags & !libc::MSG_CMSG_CLOEXEC;
        }
        received
    }
}

/// A message without anything, and with room for an address.
fn message(name: &mut Name) -> msghdr {
    // SAFETY: zeros are a valid message.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = (&raw mut name.bytes).cast();
    message.msg_namelen = NAME_BYTES as libc::socklen_t;
    message
}

/// Returns whether the UDP socket behind `fd`, if it is one, has or had flows.
pub fn has_flows(fd: c_int) -> bool {
    sockets::are_any() && sockets::socket(fd).is_some_and(|socket| socket.has_flows())
}

/// `FIONREAD`: the length of the first datagram in memory, if one is due there.
pub fn waiting_bytes(fd: i32) -> Option<usize> {
    let socket = sockets::socket(fd).filter(Socket::has_flows)?;
    let side = socket.receiving();
    side.open_flows().find_map(|(_, flow)| {
        // SAFETY: the lock is held.
        match unsafe { flow.receiving() }.reader.next(&RULES, &flow.segments()?.remote) {
            Ok(Next::Due(length)) => Some(length),
            _ => None,
        }
    })
}
