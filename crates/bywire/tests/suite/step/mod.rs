//! Runs one thread of another process instruction by instruction, and watches its stores to shared memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The signals by which a thread tells its tracer that the interesting part begins and ends.
const BEGIN: i32 = libc::SIGUSR1;
const END: i32 = libc::SIGUSR2;

pub fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Keeps this thread, and the processes that it starts, on one core. Then a step is a context switch and not a
/// message between cores.
pub fn stay_on_one_core() {
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    // Without this, the test is only slower.
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

pub fn mark_begin() {
    raise(BEGIN);
}

pub fn mark_end() {
    raise(END);
}

fn raise(signal: i32) {
    // SAFETY: sends a signal to this thread; its tracer takes it.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// A thread that this one traces. It ends with its process.
pub struct Traced {
    thread: i32,
    memory: File,
    /// The memory that it writes and that others read.
    ranges: Vec<std::ops::Range<u64>>,
}

/// One store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Store {
    /// The offset of its instruction within the page, which is the same in every process.
    at: u64,
    /// The step that made it.
    step: usize,
}

impl Traced {
    pub fn seize(thread: i32) -> Self {
        request(libc::PTRACE_SEIZE, thread, 0);
        let maps = std::fs::read_to_string(format!("/proc/{thread}/maps")).expect("our child's maps");
        let ranges: Vec<_> = maps
            .lines()
            .filter(|line| line.contains("rw-s") && line.contains("/memfd:bywire-"))
            .map(|line| {
                let (start, rest) = line.split_once('-').expect("a range");
                let end = rest.split(' ').next().expect("a range");
                let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
                number(start)..number(end)
            })
            .collect();
        // Its page, its rings, its heap.
        assert_eq!(ranges.len(), 3, "{maps}");
        Self {
            thread,
            memory: File::open(format!("/proc/{thread}/mem")).expect("our child's memory"),
            ranges,
        }
    }

    /// Runs it until it signals the beginning.
    pub fn run_to_begin(self) -> Self {
        assert_eq!(self.stopped(), BEGIN);
        self
    }

    /// Steps to the end, kills it, and returns every instruction that changed shared memory, in order.
    pub fn stores(self) -> Vec<Store> {
        let mut stores = Vec::new();
        self.step(|store| {
            stores.push(store);
            true
        });
        stores
    }

    /// Steps until `count` stores have been made, and kills it.
    pub fn run_to_store(self, count: usize) {
        let mut made = 0;
        self.step(|_| {
            made += 1;
            made < count
        });
        assert_eq!(made, count, "the same program makes the same stores");
    }

    /// Looks at the memory after every instruction.
    ///
    /// No instruction is skipped, as `memmove` chooses its instructions by the addresses of both buffers, which
    /// differ between processes.
    fn step(&self, mut on_store: impl FnMut(Store) -> bool) {
        let length = self.ranges.iter().map(|range| range.end - range.start).sum::<u64>() as usize;
        // Both are filled again after every instruction, so neither is made anew.
        let (mut before, mut now) = (vec![0; length], vec![0; length]);
        self.read_shared(&mut before);
        for step in 0.. {
            let at = self.instruction();
            request(libc::PTRACE_SINGLESTEP, self.thread, 0);
            match self.stopped() {
                libc::SIGTRAP => {}
                END => return,
                other => panic!("stopped by signal {other}"),
            }
            self.read_shared(&mut now);
            if now != before {
                std::mem::swap(&mut before, &mut now);
                if !on_store(Store { at, step }) {
                    return;
                }
            }
        }
    }

    /// Fills `bytes` with all ranges, one behind the other.
    fn read_shared(&self, mut bytes: &mut [u8]) {
        for range in &self.ranges {
            let (here, rest) = bytes.split_at_mut((range.end - range.start) as usize);
            self.memory.read_exact_at(here, range.start).expect("our child's memory");
            bytes = rest;
        }
    }

    fn instruction(&self) -> u64 {
        let place = std::mem::offset_of!(libc::user_regs_struct, rip);
        // SAFETY: errno is this thread's own. PEEKUSER reads one word of the stopped thread's registers.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.thread, place, 0) as u64 & 0xfff }
    }

    /// Waits until the thread stops, and returns the signal that stopped it.
    fn stopped(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the kernel writes one int, which lives here.
        let waited = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        assert_eq!(waited, self.thread, "{}", std::io::Error::last_os_error());
        assert!(libc::WIFSTOPPED(status), "the thread ended: {status:#x}");
        libc::WSTOPSIG(status)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // A process is not quite dead before the tracer of its thread has seen the thread end.
        // SAFETY: the call kills the process of our own stopped child and collects its thread.
        unsafe {
            libc::kill(self.thread, libc::SIGKILL);
            libc::waitpid(self.thread, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

fn request(request: libc::c_uint, thread: i32, data: usize) {
    // SAFETY: these requests read no memory of ours.
    let done = unsafe { libc::ptrace(request, thread, 0usize, data) };
    assert_eq!(done, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
}

/// The stores after which to kill: each of them, but only three of one instruction that copies a whole string byte by
/// byte.
pub fn points(stores: &[Store]) -> Vec<usize> {
    let (mut points, mut start) = (Vec::new(), 0);
    for end in 1..=stores.len() {
        let goes_on = stores.get(end).is_some_and(|next| {
            let last = stores[end - 1];
            next.at == last.at && next.step == last.step + 1
        });
        if !goes_on {
            points.extend([start + 1, (start + 1 + end) / 2, end]);
            start = end;
        }
    }
    points.dedup();
    points
}
