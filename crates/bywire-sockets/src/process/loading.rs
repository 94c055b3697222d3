//! Libraries that are loaded while the program runs, and symbols that are looked up by name: both could lead around
//! this library to the C library's own functions.
//!
//! An object that is loaded with `RTLD_DEEPBIND` finds the C library's functions before the hooks. Without that flag it
//! would find other symbols too than its author wanted, so the flag stays, and the addresses that the loader has put
//! into the object are replaced. `dlsym` on a handle answers with a hook where it would answer with a function of the C
//! library that is hooked. A library in a namespace of its own has its own C library: from then on the whole program is
//! TCP.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ops::ControlFlow;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;

use bywire_pairing::reason::Reason;

use crate::os::objects::{self, Object, Slot, Tables};
use crate::os::{errno, own_call, real};
use crate::pairing::offer;
use crate::process::{inline, sandbox};

/// The C library, and the libraries that were parts of it before version 2.34.
const C_LIBRARY: [&CStr; 5] =
    [c"libc.so.6", c"libpthread.so.0", c"librt.so.1", c"libdl.so.2", c"libutil.so.1"];
/// The functions of liburing that are hooked begin with this.
const OF_LIBURING: &[u8] = b"io_uring_";

/// Answers a call (`next` is 0), or says where it continues.
#[repr(C)]
pub struct Choice {
    answer: *mut c_void,
    next: usize,
}

impl Choice {
    const fn answer(answer: *mut c_void) -> Self {
        Self { answer, next: 0 }
    }

    const fn continues_at(next: usize) -> Self {
        Self { answer: ptr::null_mut(), next }
    }
}

/// The objects that stay loaded as long as the program runs.
struct Known {
    hooks: Tables,
    c_library: [Option<Tables>; C_LIBRARY.len()],
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// Finds the hooks and the C library when the library is loaded.
pub fn find_all() {
    let mut hooks = None;
    let mut c_library = [None; C_LIBRARY.len()];
    objects::each(|object| {
        let Some(tables) = object.tables() else { return ControlFlow::Continue(()) };
        if objects::is_this_library(object) {
            hooks = Some(*tables);
        }
        for (name, place) in C_LIBRARY.iter().zip(&mut c_library) {
            if place.is_none() && tables.soname() == Some(name) {
                *place = Some(*tables);
            }
        }
        ControlFlow::Continue(())
    });
    if let Some(hooks) = hooks {
        let _first = KNOWN.set(Known { hooks, c_library });
    }
}

impl Known {
    /// The hook of this name.
    fn hook(&self, name: &CStr) -> Option<usize> {
        self.hooks.definitions(name).next()
    }

