//! The `memory` level: the ceilings that no message layer on this machine can beat.
//!
//! A [`Spec`] names the test. A test between two cores has a [`Target`], which a second process creates and serves. The
//! [`Source`] opens it by its [`Address`]. All other tests need the source alone. The source returns one [`Reading`]
//! for each block. The caller starts fresh processes for each pair and pins them.

use std::fs::{File, OpenOptions};
use std::hint::{black_box, spin_loop};
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bywire_results::cell::Unit;
use bywire_results::names;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use serde::{Deserialize, Serialize};

use crate::bounds::bounded;
use crate::clock::Clock;

/// The largest buffer, so that a typing error does not take all memory of the machine.
pub const SIZE_BYTES_MAX: u64 = 1 << 30;
/// The most cache lines that [`Test::Cacheline`] walks: 64 MiB in each direction.
pub const LINES_MAX: u32 = 1 << 20;

names! {
    /// A ceiling of the machine.
    Test, "test of level memory" {
        Cacheline = "cacheline": "half-RTT of a cache line handed between two cores by polling",
        Futex = "futex": "half-RTT of a hand-off between two sleeping processes by futex",
        Memcpy = "memcpy": "bytes copied per second, from one buffer to another",
        Pipe = "pipe": "half-RTT of one byte between two sleeping processes by pipe",
        Read = "read": "bytes read (summed) per second",
        Readwrite = "readwrite": "bytes read and written per second, added up, by a copy",
        Syscall = "syscall": "the cheapest real system call",
        Touched = "touched": "bytes per second that one core writes, copies and sums: what one copy of a message costs",
        Write = "write": "bytes written per second",
    }
}

impl Test {
    /// The unit of its readings.
    pub fn unit(self) -> Unit {
        if self.is_rate() { Unit::BytesPerSecond } else { Unit::Nanoseconds }
    }

    /// True for tests of a rate over buffers of [`Spec::size_bytes`].
    pub fn is_rate(self) -> bool {
        matches!(self, Test::Memcpy | Test::Read | Test::Readwrite | Test::Touched | Test::Write)
    }
}

/// One measurement of this level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The test.
    pub test: Test,
    /// Length of the buffer, 1 to [`SIZE_BYTES_MAX`]. Only rates use it.
    pub size_bytes: u64,
    /// Cache lines in each direction, 1 to [`LINES_MAX`]. Only [`Test::Cacheline`] uses it.
    pub lines: u32,
    /// Rates only: measure on two cores at once and report the sum.
    pub both_cores: bool,
}

impl Spec {
    /// A test with 1 MiB buffers, 256 lines, on one core.
    pub fn new(test: Test) -> Self {
        Self { test, size_bytes: 1 << 20, lines: 256, both_cores: false }
    }

    /// Returns whether a second process has to create and serve a [`Target`].
    pub fn needs_target(&self) -> bool {
        match self.test {
            Test::Cacheline | Test::Futex | Test::Pipe => true,
            _ => self.test.is_rate() && self.both_cores,
        }
    }

    /// Fails with one line if a parameter is out of bounds.
    pub fn check(&self) -> Result<()> {
        if self.test.is_rate() {
            bounded("size", self.size_bytes, 1..=SIZE_BYTES_MAX, " bytes")?;
        }
        if self.test == Test::Cacheline {
            bounded("lines", self.lines, 1..=LINES_MAX, "")?;
        }
        Ok(())
    }
}

/// One block's result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// In [`Test::unit`].
    pub value: f64,
    /// How long the block took.
    pub seconds: f64,
    /// Round trips, calls or passes over the buffer.
    pub operations: u64,
}

/// How a source finds its target: paths under `/proc` that are valid while the target lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    arena: String,
    pipe_to_target: String,
    pipe_to_source: String,
    /// The directory of the target's thread.
    pub thread: String,
    /// The core that the target is pinned to.
    pub core: Option<u32>,
}

/// The measuring end. Dropping it ends the target's [`Target::serve`].
pub struct Source {
    clock: Clock,
    kind: SourceKind,
    /// The number of the last message.
    sequence: u32,
    /// The cache line of the next message.
    position: usize,
}

enum SourceKind {
    /// Two runs of cache lines, each written by one end only and walked side by side: a message on each line, and its
    /// answer.
    Cacheline(Arena),
    Futex(Arena),
    /// The pipes to the target and to the source.
    Pipe(File, File),
    /// The buffers, and the other core's part if two cores are measured.
    Rate(Buffers, Option<Arena>),
    Syscall,
}

