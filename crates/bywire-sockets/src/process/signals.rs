//! The program's signal handlers wait while a lock of ours is held, for a copy's time.
//!
//! Handlers are called through [`deliver`]. One that comes while this thread holds a lock is put aside with all
//! others blocked, and sent to the thread anew when the lock is free: so no handler finds a connection half changed, and
//! none that jumps out of a call leaves a lock behind. Nothing of this costs a system call unless a signal comes.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{siginfo_t, sigset_t, ucontext_t};

use crate::connection::sockets::{self, Socket};
use crate::memory::lock::{Lock, rank};
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::signal_deferral::{self, THREAD};
use crate::os::{errno, own_call, real};

const SIGNALS: usize = 65;

/// What the program has asked for, where it is a function.
struct Handler {
    /// 0: not ours.
    function: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static HANDLERS: [Handler; SIGNALS] =
    [const { Handler { function: AtomicUsize::new(0), flags: AtomicI32::new(0), mask: AtomicU64::new(0) } };
        SIGNALS];
static CHANGING: Lock<{ rank::HANDLERS }> = Lock::new();

/// The thread that was changing a handler stayed behind.
pub fn after_fork_in_child() {
    CHANGING.reset();
}

/// What a thread does wrong itself cannot wait: the same instruction would fail again.
fn is_fault(number: c_int, information: *const siginfo_t) -> bool {
    // SAFETY: the kernel's own.
    signal_deferral::FAULTS.contains(&number) && unsafe { (*information).si_code } > 0
}

/// Every handler of the program's is this one, for the kernel. All signals are blocked while it begins.
extern "C-unwind" fn deliver(number: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let (place, stack) = stacks(context);
    let is_put_aside = THREAD.with(|thread| {
        thread.stack.set(stack);
        if thread.held.get() == 0 || is_fault(number, information) {
            return false;
        }
        if thread.is_waiting.get() {
            // One waits already: this one waits in the kernel, blocked.
            block_rest(context, 1 << (number - 1));
            // SAFETY: the kernel's own structure, as it told it.
            unsafe { signal_deferral::send_again(number, information) };
            return true;
        }
        // SAFETY: the kernel's own structure, and this thread's.
        unsafe { (*thread.information.get()).write(*information) };
        thread.number.set(number);
        // SAFETY: no arguments.
        thread.process.set(unsafe { libc::getpid() });
        thread.is_waiting.set(true);
        keep_mask(thread, block_rest(context, 0));
        true
    });
    if !is_put_aside {
        let (held, was_waiting) = THREAD.with(|thread| (thread.held.get(), thread.is_waiting.get()));
        let fault = (held > 0).then(|| begin_fault(place, held));
        call(number, information, context);
        if let Some(noted) = fault {
            noted.end(|| {});
            THREAD.with(|thread| {
                // One has come during the handler of the fault, and waits until the copy is over, as do others from here on.
                if !was_waiting && thread.is_waiting.get() {
                    keep_mask(thread, block_rest(context, 0));
                }
            });
        }
    }
}

/// Blocks, for what was interrupted, all signals but those of faults, and `others`: what was blocked before.
fn block_rest(context: *mut c_void, others: u64) -> u64 {
    let faults = signal_deferral::FAULTS.iter().fold(0, |bits, number| bits | 1 << (number - 1));
    // SAFETY: the kernel's own structure; the mask in it is what this thread goes on with. C's type is longer than the kernel's
    // eight bytes, which are all that may be touched.
    unsafe {
        let mask = (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>();
        let before = mask.read();
        mask.write(before | !faults | others);
        before
    }
}

/// What is blocked again when the signal that was put aside is sent anew.
fn keep_mask(thread: &signal_deferral::Thread, mask: u64) {
    // SAFETY: this thread's own; the first eight bytes of a mask are all that the kernel has.
    unsafe { (*thread.mask.get()).as_mut_ptr().cast::<u64>().write(mask) };
}

/// Where on its stack a thread was interrupted, and which stack its handlers may be on.
fn stacks(context: *mut c_void) -> (usize, (usize, usize)) {
    // SAFETY: the kernel's own structure.
    let context = unsafe { &*context.cast::<ucontext_t>() };
    let place = context.uc_mcontext.gregs.get(libc::REG_RSP as usize).map_or(0, |pointer| *pointer as usize);
    (place, (context.uc_stack.ss_sp as usize, context.uc_stack.ss_size))
}

/// A buffer of the program's cannot be used, in the middle of a copy with locks held. Its handler puts that right and returns,
/// or jumps out: then the jump gives the locks back.
fn begin_fault(place: usize, held: u32) -> Noted {
    jumps::note(place, GiveBack { ends: |_| {}, left: was_left_faulty, argument: held as usize })
}

/// A handler has jumped out of a copy, for which so many locks were held.
fn was_left_faulty(held: usize) {
    sockets::each_held(|socket, fd| {
        if let Some(Ok(connection)) = sockets::by_index(fd, socket.index).map(Socket::mapped) {
            connection.let_go();
        }
    });
    THREAD.with(|thread| {
        let left = thread.held.get().saturating_sub(held as u32);
        thread.held.set(left);
        if left == 0 && thread.is_waiting.get() {
            signal_deferral::deliver_late(thread);
        }
    });
}

fn call(number: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let Some(handler) = HANDLERS.get(number as usize) else { return };
    // Acquire: pairs with the release stores of the function; what belongs to it is written before.
    let function = handler.function.load(Ordering::Acquire);
    let (flags, mut mask) = (handler.flags.load(Ordering::Relaxed), handler.mask.load(Ordering::Relaxed));
    if function == 0 {
        return;
    }
    if flags & libc::SA_NODEFER == 0 {
        mask |= 1 << (number - 1);
    }
    // SAFETY: the context is the kernel's; the mask of this thread alone is changed, to what the kernel would have set; the
    // function is the program's, and takes three arguments or ignores two of them.
    unsafe {
        if flags & libc::SA_RESETHAND != 0 {
            // Release: pairs with the acquire load in `deliver`, behind which the rest is read.
            handler.function.store(0, Ordering::Release);
            // The kernel, too, keeps what else was asked for.
            let mut ordinary = action(libc::SIG_DFL, flags);
            (&raw mut ordinary.sa_mask).cast::<u64>().write(handler.mask.load(Ordering::Relaxed));
            real::sigaction(number, &raw const ordinary, core::ptr::null_mut());
        }
        let before = (&raw const (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>().read();
        let mut during = MaybeUninit::<sigset_t>::zeroed();
        during.as_mut_ptr().cast::<u64>().write(before | mask);
        errno::keep(|| {
            libc::pthread_sigmask(libc::SIG_SETMASK, during.as_ptr(), core::ptr::null_mut());
        });
        let function: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            core::mem::transmute(function);
        function(number, information, context);
    }
    // Behind it: what it has called itself is over.
    if flags & libc::SA_RESTART == 0 {
        THREAD.with(|thread| thread.is_interrupted.store(1, Ordering::Relaxed));
    }
}

fn action(function: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: noughts are a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (action.sa_sigaction, action.sa_flags) = (function, flags);
    action
}

/// The program's own handlers are the kernel's again.
pub fn give_back() {
    let _held = CHANGING.hold_undisturbed();
    for (number, handler) in HANDLERS.iter().enumerate() {
        let function = handler.function.load(Ordering::Relaxed);
        if function == 0 {
            continue;
        }
        let mut own = action(function, handler.flags.load(Ordering::Relaxed));
        // SAFETY: the first eight bytes of a mask are all that the kernel has; a live structure, of the program's own handler.
        unsafe {
            (&raw mut own.sa_mask).cast::<u64>().write(handler.mask.load(Ordering::Relaxed));
            real::sigaction(number as c_int, &raw const own, core::ptr::null_mut());
        }
    }
}

/// `sigaction`.
pub fn change(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let known = usize::try_from(number).ok().and_then(|number| HANDLERS.get(number));
    let Some(handler) = known.filter(|_| !own_call::are_over()) else {
        // SAFETY: the program's own arguments, here and below.
        return unsafe { real::sigaction(number, new, old) };
    };
    // The program's structures are read and written without the lock: they may be nowhere.
    // SAFETY: null, or the program's own.
    let given = unsafe { new.as_ref().copied() };
    let mut found = action(libc::SIG_DFL, 0);
    let status = exchange(number, handler, given, &mut found);
    if status == 0 && !old.is_null() {
        // SAFETY: the program's own, which takes one.
        unsafe { old.write(found) };
    }
    status
}

/// Sets what was `given`, and tells what was there.
fn exchange(
    number: c_int,
    handler: &Handler,
    given: Option<libc::sigaction>,
    old: &mut libc::sigaction,
) -> c_int {
    let _held = CHANGING.hold();
    let before = (
        handler.function.load(Ordering::Relaxed),
        handler.flags.load(Ordering::Relaxed),
        handler.mask.load(Ordering::Relaxed),
    );
    // SAFETY: live structures; the first eight bytes of a mask are all that the kernel has.
    let status = unsafe {
        match given {
            Some(given) if !matches!(given.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
                handler.flags.store(given.sa_flags, Ordering::Relaxed);
                handler.mask.store((&raw const given.sa_mask).cast::<u64>().read(), Ordering::Relaxed);
                // Release: pairs with the acquire load in `deliver`, behind which the rest is read.
                handler.function.store(given.sa_sigaction, Ordering::Release);
                let kept = given.sa_flags & !(libc::SA_NODEFER | libc::SA_RESETHAND) | libc::SA_SIGINFO;
                let deliver: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = deliver;
                let mut own = action(deliver as usize, kept);
                libc::sigfillset(&raw mut own.sa_mask);
                let status = real::sigaction(number, &raw const own, old);
                if status != 0 {
                    handler.function.store(before.0, Ordering::Release);
                }
                status
            }
            given => {
                let new = given.as_ref().map_or(core::ptr::null(), |given| &raw const *given);
                let status = real::sigaction(number, new, old);
                if status == 0 && given.is_some() {
                    // Release: pairs with the acquire load in `deliver`, behind which the rest is read.
                    handler.function.store(0, Ordering::Release);
                }
                status
            }
        }
    };
    if status == 0 {
        tell_old(old, before);
    }
    status
}

/// What the program is told was its own.
fn tell_old(told: &mut libc::sigaction, (function, flags, mask): (usize, c_int, u64)) {
    let deliver: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = deliver;
    if told.sa_sigaction == deliver as usize && function != 0 {
        (told.sa_sigaction, told.sa_flags) = (function, flags);
        // SAFETY: a live structure; the first eight bytes of a mask are all that the kernel has.
        unsafe { (&raw mut told.sa_mask).cast::<u64>().write(mask) };
    }
}

/// `signal` and its like, around the C library's: what that has set is taken over.
pub fn set(number: c_int, real: impl FnOnce() -> usize) -> usize {
    let known = usize::try_from(number).ok().and_then(|number| HANDLERS.get(number));
    let Some(handler) = known.filter(|_| !own_call::are_over()) else {
        return real();
    };
    let known = handler.function.load(Ordering::Relaxed);
    let before = real();
    let deliver: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = deliver;
    if before != libc::SIG_ERR {
        let mut found = action(libc::SIG_DFL, 0);
        // SAFETY: live structures.
        errno::keep(|| unsafe {
            if real::sigaction(number, core::ptr::null(), &raw mut found) == 0
                && found.sa_sigaction != deliver as usize
            {
                change(number, &raw const found, core::ptr::null_mut());
            }
        });
    }
    if before == deliver as usize { known } else { before }
}