    /// Returns whether the hook of this name stands for the function at this address.
    fn is_hooked(&self, name: &CStr, address: usize) -> bool {
        name.to_bytes().starts_with(OF_LIBURING)
            || self.c_library.iter().flatten().any(|tables| tables.definitions(name).any(|at| at == address))
    }
}

/// Returns whether calls are hooked in this program.
fn is_watching() -> bool {
    !own_call::are_over() && offer::is_configured()
}

/// `dlsym`.
pub unsafe extern "C" fn symbol(handle: *mut c_void, name: *const c_char) -> Choice {
    // SAFETY: the program's own arguments.
    let found = unsafe { answer(handle, name, &|handle| real::dlsym(handle, name)) };
    found.map_or_else(|| Choice::continues_at(real::dlsym_address()), Choice::answer)
}

/// `dlvsym`.
pub unsafe extern "C" fn versioned_symbol(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Choice {
    // SAFETY: the program's own arguments.
    let found = unsafe { answer(handle, name, &|handle| real::dlvsym(handle, name, version)) };
    found.map_or_else(|| Choice::continues_at(real::dlvsym_address()), Choice::answer)
}

/// The result of a lookup of a hooked name by a handle. `None`: the C library's own function decides.
unsafe fn answer(
    handle: *mut c_void,
    name: *const c_char,
    lookup: &dyn Fn(*mut c_void) -> *mut c_void,
) -> Option<*mut c_void> {
    // A program that calls the next definition of its own interposed function means what lies behind this library.
    if handle == libc::RTLD_NEXT || name.is_null() {
        return None;
    }
    let known = KNOWN.get().filter(|_| is_watching())?;
    settle();
    // SAFETY: the program's own name, which the C library reads as well.
    let name = unsafe { CStr::from_ptr(name) };
    let hook = known.hook(name)?;
    let found = lookup(handle);
    if known.is_hooked(name, found as usize) && !found.is_null() {
        return Some(hook as *mut c_void);
    }
    // The C library finds out what the caller's own scope has.
    (handle != libc::RTLD_DEFAULT || found as usize == hook).then_some(found)
}

/// Whether libraries may have been loaded since [`settle`].
static IS_PENDING: AtomicBool = AtomicBool::new(false);
/// The number of objects before the first one that was loaded with `RTLD_DEEPBIND` since [`settle`].
static DEEP_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of objects that were unloaded by then.
static UNLOADED: AtomicUsize = AtomicUsize::new(0);

/// `dlopen`.
pub unsafe extern "C-unwind" fn open(
    file: *const c_char,
    mode: c_int,
    _third: usize,
    caller: usize,
) -> Choice {
    let opened = if is_watching() {
        // SAFETY: the program's own arguments, as they came.
        unsafe { open_and_settle(file, mode, caller) }
    } else {
        None
    };
    opened.map_or_else(|| Choice::continues_at(real::dlopen_address()), Choice::answer)
}

/// `dlmopen`.
pub unsafe extern "C-unwind" fn open_in_namespace(
    namespace: c_long,
    file: *const c_char,
    mode: c_int,
    caller: usize,
) -> Choice {
    let mut opened = None;
    if is_watching() {
        if namespace == libc::LM_ID_BASE {
            // SAFETY: the program's own arguments, as they came.
            opened = unsafe { open_and_settle(file, mode, caller) };
        } else {
            errno::keep(|| sandbox::withdraw(Reason::Loaded));
        }
    }
    opened.map_or_else(|| Choice::continues_at(real::dlmopen_address()), Choice::answer)
}

/// Loads a library, and does what it requires before the caller can call it. `None`: the caller loads it, because the
/// name means another file for it than for this library. A later lookup in it does what it requires.
unsafe fn open_and_settle(file: *const c_char, mode: c_int, caller: usize) -> Option<*mut c_void> {
    if file.is_null() {
        return None;
    }
    let before = Loaded::before(mode);
    expect(before.as_ref());
    // SAFETY: the program's own name, which the C library reads as well.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'$') || !name.contains(&b'/') && searches_elsewhere(caller) {
        return None;
    }
    // SAFETY: the program's own arguments, as they came.
    let opened = unsafe { real::dlopen(file, mode) };
    // Another thread may have looked for it too early.
    expect(before.as_ref());
    settle();
    Some(opened)
}

/// Returns whether the object with this address may search for libraries in other directories than this library does.
fn searches_elsewhere(caller: usize) -> bool {
    let (mut is_found, mut is_elsewhere) = (false, false);
    objects::each(|object| {
        let is_caller = object.contains(caller);
        is_found |= is_caller;
        is_elsewhere |= object
            .tables()
            .is_some_and(|tables| tables.has_inherited_path || is_caller && tables.has_own_path);
        ControlFlow::Continue(())
    });
    is_elsewhere || !is_found
}

/// The objects that are loaded at some moment.
struct Loaded {
    count: usize,
    unloaded: usize,
}

impl Loaded {
    /// The objects of now. `None`: they do not matter, because the hooks come first for what is loaded in this mode.
    fn before(mode: c_int) -> Option<Self> {
        if mode & libc::RTLD_DEEPBIND == 0 {
            return None;
        }
        let mut now = Self { count: 0, unloaded: 0 };
        objects::each(|object| {
            now = Self { count: now.count + 1, unloaded: object.unloaded as usize };
            ControlFlow::Continue(())
        });
        Some(now)
    }
}

/// Notes that objects are loaded from now on, in addition to those.
fn expect(before: Option<&Loaded>) {
    if let Some(loaded) = before {
        UNLOADED.store(loaded.unloaded, Ordering::Relaxed);
        DEEP_FROM.fetch_min(loaded.count, Ordering::Relaxed);
    }
    // Release: pairs with the acquire in `settle_pending`. What is noted for it comes before.
    IS_PENDING.store(true, Ordering::Release);
}

/// Does what libraries require that were loaded since the last call.
#[inline]
pub fn settle() {
    if IS_PENDING.load(Ordering::Relaxed) {
        settle_pending();
    }
}

#[cold]
fn settle_pending() {
    // Acquire: pairs with the release in `expect`.
    if !IS_PENDING.swap(false, Ordering::Acquire) || !is_watching() {
        return;
    }
    let first = DEEP_FROM.swap(usize::MAX, Ordering::Relaxed);
    if first != usize::MAX
        && let Some(known) = KNOWN.get()
    {
        errno::keep(|| hook_from(first, known));
    }
    errno::keep(inline::examine_loaded);
}

/// Puts the hooks into the objects from an index on.
fn hook_from(first: usize, known: &Known) {
    let mut first = first;
    let mut index = 0;
    objects::each(|object| {
        if object.unloaded as usize != UNLOADED.load(Ordering::Relaxed) {
            // The indices have changed. What was loaded otherwise has the hooks already, or definitions of others.
            first = 1;
        }
        if index >= first && !objects::is_this_library(object) && !is_of_c_library(object, known) {
            hook(object, first, known);
        }
        index += 1;
        ControlFlow::Continue(())
    });
}

fn is_of_c_library(object: &Object<'_>, known: &Known) -> bool {
    let at = object.tables().map(Tables::address);
    known.c_library.iter().flatten().any(|tables| Some(tables.address()) == at)
}

/// Puts the hooks into an object, where it has functions of the C library or will have them at the first call.
fn hook(object: &Object<'_>, first: usize, known: &Known) {
    let Some(tables) = object.tables() else { return };
    for slot in tables.slots() {
        let Some(hook) = known.hook(slot.name) else { continue };
        // SAFETY: a place in the loaded object, which the loader has filled.
        // Relaxed, here and below: the loader itself replaces addresses so while other threads use them.
        let now = unsafe { (*slot.place).load(Ordering::Relaxed) };
        let is_open =
            slot.is_lazy && !slot.is_own && object.contains(now) && !is_defined_from(first, slot.name, known);
        if known.is_hooked(slot.name, now) && !slot.is_own || is_open {
            store(object, &slot, hook);
        }
    }
}

/// Returns whether one of the newly loaded objects defines a name.
fn is_defined_from(first: usize, name: &CStr, known: &Known) -> bool {
    let (mut index, mut is_defined) = (0, false);
    objects::each(|object| {
        let is_new = index >= first && !objects::is_this_library(object) && !is_of_c_library(object, known);
        index += 1;
        is_defined |=
            is_new && object.tables().is_some_and(|tables| tables.definitions(name).next().is_some());
        ControlFlow::Continue(())
    });
    is_defined
}

/// Stores an address. The loader has made some places read-only.
fn store(object: &Object<'_>, slot: &Slot<'_>, address: usize) {
    // SAFETY: no pointers.
    let Ok(page_bytes) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return };
    let place = slot.place as usize;
    let page = (place & !(page_bytes - 1)) as *mut c_void;
    let is_protected = object
        .ranges(libc::PT_GNU_RELRO)
        .any(|range| (range.start & !(page_bytes - 1)..range.end & !(page_bytes - 1)).contains(&place));
    // SAFETY: the page of the place, which belongs to the loaded object and was writable to the loader.
    unsafe {
        if is_protected && libc::mprotect(page, page_bytes, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return;
        }
        (*slot.place).store(address, Ordering::Relaxed);
        if is_protected {
            libc::mprotect(page, page_bytes, libc::PROT_READ);
        }
    }
}