impl Source {
    /// Opens the measuring end. If [`Spec::needs_target`] holds, `target` must exist and must serve soon. Fails if
    /// parameters are out of bounds, or if the target has ended.
    pub fn open(spec: &Spec, target: Option<&Address>) -> Result<Self> {
        spec.check()?;
        let address = || target.context("this test is between two processes: give the target's address");
        let arena = || Arena::open(&address()?.arena);
        let kind = match spec.test {
            Test::Cacheline => SourceKind::Cacheline(arena()?),
            Test::Futex => SourceKind::Futex(arena()?),
            Test::Pipe => {
                let gone = "the target is gone: its pipes cannot be opened";
                let to_target = OpenOptions::new().write(true).open(&address()?.pipe_to_target);
                let to_source = File::open(&address()?.pipe_to_source).context(gone)?;
                SourceKind::Pipe(to_target.context(gone)?, to_source)
            }
            Test::Syscall => SourceKind::Syscall,
            _ => {
                let buffers = Buffers::new(spec.test, spec.size_bytes)?;
                SourceKind::Rate(buffers, spec.both_cores.then(arena).transpose()?)
            }
        };
        Ok(Self { clock: Clock::shared(), kind, sequence: 0, position: 0 })
    }

    /// Measures for about `duration`, but at least one batch. Fails if the system reports that the target has ended.
    pub fn block(&mut self, duration: Duration) -> Result<Reading> {
        if let SourceKind::Rate(_, Some(arena)) = &self.kind {
            poll(&arena[PASSED_BY_TARGET].word, |running| running == 1);
        }
        let beside_before = self.bytes_beside();
        let started_ns = self.clock.now_ns();
        let mut operations = 0;
        let ns = loop {
            operations += self.batch()?;
            let elapsed_ns = self.clock.now_ns() - started_ns;
            if elapsed_ns >= duration.as_nanos() as u64 && elapsed_ns > 0 {
                break elapsed_ns as f64;
            }
        };
        let value = match &self.kind {
            SourceKind::Rate(buffers, _) => {
                let beside = self.bytes_beside() - beside_before;
                (operations * buffers.counted_bytes() + beside) as f64 / (ns * 1e-9)
            }
            SourceKind::Syscall => ns / operations as f64,
            _ => ns / (2 * operations) as f64,
        };
        Ok(Reading { value, seconds: ns * 1e-9, operations })
    }

    /// Does some operations and returns their number.
    fn batch(&mut self) -> Result<u64> {
        let Self { kind, sequence, position, .. } = self;
        match kind {
            // 16 round trips, each on the next line, so that reading the clock adds well under 1 %.
            SourceKind::Cacheline(arena) => {
                let (to_target, to_source) = arena.walked();
                for _ in 0..16 {
                    *sequence = next_sequence(*sequence);
                    // Release: pairs with the Acquire load in the target's `poll`.
                    to_target[*position].word.store(*sequence, Ordering::Release);
                    poll(&to_source[*position].word, |value| value == *sequence);
                    *position = (*position + 1) % to_target.len();
                }
                Ok(16)
            }
            SourceKind::Futex(arena) => {
                let before = *sequence;
                *sequence = next_sequence(before);
                hand_over(&arena[TO_TARGET].word, *sequence)?;
                sleep_while(&arena[TO_SOURCE].word, before)?;
                Ok(1)
            }
            SourceKind::Pipe(to_target, to_source) => {
                let mut byte = [1];
                to_target.write_all(&byte)?;
                to_source.read_exact(&mut byte).context("the target is gone")?;
                Ok(1)
            }
            SourceKind::Rate(buffers, _) => Ok(buffers.batch()),
            SourceKind::Syscall => {
                for _ in 0..256 {
                    black_box(rustix::process::getppid());
                }
                Ok(256)
            }
        }
    }

