//! Defers the program's signal handlers while this library holds a lock, which takes as long as a copy.
//!
//! Handlers are called through [`deliver`]. A signal that arrives while this thread holds a lock is put aside, with all
//! others blocked, and is sent to the thread again when the lock is free. So no handler finds a connection in the
//! middle of a change, and none that jumps out of a call leaves a lock held. This costs no system call unless a signal
//! arrives.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{siginfo_t, sigset_t, ucontext_t};

use crate::connection::sockets::{self, Socket};
use crate::memory::lock::{Lock, rank};
use crate::memory::vforked;
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::signal_deferral::{self, THREAD};
use crate::os::{arch, errno, own_call, real};

const SIGNALS: usize = 65;

/// The handler that the program has set, if it is a function.
struct Handler {
    /// 0: not set through this library.
    function: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Handler {
    /// Its function, flags and mask.
    fn settings(&self) -> (usize, c_int, u64) {
        let Self { function, flags, mask } = self;
        (function.load(Ordering::Relaxed), flags.load(Ordering::Relaxed), mask.load(Ordering::Relaxed))
    }
}

static HANDLERS: [Handler; SIGNALS] =
    [const { Handler { function: AtomicUsize::new(0), flags: AtomicI32::new(0), mask: AtomicU64::new(0) } };
        SIGNALS];
static CHANGING: Lock<{ rank::HANDLERS }> = Lock::new();

/// Clears the lock in a forked child: the thread that was changing a handler does not exist there.
pub fn after_fork_in_child() {
    CHANGING.reset();
}

/// Whether the thread itself has raised the signal by a fault. Such a signal cannot wait: the same instruction would
/// fault again.
fn is_fault(number: c_int, information: *const siginfo_t) -> bool {
    // SAFETY: the kernel's own structure.
    signal_deferral::FAULTS.contains(&number) && unsafe { (*information).si_code } > 0
}

/// The kernel calls this function for every handler of the program. All signals are blocked when it begins.
extern "C-unwind" fn deliver(number: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let (place, stack) = stacks(context);
    let is_put_aside = THREAD.with(|thread| {
        thread.stack.set(stack);
        if thread.held.get() == 0 || is_fault(number, information) {
            return false;
        }
        if thread.is_waiting.get() {
            // One is deferred already: this one waits in the kernel, blocked.
            block_rest(context, 1 << (number - 1));
            // SAFETY: the kernel's own structure, as the kernel has passed it.
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
                // A signal came during the handler of the fault. It waits until the copy is over, as do others from
                // here on.
                if !was_waiting && thread.is_waiting.get() {
                    keep_mask(thread, block_rest(context, 0));
                }
            });
        }
    }
}

