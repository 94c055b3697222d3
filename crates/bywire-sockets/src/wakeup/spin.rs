//! Spinning for a short time before a sleep: on a core whose token this thread holds, and as long as that pays.
//!
//! A token is a time until which a thread spins on that core. The token of a killed thread expires soon. While it
//! spins, a thread repeatedly offers the core to others. If another thread has run, it sleeps at once.
//!
//! Spinning is expensive on a core that others want: the scheduler treats a thread that yields as one that has had its
//! turn, and runs all others first, which takes milliseconds. A thread finds that out by trying, and pays for it from
//! its [`Allowance`].

use core::cell::Cell;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::os::per_thread::{Zeroed, per_thread};
use crate::os::{errno, kernel, own_call, real};
use crate::wakeup::allowance::Allowance;

/// Cores that have a token. Nobody spins on others.
const CORES: usize = 512;
/// The longest wait that is worth spinning for.
const LOOK_NS: u64 = 30_000;
/// The same for what a partner sends that was woken by the kernel just now.
const LATE_NS: u64 = 60_000;
/// A token that was not renewed for this time is free. It is a little longer than the interval of renewals.
const LEASE_NS: u64 = 50_000;
/// Looks between two readings of the clock, for a look at as little as one connection.
const ROUND: u32 = 24;
/// From this time on the core is offered to others.
const OFFER_NS: u64 = 2_000;
/// A thread that was away for this long was interrupted, or was not alone on its core.
const AWAY_NS: u64 = 4_000;
/// A thread that was away for no longer, and then found what it waited for, has let its partner run on the same core.
const HANDED_NS: u64 = 15_000;

#[repr(C, align(64))]
struct Core {
    until_ns: AtomicU64,
}

static TOKENS: AtomicPtr<Core> = AtomicPtr::new(ptr::null_mut());
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);

// SAFETY: zeros are the account that owes nothing.
unsafe impl Zeroed for Cell<Allowance> {}

per_thread!(static ALLOWANCE: Cell<Allowance>, "bywire_thread_allowance");
per_thread! {
    /// How often the kernel has given this thread's core to others, when it was last asked.
    static SWITCHES: Cell<i64>, "bywire_thread_switches"
}

/// Maps the tokens that all programs of one user share, from the file of this name.
pub fn configure(path: &CStr) {
    const LENGTH_BYTES: usize = CORES * size_of::<Core>();
    // SAFETY: a valid name; the results are checked, and the mapping is new.
    unsafe {
        let file = libc::open(
            path.as_ptr(),
            libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW,
            0o600,
        );
        if file < 0 {
            return;
        }
        // Memory or disk space is allocated for the whole file: a full disk must not become a signal later.
        if kernel::may_file_have(LENGTH_BYTES as u64) && libc::fallocate(file, 0, 0, LENGTH_BYTES as i64) == 0
        {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let address = libc::mmap(ptr::null_mut(), LENGTH_BYTES, protection, libc::MAP_SHARED, file, 0);
            if address != libc::MAP_FAILED {
                // Release: pairs with the acquire load in `token`. The tokens are mapped before.
                TOKENS.store(address.cast(), Ordering::Release);
                // Relaxed: a thread that sees it too early finds no token.
                IS_ALLOWED.store(true, Ordering::Relaxed);
            }
        }
        real::close(file);
    }
}

fn token() -> Option<&'static Core> {
    // SAFETY: no arguments.
    let core = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    // Acquire: pairs with the release store in `configure`.
    let tokens = TOKENS.load(Ordering::Acquire);
    // SAFETY: a mapping of this many tokens that is never removed.
    if tokens.is_null() || core >= CORES { None } else { unsafe { tokens.add(core).as_ref() } }
}

/// Spins until `is_ready`, if that may be soon. Each look examines this many `things`. `false`: it is time to sleep.
#[inline]
pub fn until(things: usize, is_ready: impl FnMut() -> bool, deadline_ns: Option<u64>) -> bool {
    until_for(LOOK_NS, things, is_ready, deadline_ns)
}

/// The same for longer, where a partner may have been woken by the kernel just now.
pub fn until_late(things: usize, is_ready: impl FnMut() -> bool, deadline_ns: Option<u64>) -> bool {
    until_for(LATE_NS, things, is_ready, deadline_ns)
}

#[inline(always)]
fn until_for(
    look_ns: u64,
    things: usize,
    mut is_ready: impl FnMut() -> bool,
    deadline_ns: Option<u64>,
) -> bool {
    if !IS_ALLOWED.load(Ordering::Relaxed) || own_call::are_over() {
        return false;
    }
    let mut allowance = ALLOWANCE.with(Cell::get);
    let found = !allowance.rests(kernel::now_ns) && {
        let round = ROUND / (things.clamp(1, ROUND as usize) as u32);
        errno::keep(|| look(look_ns, round, &mut is_ready, deadline_ns, &mut allowance))
    };
    ALLOWANCE.with(|kept| kept.set(allowance));
    found
}

fn look(
    look_ns: u64,
    round: u32,
    is_ready: &mut dyn FnMut() -> bool,
    deadline_ns: Option<u64>,
    allowance: &mut Allowance,
) -> bool {
    // What is about to arrive needs no token and no clock.
    for _ in 0..round {
        if is_ready() {
            allowance.save();
            return true;
        }
        core::hint::spin_loop();
    }
    let (Some(_own), Some(token)) = (own_call::begin(), token()) else { return false };
    let start = kernel::now_ns();
    let held = token.until_ns.load(Ordering::Relaxed);
    // Relaxed: a token protects nothing but the core's time.
    if held > start && held < start + 2 * LEASE_NS
        || token
            .until_ns
            .compare_exchange(held, start + LEASE_NS, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return false;
    }
    let end = deadline_ns.unwrap_or(u64::MAX).min(start + look_ns);
    let (mut now, mut has_lost_core) = (start, false);
    let found = loop {
        if (0..round).any(|_| {
            core::hint::spin_loop();
            is_ready()
        }) {
            break true;
        }
        let before = now;
        now = kernel::now_ns();
        let mut away = now - before >= AWAY_NS;
        if !away && now - start > OFFER_NS {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
            let after = kernel::now_ns();
            away = after - now >= AWAY_NS;
            now = after;
        }
        // An interruption by the machine itself means that no thread wants the core.
        has_lost_core = away && has_others_run();
        if has_lost_core || now >= end {
            break is_ready();
        }
    };
    token.until_ns.store(0, Ordering::Relaxed);
    let lost_ns = now - start;
    if found && (!has_lost_core || lost_ns < HANDED_NS) {
        allowance.save();
    } else {
        allowance.lose(lost_ns, now);
    }
    found
}

/// Whether the kernel has given this thread's core to another one since it was last asked.
#[cold]
fn has_others_run() -> bool {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: valid for writes; zeros are a value.
    let count = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    };
    SWITCHES.with(|switches| switches.replace(count)) != count
}