    /// The bytes that the other core has passed over.
    fn bytes_beside(&self) -> u64 {
        match &self.kind {
            // Relaxed: a count of bytes, on which no other data depends.
            SourceKind::Rate(_, Some(arena)) => arena[PASSED_BY_TARGET].count.load(Ordering::Relaxed),
            _ => 0,
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        match &mut self.kind {
            // Release: pairs with the Acquire load in the target's `poll`.
            SourceKind::Cacheline(arena) => {
                arena.walked().0[self.position].word.store(STOPPED, Ordering::Release)
            }
            // If the wake-up fails, no process is left to be woken.
            SourceKind::Futex(arena) => _ = hand_over(&arena[TO_TARGET].word, STOPPED),
            // A pipe without a reader has no target to stop.
            SourceKind::Pipe(to_target, _) => _ = to_target.write_all(&[0]),
            // Relaxed: the target only has to see it soon.
            SourceKind::Rate(_, Some(arena)) => arena[STOP].word.store(STOPPED, Ordering::Relaxed),
            SourceKind::Rate(_, None) | SourceKind::Syscall => {}
        }
    }
}

/// The answering end of a test between two cores.
pub struct Target {
    spec: Spec,
    core: Option<u32>,
    arena: Arena,
    /// Both pipes, with reader and writer: to the target and to the source.
    pipes: Option<[(File, File); 2]>,
}

impl Target {
    /// Makes the shared memory and the pipes. The calling thread, which is pinned to `core`, has to serve them. Fails if
    /// parameters are out of bounds, if the test has no target, or if there is no memory.
    pub fn create(spec: &Spec, core: Option<u32>) -> Result<Self> {
        spec.check()?;
        ensure!(spec.needs_target(), "this test has no target: it runs on one core");
        let walked = if spec.test == Test::Cacheline { 2 * spec.lines as usize } else { 0 };
        let pipe = || -> Result<(File, File)> {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            Ok((reader.into(), writer.into()))
        };
        let pipes = if spec.test == Test::Pipe { Some([pipe()?, pipe()?]) } else { None };
        Ok(Self { spec: spec.clone(), core, arena: Arena::create(FIRST_WALKED + walked)?, pipes })
    }

    /// The address by which the source opens its end.
    pub fn address(&self) -> Address {
        let paths =
            self.pipes.as_ref().map(|[to_target, to_source]| [&to_target.1, &to_source.0].map(path_of));
        let [pipe_to_target, pipe_to_source] = paths.unwrap_or_default();
        let thread = format!("/proc/{}/task/{}", std::process::id(), rustix::thread::gettid());
        Address { arena: path_of(&self.arena.file), pipe_to_target, pipe_to_source, thread, core: self.core }
    }

