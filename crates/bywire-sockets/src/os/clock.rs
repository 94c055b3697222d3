//! The kernel's clock.
//!
//! A program may define `clock_gettime` itself, or preload a library that does, as libfaketime. The library's own times
//! decide when it checks for a killed peer and when a timeout of a socket ends, so they come from the kernel: from the
//! function that it maps into every process (vDSO), or by a system call.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::arch;

/// The address of the kernel's function; 0: not looked up yet, or [`ABSENT`].
static FUNCTION: AtomicUsize = AtomicUsize::new(0);
const ABSENT: usize = 1;

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn now_ns() -> u64 {
    // Relaxed: every thread finds the same address, of code that the kernel has mapped.
    let function = match FUNCTION.load(Ordering::Relaxed) {
        0 => find(),
        known => known,
    };
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    let status = match function {
        ABSENT => -1,
        address => {
            // SAFETY: the kernel's function of this name has this type.
            let read: extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int =
                unsafe { core::mem::transmute(address) };
            read(libc::CLOCK_MONOTONIC, time.as_mut_ptr())
        }
    };
    if status != 0 {
        ask(time.as_mut_ptr());
    }
    // SAFETY: zeros are a value.
    let time = unsafe { time.assume_init() };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Asks by a system call. The C library's `syscall` may be the program's as well.
#[cold]
fn ask(time: *mut libc::timespec) {
    // SAFETY: the caller's structure.
    unsafe { arch::read_clock(libc::CLOCK_MONOTONIC, time) };
}

#[cold]
fn find() -> usize {
    // SAFETY: no pointers.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let found = Image::mapped_at(start).and_then(|image| image.function(arch::VDSO_CLOCK));
    let address = found.unwrap_or(ABSENT);
    FUNCTION.store(address, Ordering::Relaxed);
    address
}

/// An ELF image in memory, as linux/elf.h describes it. Nothing outside of its first segment is read.
struct Image {
    start: usize,
    bytes: usize,
    program_headers: usize,
    count: usize,
}

/// Sizes of a file header, a program header, a symbol and an entry of the dynamic section.
const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: usize = 24;
const ENTRY: usize = 16;
const PAGE_BYTES: usize = 4096;
/// The image has some ten symbols.
const SYMBOLS_MAX: usize = 256;

const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;

impl Image {
    fn mapped_at(start: usize) -> Option<Self> {
        if start == 0 || !start.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        // The kernel maps at least a page there.
        let mut image = Self { start, bytes: PAGE_BYTES, program_headers: 0, count: 0 };
        let is_elf64 = image.word::<u32>(0)? == u32::from_ne_bytes(*b"\x7fELF") && image.word::<u8>(4)? == 2;
        image.program_headers = usize::try_from(image.word::<u64>(32)?).ok()?;
        image.count = usize::from(image.word::<u16>(56)?);
        let is_known = is_elf64 && usize::from(image.word::<u16>(54)?) == PROGRAM_HEADER;
        let end = image.program_headers.checked_add(image.count.checked_mul(PROGRAM_HEADER)?)?;
        if !is_known || image.program_headers < FILE_HEADER || end > PAGE_BYTES {
            return None;
        }
        let load = image.segment(libc::PT_LOAD)?;
        // The first segment begins with the file.
        (load.offset == 0).then_some(Self { bytes: load.bytes, ..image })
    }

    /// A number at this offset.
    fn word<T: Copy>(&self, at: usize) -> Option<T> {
        let is_within = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes);
        // SAFETY: within the image, which stays mapped and never changes; only integers are read.
        is_within.then(|| unsafe { ((self.start + at) as *const T).read_unaligned() })
    }

    fn segment(&self, kind: u32) -> Option<Segment> {
        let at = (0..self.count)
            .map(|index| self.program_headers + index * PROGRAM_HEADER)
            .find(|at| self.word(*at) == Some(kind))?;
        let word = |place: usize| usize::try_from(self.word::<u64>(at + place)?).ok();
        Some(Segment { offset: word(8)?, address: word(16)?, bytes: word(40)? })
    }

    /// The address of a function of the image.
    fn function(&self, name: &CStr) -> Option<usize> {
        let (load, dynamic) = (self.segment(libc::PT_LOAD)?, self.segment(libc::PT_DYNAMIC)?);
        let at = dynamic.address.checked_sub(load.address)?;
        let entry = |tag: usize| {
            let value = (0..dynamic.bytes / ENTRY)
                .map(|index| at.checked_add(index * ENTRY))
                .take_while(|place| {
                    place.and_then(|place| self.word::<u64>(place)).is_some_and(|tag| tag != 0)
                })
                .flatten()
                .find(|place| self.word::<u64>(*place) == Some(tag as u64))
                .and_then(|place| self.word::<u64>(place + 8))?;
            // Relative to the first segment, or already moved by a loader.
            let value = usize::try_from(value).ok()?;
            value.checked_sub(if value >= self.start { self.start } else { load.address })
        };
        let (symbols, names) = (entry(DT_SYMTAB)?, entry(DT_STRTAB)?);
        // The names follow the symbols.
        let count = (names.checked_sub(symbols)? / SYMBOL).min(SYMBOLS_MAX);
        let place = (0..count).map(|index| symbols + index * SYMBOL).find(|place| {
            let is_defined = self.word::<u16>(place + 6).is_some_and(|section| section != 0);
            let text = self.word::<u32>(*place).and_then(|text| names.checked_add(text as usize));
            is_defined && text.is_some_and(|text| self.has_text(text, name))
        })?;
        let address = usize::try_from(self.word::<u64>(place + 8)?).ok()?.checked_sub(load.address)?;
        (address < self.bytes).then_some(self.start + address)
    }

    fn has_text(&self, at: usize, text: &CStr) -> bool {
        (at..).zip(text.to_bytes_with_nul()).all(|(place, byte)| self.word(place) == Some(*byte))
    }
}

struct Segment {
    offset: usize,
    address: usize,
    bytes: usize,
}