/// Blocks all signals but those of faults, and `others`, in what was interrupted. Returns the mask that was in force.
fn block_rest(context: *mut c_void, others: u64) -> u64 {
    let faults = signal_deferral::FAULTS.iter().fold(0, |bits, number| bits | 1 << (number - 1));
    // SAFETY: the kernel's own structure, whose mask is the one that the thread continues with. C's type is longer than
    // the kernel's eight bytes, and only those may be accessed.
    unsafe {
        let mask = (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>();
        let before = mask.read();
        mask.write(before | !faults | others);
        before
    }
}

/// Sets the mask that is restored when the deferred signal is sent again.
fn keep_mask(thread: &signal_deferral::Thread, mask: u64) {
    // SAFETY: this thread's own. The kernel's mask is only the first eight bytes.
    unsafe { (*thread.mask.get()).as_mut_ptr().cast::<u64>().write(mask) };
}

/// The position on its stack where a thread was interrupted, and the stack that its handlers may run on.
fn stacks(context: *mut c_void) -> (usize, (usize, usize)) {
    // SAFETY: the kernel's own structure.
    let context = unsafe { &*context.cast::<ucontext_t>() };
    let place = arch::stack_pointer(context).unwrap_or(0);
    (place, (context.uc_stack.ss_sp as usize, context.uc_stack.ss_size))
}

/// A buffer of the program caused a fault, in the middle of a copy with locks held. The program's handler repairs the
/// fault and returns, or jumps out. A jump releases the locks.
fn begin_fault(place: usize, held: u32) -> Noted {
    jumps::note(place, GiveBack { ends: |_| {}, left: was_left_faulty, argument: held as usize })
}

/// A handler has jumped out of a copy that held this many locks.
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
    // Acquire: pairs with the release stores of the function. The fields that belong to it are written before.
    let function = handler.function.load(Ordering::Acquire);
    let (flags, mut mask) = (handler.flags.load(Ordering::Relaxed), handler.mask.load(Ordering::Relaxed));
    if function == 0 {
        return;
    }
    if flags & libc::SA_NODEFER == 0 {
        mask |= 1 << (number - 1);
    }
    // SAFETY: the context is the kernel's. Only this thread's mask is changed, to what the kernel would have set. The
    // function is the program's, and takes three arguments or ignores two of them.
    unsafe {
        if flags & libc::SA_RESETHAND != 0 {
            if !vforked::is_child() {
                // Release: pairs with the acquire load in `deliver`, after which the rest is read.
                handler.function.store(0, Ordering::Release);
            }
            // The kernel, too, keeps the other settings.
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
    // After the handler has returned: the library's calls that it made are over.
    if flags & libc::SA_RESTART == 0 {
        THREAD.with(|thread| thread.is_interrupted.store(1, Ordering::Relaxed));
    }
}

fn action(function: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: zeros are a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (action.sa_sigaction, action.sa_flags) = (function, flags);
    action
}

/// Sets the program's own handlers in the kernel again.
pub fn give_back() {
    let _held = CHANGING.hold_undisturbed();
    for (number, handler) in HANDLERS.iter().enumerate() {
        let function = handler.function.load(Ordering::Relaxed);
        if function == 0 {
            continue;
        }
        let mut own = action(function, handler.flags.load(Ordering::Relaxed));
        // SAFETY: the kernel's mask is only the first eight bytes; a live structure, with the program's own handler.
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
    // The program's structures are read and written without the lock: their addresses may be invalid.
    // SAFETY: null, or the program's own.
    let given = unsafe { new.as_ref().copied() };
    let mut found = action(libc::SIG_DFL, 0);
    let status = match vforked::is_child() {
        true => exchange_in_vforked(number, handler, given, &mut found),
        false => exchange(number, handler, given, &mut found),
    };
    if status == 0 && !old.is_null() {
        // SAFETY: the program's own structure, which has room for one.
        unsafe { old.write(found) };
    }
    status
}

/// Sets the action that was `given`, and returns the earlier one.
fn exchange(
    number: c_int,
    handler: &Handler,
    given: Option<libc::sigaction>,
    old: &mut libc::sigaction,
) -> c_int {
    let _held = CHANGING.hold();
    let before = handler.settings();
    // SAFETY: live structures. The kernel's mask is only the first eight bytes.
    let status = unsafe {
        match given {
            Some(given) if !matches!(given.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
                handler.flags.store(given.sa_flags, Ordering::Relaxed);
                handler.mask.store((&raw const given.sa_mask).cast::<u64>().read(), Ordering::Relaxed);
                // Release: pairs with the acquire load in `deliver`, after which the rest is read.
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
                    // Release: pairs with the acquire load in `deliver`, after which the rest is read.
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

/// The same in a child in its parent's memory, whose parent keeps its own handlers. Handlers of the child are not
/// deferred.
fn exchange_in_vforked(
    number: c_int,
    handler: &Handler,
    given: Option<libc::sigaction>,
    old: &mut libc::sigaction,
) -> c_int {
    let new = given.as_ref().map_or(core::ptr::null(), |given| &raw const *given);
    // SAFETY: null, or live structures.
    let status = unsafe { real::sigaction(number, new, old) };
    if status == 0 {
        tell_old(old, handler.settings());
    }
    status
}

/// Fills in the earlier action that is reported to the program.
fn tell_old(told: &mut libc::sigaction, (function, flags, mask): (usize, c_int, u64)) {
    let deliver: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = deliver;
    if told.sa_sigaction == deliver as usize && function != 0 {
        (told.sa_sigaction, told.sa_flags) = (function, flags);
        // SAFETY: a live structure. The kernel's mask is only the first eight bytes.
        unsafe { (&raw mut told.sa_mask).cast::<u64>().write(mask) };
    }
}

/// `signal` and similar calls, around the C library's own, whose setting is then replaced by [`deliver`].
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
            if !vforked::is_child()
                && real::sigaction(number, core::ptr::null(), &raw mut found) == 0
                && found.sa_sigaction != deliver as usize
            {
                change(number, &raw const found, core::ptr::null_mut());
            }
        });
    }
    if before == deliver as usize { known } else { before }
}