    /// Answers until the source is dropped. Fails with the system's error on a pipe or a futex.
    pub fn serve(&mut self) -> Result<()> {
        let (arena, mut sequence) = (&self.arena, 0);
        match (self.spec.test, &mut self.pipes) {
            (Test::Cacheline, _) => {
                let (to_target, to_source) = arena.walked();
                for position in (0..to_target.len()).cycle() {
                    sequence = next_sequence(sequence);
                    let is_new = |value: u32| value == sequence || value == STOPPED;
                    if poll(&to_target[position].word, is_new) == STOPPED {
                        break;
                    }
                    // Release: pairs with the Acquire load in the source's `poll`.
                    to_source[position].word.store(sequence, Ordering::Release);
                }
            }
            (Test::Futex, _) => loop {
                sequence = sleep_while(&arena[TO_TARGET].word, sequence)?;
                if sequence == STOPPED {
                    break;
                }
                hand_over(&arena[TO_SOURCE].word, sequence)?;
            },
            (Test::Pipe, Some([(to_target, _), (_, to_source)])) => loop {
                let mut byte = [0];
                to_target.read_exact(&mut byte)?;
                if byte[0] == 0 {
                    break;
                }
                to_source.write_all(&byte)?;
            },
            (test, _) => {
                let mut buffers = Buffers::new(test, self.spec.size_bytes)?;
                let passed = &arena[PASSED_BY_TARGET];
                // Relaxed throughout: a count of bytes and a flag, on which no other data depends.
                while arena[STOP].word.load(Ordering::Relaxed) != STOPPED {
                    let passes = buffers.batch();
                    passed.count.fetch_add(passes * buffers.counted_bytes(), Ordering::Relaxed);
                    passed.word.store(1, Ordering::Release);
                }
            }
        }
        Ok(())
    }
}

// The purposes of the arena's lines before those that are walked.
const STOP: usize = 0;
const PASSED_BY_TARGET: usize = 1;
const TO_TARGET: usize = 2;
const TO_SOURCE: usize = 3;
const FIRST_WALKED: usize = 4;
/// The word that ends a target. It takes the place of a sequence number.
const STOPPED: u32 = u32::MAX;

/// The sequence number after this one. It skips 0 and [`STOPPED`].
fn next_sequence(sequence: u32) -> u32 {
    if sequence + 1 == STOPPED { 1 } else { sequence + 1 }
}

/// Polls until the word changes to a value that satisfies `wanted`. If that takes long, the other end does not run and
/// may need this very core, so this end yields.
fn poll(word: &AtomicU32, wanted: impl Fn(u32) -> bool) -> u32 {
    let mut fruitless = 0u32;
    loop {
        // Acquire: pairs with the Release store by which the other end hands the line over.
        let value = word.load(Ordering::Acquire);
        if wanted(value) {
            return value;
        }
        fruitless += 1;
        if fruitless > 1 << 16 {
            std::thread::yield_now();
        } else {
            spin_loop();
        }
    }
}

fn hand_over(word: &AtomicU32, value: u32) -> Result<()> {
    // Release: pairs with the Acquire load in `sleep_while`.
    word.store(value, Ordering::Release);
    futex::wake(word, futex::Flags::empty(), 1)?;
    Ok(())
}

/// Sleeps until the word is no longer `stale`, and returns its new value.
fn sleep_while(word: &AtomicU32, stale: u32) -> Result<u32> {
    loop {
        // Acquire: pairs with the Release store in `hand_over`.
        let value = word.load(Ordering::Acquire);
        if value != stale {
            return Ok(value);
        }
        match futex::wait(word, futex::Flags::empty(), stale, None) {
            Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => bail!("cannot wait on a futex: {error}"),
        }
    }
}

/// Two page-aligned buffers of one length, already touched, and what one pass does with them.
struct Buffers {
    test: Test,
    length: usize,
    from: Vec<u8>,
    to: Vec<u8>,
    mark: u8,
}

const PAGE_BYTES: usize = 4096;
/// The bytes that a batch passes over, at least, between two readings of the clock.
const BATCH_BYTES_MIN: usize = 64 << 10;

impl Buffers {
    fn new(test: Test, size_bytes: u64) -> Result<Self> {
        let length = usize::try_from(size_bytes)?;
        let buffer = || {
            let mut buffer = Vec::new();
            buffer
                .try_reserve_exact(length + PAGE_BYTES)
                .with_context(|| format!("no memory for a buffer of {length} bytes: give a smaller size"))?;
            buffer.resize(length + PAGE_BYTES, 1u8);
            anyhow::Ok(buffer)
        };
        Ok(Self { test, length, from: buffer()?, to: buffer()?, mark: 1 })
    }

    fn counted_bytes(&self) -> u64 {
        let times = if self.test == Test::Readwrite { 2 } else { 1 };
        times * self.length as u64
    }

    /// Does some passes and returns their number.
    fn batch(&mut self) -> u64 {
        let passes = (BATCH_BYTES_MIN / self.length).max(1);
        (0..passes).for_each(|_| self.pass());
        passes as u64
    }

    /// One pass. Written bytes are made visible and read bytes are used, so that the compiler removes nothing.
    fn pass(&mut self) {
        self.mark = self.mark.wrapping_add(1);
        let from = page_aligned(&mut self.from, self.length);
        let to = page_aligned(&mut self.to, self.length);
        if matches!(self.test, Test::Write | Test::Touched) {
            black_box(&mut *from).fill(self.mark);
            black_box(&mut *from);
        }
        if matches!(self.test, Test::Memcpy | Test::Readwrite | Test::Touched) {
            black_box(&mut *to).copy_from_slice(black_box(from));
            black_box(&mut *to);
        }
        if matches!(self.test, Test::Read | Test::Touched) {
            black_box(sum(black_box(to)));
        }
    }
}

fn page_aligned(buffer: &mut [u8], length: usize) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(PAGE_BYTES);
    &mut buffer[start..start + length]
}

/// The wrapping sum of all bytes, eight at a time.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, &byte| sum.wrapping_add(u64::from(byte)))
}

/// One cache line of shared memory. It holds either words or counts, never both at once.
#[repr(C, align(64))]
struct Line {
    word: AtomicU32,
    count: AtomicU64,
}

/// Cache lines that two processes of one measurement share. They trust each other.
struct Arena {
    file: File,
    lines: &'static [Line],
}

impl Arena {
    fn create(lines: usize) -> Result<Self> {
        let file = File::from(rustix::fs::memfd_create("bywire-memory-level", MemfdFlags::CLOEXEC)?);
        file.set_len((lines * size_of::<Line>()) as u64)?;
        Self::map(file)
    }

