//! Watches the stores of this process to shared memory, and ends the process after one of them.
//!
//! While it is watched, the memory cannot be written. The handler of the fault that a store causes lets the one instruction
//! through and is called again behind it, so nothing but stores costs time.

use std::cell::UnsafeCell;
use std::ops::Range;

/// The bit of the processor's flags that has it trap behind the next instruction.
const TRAP: libc::greg_t = 0x100;
/// The most stores that are recorded.
const STORES_MAX: usize = 1 << 16;

/// One store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// It is of the same instruction as the one before, which copies a whole string byte by byte.
    goes_on: bool,
}

/// All that the handlers use. They allocate nothing.
struct Watch {
    /// The memory that this process writes and others read.
    ranges: Vec<Range<usize>>,
    /// Its bytes behind the last store, one range behind the other.
    before: Vec<u8>,
    /// The store after which the process ends; `usize::MAX`: none.
    last: usize,
    made: usize,
    /// The first of them.
    stores: Vec<Store>,
    /// The instruction that is let through.
    at: libc::greg_t,
    /// That instruction has stored, and is not over.
    goes_on: bool,
}

struct Watched(UnsafeCell<Option<Watch>>);

// SAFETY: only the one thread that stores to the memory uses it, in turn with its own handlers.
unsafe impl Sync for Watched {}

static WATCHED: Watched = Watched(UnsafeCell::new(None));

/// Begins to watch the stores of this thread. Other threads must not store to the memory meanwhile. After store number `last`,
/// counted from one, the process is killed.
pub fn watch(last: Option<usize>) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let ranges: Vec<_> = maps
        .lines()
        .filter(|line| line.contains("rw-s") && line.contains("/memfd:bywire-"))
        .map(|line| {
            let (start, rest) = line.split_once('-').expect("a range");
            let end = rest.split(' ').next().expect("a range");
            let number = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
            number(start)..number(end)
        })
        .collect();
    // Its page, its rings, its heap.
    assert_eq!(ranges.len(), 3, "{maps}");
    let before = ranges.iter().flat_map(|range| bytes(range).to_vec()).collect();
    let stores = Vec::with_capacity(STORES_MAX);
    let last = last.unwrap_or(usize::MAX);
    let watch = Watch { ranges, before, last, made: 0, stores, at: 0, goes_on: false };
    protect(&watch.ranges, libc::PROT_READ);
    // SAFETY: no handler uses it yet. Both handlers have the form that the kernel calls by `SA_SIGINFO`.
    unsafe {
        *WATCHED.0.get() = Some(watch);
        for (signal, handler) in [(libc::SIGSEGV, on_fault as Handler), (libc::SIGTRAP, on_trap as Handler)] {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
}

/// Ends that, and returns all stores in order.
pub fn watched() -> Vec<Store> {
    // SAFETY: this thread stores nothing here, so no handler uses it.
    let watch = unsafe { (*WATCHED.0.get()).take() }.expect("it was watched");
    protect(&watch.ranges, libc::PROT_READ | libc::PROT_WRITE);
    assert!(watch.stores.len() < STORES_MAX, "more stores than are recorded");
    watch.stores
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// The watch and the registers, for a handler.
fn parts(context: *mut libc::c_void) -> (&'static mut Watch, &'static mut [libc::greg_t; 23]) {
    // SAFETY: the kernel gives a handler the context of its thread, which is the one that has begun to watch, and which uses
    // nothing of it between an instruction and its fault.
    unsafe {
        let watch = (*WATCHED.0.get()).as_mut().expect("it is watched");
        (watch, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs)
    }
}

extern "C" fn on_fault(_: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (watch, registers) = parts(context);
    // SAFETY: the kernel gives a fault's handler its address.
    let address = unsafe { (*information).si_addr() } as usize;
    if !watch.ranges.iter().any(|range| range.contains(&address)) {
        // Another fault: it comes again, and ends the process.
        // SAFETY: no pointers.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    protect(&watch.ranges, libc::PROT_READ | libc::PROT_WRITE);
    watch.at = registers[libc::REG_RIP as usize];
    registers[libc::REG_EFL as usize] |= TRAP;
}

extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (watch, registers) = parts(context);
    registers[libc::REG_EFL as usize] &= !TRAP;
    let mut rest = &mut watch.before[..];
    let mut is_changed = false;
    for range in &watch.ranges {
        let (before, others) = rest.split_at_mut(range.len());
        let now = bytes(range);
        if before != now {
            before.copy_from_slice(now);
            is_changed = true;
        }
        rest = others;
    }
    if is_changed {
        watch.made += 1;
        if watch.made == watch.last {
            // SAFETY: no pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        if watch.stores.len() < STORES_MAX {
            watch.stores.push(Store { goes_on: watch.goes_on });
        }
    }
    watch.goes_on = is_changed && registers[libc::REG_RIP as usize] == watch.at;
    protect(&watch.ranges, libc::PROT_READ);
}

/// The bytes of a range now.
fn bytes(range: &Range<usize>) -> &'static [u8] {
    // SAFETY: mapped until this process ends, by a port that lives as long. Nobody stores while they are compared, as the one
    // thread that does is here.
    unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) }
}

/// Lets the memory be written, or not.
fn protect(ranges: &[Range<usize>], protection: i32) {
    for range in ranges {
        // SAFETY: mapped until this process ends. Its pages change their protection and nothing else.
        unsafe {
            if libc::mprotect(range.start as *mut libc::c_void, range.len(), protection) != 0 {
                libc::abort();
            }
        }
    }
}

/// The stores after which to kill: each of them, but only three of one instruction that copies a whole string byte by
/// byte.
pub fn points(stores: &[Store]) -> Vec<usize> {
    let (mut points, mut start) = (Vec::new(), 0);
    for end in 1..=stores.len() {
        if stores.get(end).is_none_or(|next| !next.goes_on) {
            points.extend([start + 1, (start + 1 + end) / 2, end]);
            start = end;
        }
    }
    points.dedup();
    points
}

/// Stores in the form that [`from_text`] reads.
pub fn to_text(stores: &[Store]) -> String {
    stores.iter().map(|store| if store.goes_on { '+' } else { '.' }).collect()
}

pub fn from_text(text: &str) -> Vec<Store> {
    text.chars().map(|letter| Store { goes_on: letter == '+' }).collect()
}