    fn open(path: &str) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self::map(file.context("the target is gone: its memory cannot be opened")?)
    }

    fn map(file: File) -> Result<Self> {
        let length_bytes = usize::try_from(file.metadata()?.len())?;
        ensure!(length_bytes >= FIRST_WALKED * size_of::<Line>(), "the target's memory is too short");
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses aliases no Rust object.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length_bytes, protection, flags, &file, 0)? };
        // SAFETY: the mapping is page-aligned, holds this many lines and starts zeroed. Both processes access it only
        // as these atomics. The file never shrinks. `drop` unmaps it, and `Arena` lends the slice for no longer than
        // its own lifetime.
        let lines =
            unsafe { std::slice::from_raw_parts(base.cast::<Line>(), length_bytes / size_of::<Line>()) };
        Ok(Self { file, lines })
    }

    /// The lines that the source writes, and the lines that the target writes.
    fn walked(&self) -> (&[Line], &[Line]) {
        let walked = &self[FIRST_WALKED..];
        walked.split_at(walked.len() / 2)
    }
}

impl Deref for Arena {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        self.lines
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let base = self.lines.as_ptr().cast_mut().cast();
        // SAFETY: mapped by `map` with this length and unmapped only here; no borrow of the lines outlives `self`.
        let _ = unsafe { rustix::mm::munmap(base, size_of_val(self.lines)) };
    }
}

fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Duration = Duration::from_millis(1);

    /// Source and target on two threads that share only the address.
    fn two_readings(spec: &Spec) -> [Reading; 2] {
        let mut target = spec.needs_target().then(|| Target::create(spec, None).unwrap());
        let address = target.as_ref().map(Target::address);
        let serving = target.take().map(|mut target| std::thread::spawn(move || target.serve()));
        let mut source = Source::open(spec, address.as_ref()).unwrap();
        let readings = [source.block(BLOCK).unwrap(), source.block(BLOCK).unwrap()];
        drop(source);
        if let Some(serving) = serving {
            serving.join().unwrap().unwrap();
        }
        readings
    }

    #[test]
    fn every_test_yields_results_and_its_target_ends() {
        for &test in Test::ALL {
            for reading in two_readings(&Spec { size_bytes: 4099, ..Spec::new(test) }) {
                assert!(reading.value.is_finite() && reading.value > 0.0, "{test:?}: {reading:?}");
                assert!(reading.seconds >= BLOCK.as_secs_f64() && reading.operations > 0);
            }
        }
    }

    #[test]
    fn one_cache_line_suffices_and_two_cores_add_up() {
        two_readings(&Spec { lines: 1, ..Spec::new(Test::Cacheline) });
        let spec = Spec { both_cores: true, ..Spec::new(Test::Memcpy) };
        assert!(spec.needs_target());
        for reading in two_readings(&spec) {
            let own = reading.operations as f64 * spec.size_bytes as f64 / reading.seconds;
            assert!(reading.value >= own * 0.999);
        }
    }

    #[test]
    fn passes_touch_every_byte() {
        let mut buffers = Buffers::new(Test::Touched, 5003).unwrap();
        buffers.pass();
        let mark = buffers.mark;
        assert!(page_aligned(&mut buffers.to, 5003).iter().all(|&byte| byte == mark));
        assert_eq!(sum(&[1; 17]), 2 * 0x0101_0101_0101_0101 + 1);
    }

    #[test]
    fn invalid_parameters_are_reported_in_one_line() {
        for spec in [
            Spec { size_bytes: 0, ..Spec::new(Test::Memcpy) },
            Spec { size_bytes: SIZE_BYTES_MAX + 1, ..Spec::new(Test::Read) },
            Spec { lines: 0, ..Spec::new(Test::Cacheline) },
        ] {
            let error = Source::open(&spec, None).err().unwrap().to_string();
            assert!(error.contains("out of bounds"), "{error}");
        }
        assert!("memset".parse::<Test>().unwrap_err().to_string().contains("memcpy"));
        assert!(Source::open(&Spec::new(Test::Pipe), Some(&Address::default())).is_err());
    }

    #[test]
    fn sequences_skip_the_two_reserved_words() {
        assert_eq!(next_sequence(0), 1);
        assert_eq!(next_sequence(STOPPED - 1), 1);
    }
}
