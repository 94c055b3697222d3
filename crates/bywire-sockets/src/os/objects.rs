//! The objects (the program and its libraries) that the dynamic loader has loaded: their symbols, and the places that
//! it fills with addresses of functions.
//!
//! The loader keeps an object loaded while it is visited. What its headers and tables say was good enough for the loader.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::hash::Hasher;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::AtomicUsize;

use crate::os::arch;

/// From elf.h.
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_JMPREL: u64 = 23;
const DT_RUNPATH: u64 = 29;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_RELACOUNT: u64 = 0x6fff_fff9;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_NODEFLIB: u64 = 0x800;

#[repr(C)]
struct DynamicEntry {
    tag: u64,
    value: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// One loaded object.
pub struct Object<'a> {
    base: usize,
    path: &'a CStr,
    headers: &'a [libc::Elf64_Phdr],
    tables: Option<Tables>,
    /// The number of objects that were unloaded so far.
    pub unloaded: u64,
}

/// The tables of an object for the dynamic loader. They are valid while the object is loaded.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    base: usize,
    strings: usize,
    symbols: usize,
    hash: usize,
    soname: Option<u64>,
    /// The address and the length in bytes.
    jumps: (usize, usize),
    data: (usize, usize),
    /// The number of entries at the start of `data` that name no symbol.
    relative: usize,
    /// Whether it searches for libraries in directories of its own, also on behalf of the libraries that it loads.
    pub has_inherited_path: bool,
    /// Whether it does so for itself, or leaves the usual directories out.
    pub has_own_path: bool,
}

/// A place that the loader fills with the address of a symbol.
pub struct Slot<'a> {
    pub place: *const AtomicUsize,
    pub name: &'a CStr,
    /// Whether the loader may fill it at the first call only.
    pub is_lazy: bool,
    /// Whether the object itself defines the symbol.
    pub is_own: bool,
}

/// Visits the objects in the order in which they were loaded.
pub fn each(mut visit: impl FnMut(&Object<'_>) -> ControlFlow<()>) {
    let mut visit: &mut dyn FnMut(&Object<'_>) -> ControlFlow<()> = &mut visit;
    // SAFETY: the function takes what the C library passes, and is called before this one returns.
    unsafe { libc::dl_iterate_phdr(Some(pass_on), (&raw mut visit).cast()) };
}

unsafe extern "C" fn pass_on(info: *mut libc::dl_phdr_info, _size: usize, visit: *mut c_void) -> c_int {
    // SAFETY: the visitor of `each`, and the C library's own structure. The name is null or terminated.
    let (visit, object) = unsafe {
        let info = &*info;
        let headers = if info.dlpi_phdr.is_null() {
            &[]
        } else {
            core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into())
        };
        let path = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
        let base = info.dlpi_addr as usize;
        let tables = Tables::of(base, headers);
        let object = Object { base, path, headers, tables, unloaded: info.dlpi_subs };
        (&mut *visit.cast::<&mut dyn FnMut(&Object<'_>) -> ControlFlow<()>>(), object)
    };
    visit(&object).is_break().into()
}

impl Object<'_> {
    /// The path of its file; the program's own is empty.
    pub fn path(&self) -> &CStr {
        self.path
    }

    /// Adds what distinguishes it from other objects.
    pub fn identify(&self, hasher: &mut impl Hasher) {
        hasher.write_usize(self.base);
        hasher.write(self.path.to_bytes());
        for header in self.headers {
            hasher.write_u64(header.p_vaddr);
            hasher.write_u64(header.p_filesz);
        }
    }

    /// The parts of its memory that are code. Parts that cannot be read are left out.
    pub fn code(&self) -> impl Iterator<Item = &[u8]> {
        const READ_AND_EXECUTE: u32 = libc::PF_R | libc::PF_X;
        let is_code = |header: &&libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD && header.p_flags & READ_AND_EXECUTE == READ_AND_EXECUTE
        };
        self.headers.iter().filter(is_code).map(|header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize) as *const u8;
            // SAFETY: the loader has mapped the bytes of the file there, for as long as the object is loaded.
            unsafe { core::slice::from_raw_parts(start, header.p_filesz as usize) }
        })
    }

    /// Returns whether an address lies in it.
    pub fn contains(&self, address: usize) -> bool {
        self.ranges(libc::PT_LOAD).any(|range| range.contains(&address))
    }

    /// The memory that headers of this type describe.
    pub fn ranges(&self, kind: u32) -> impl Iterator<Item = Range<usize>> {
        self.headers.iter().filter(move |header| header.p_type == kind).map(|header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        })
    }

    /// Its notes, as far as they are in memory.
    pub fn notes(&self) -> impl Iterator<Item = &[u8]> {
        let is_loaded = |range: &Range<usize>| {
            self.ranges(libc::PT_LOAD).any(|loaded| loaded.start <= range.start && range.end <= loaded.end)
        };
        self.ranges(libc::PT_NOTE).filter(is_loaded).map(|range| {
            // SAFETY: a part of what the loader has mapped, for as long as the object is loaded. Each such part can be read.
            unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) }
        })
    }

    /// Its tables, if it has any.
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.as_ref()
    }
}

impl Tables {
    /// # Safety
    /// The headers of a loaded object at its base.
    unsafe fn of(base: usize, headers: &[libc::Elf64_Phdr]) -> Option<Self> {
        let header = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        // SAFETY: the caller's guarantee. The loader has read the same entries.
        unsafe { Self::listed(base, (base + header.p_vaddr as usize) as *const DynamicEntry) }
    }

    /// # Safety
    /// The dynamic entries of a loaded object at its base, which an entry with the tag 0 ends.
    unsafe fn listed(base: usize, entries: *const DynamicEntry) -> Option<Self> {
        let mut tables = Self { base, ..Self::default() };
        // The loader adds the base to addresses in most objects, in place.
        let address =
            |value: u64| if (value as usize) < base { base + value as usize } else { value as usize };
        // SAFETY: the caller's guarantee.
        let entry_at = |at| unsafe { &*entries.add(at) };
        for entry in (0..).map(entry_at).take_while(|entry| entry.tag != 0) {
            match entry.tag {
                DT_STRTAB => tables.strings = address(entry.value),
                DT_SYMTAB => tables.symbols = address(entry.value),
                DT_GNU_HASH => tables.hash = address(entry.value),
                DT_JMPREL => tables.jumps.0 = address(entry.value),
                DT_PLTRELSZ => tables.jumps.1 = entry.value as usize,
                DT_RELA => tables.data.0 = address(entry.value),
                DT_RELASZ => tables.data.1 = entry.value as usize,
                DT_RELACOUNT => tables.relative = entry.value as usize,
                DT_SONAME => tables.soname = Some(entry.value),
                DT_RPATH => tables.has_inherited_path = true,
                DT_RUNPATH => tables.has_own_path = true,
                DT_FLAGS_1 => tables.has_own_path |= entry.value & DF_1_NODEFLIB != 0,
                _ => {}
            }
        }
        (tables.strings != 0 && tables.symbols != 0).then_some(tables)
    }

    /// An address that no other object has.
    pub fn address(&self) -> usize {
        self.symbols
    }

    /// The name by which others require it.
    pub fn soname(&self) -> Option<&CStr> {
        self.soname.map(|at| self.string(at as usize))
    }

    /// The addresses of all versions of a symbol that it defines.
    pub fn definitions(&self, name: &CStr) -> impl Iterator<Item = usize> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()));
        let mut next = self.first_of_chain(hash);
        core::iter::from_fn(move || {
            while let Some((index, chained)) = next {
                next = (chained & 1 == 0).then(|| self.chain(index + 1)).flatten();
                if (chained ^ hash) >> 1 != 0 {
                    continue;
                }
                let symbol = self.symbol(index);
                if symbol.st_shndx != 0 && self.string(symbol.st_name as usize) == name {
                    return Some(self.base.wrapping_add(symbol.st_value as usize));
                }
            }
            None
        })
    }

    /// The places with addresses of symbols.
    pub fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        let (jumps, data) = (self.relocations(self.jumps, 0), self.relocations(self.data, self.relative));
        jumps.iter().chain(data).filter_map(|relocation| {
            let kind = relocation.info as u32;
            let is_lazy = kind == arch::LAZY_FUNCTION;
            let is_address =
                is_lazy || kind == arch::TABLE_ENTRY || kind == arch::ADDRESS && relocation.addend == 0;
            let index = (relocation.info >> 32) as usize;
            if !is_address || index == 0 {
                return None;
            }
            let symbol = self.symbol(index);
            let place = self.base.wrapping_add(relocation.offset as usize) as *const AtomicUsize;
            let name = self.string(symbol.st_name as usize);
            Some(Slot { place, name, is_lazy, is_own: symbol.st_shndx != 0 })
        })
    }

    fn relocations(&self, (address, length): (usize, usize), skipped: usize) -> &[Relocation] {
        if address == 0 {
            return &[];
        }
        // SAFETY: a table of the loaded object, of the length that it gives.
        let all = unsafe {
            core::slice::from_raw_parts(address as *const Relocation, length / size_of::<Relocation>())
        };
        all.get(skipped..).unwrap_or(&[])
    }

    /// The first symbol of the bucket of a hash, with its own hash. The table is described in the GNU C library's
    /// elf/dl-lookup.c.
    fn first_of_chain(&self, hash: u32) -> Option<(usize, u32)> {
        if self.hash == 0 {
            return None;
        }
        // SAFETY: the table of the loaded object: four words, the filter, the buckets.
        unsafe {
            let words = self.hash as *const u32;
            let [buckets, filter] = [words, words.add(2)].map(|word| word.read() as usize);
            if buckets == 0 {
                return None;
            }
            let index = words.add(4 + filter * 2 + hash as usize % buckets).read() as usize;
            if index == 0 { None } else { self.chain(index) }
        }
    }

    /// The symbol at an index of the hash table, with its hash. The lowest bit marks the last of a bucket.
    fn chain(&self, index: usize) -> Option<(usize, u32)> {
        // SAFETY: the table of the loaded object. Its chain has a word for each symbol from the first hashed one on.
        unsafe {
            let words = self.hash as *const u32;
            let [buckets, first, filter] = [0, 1, 2].map(|at| words.add(at).read() as usize);
            let at = index.checked_sub(first)?;
            Some((index, words.add(4 + filter * 2 + buckets + at).read()))
        }
    }

    fn symbol(&self, index: usize) -> &libc::Elf64_Sym {
        // SAFETY: an index out of the object's own tables.
        unsafe { &*(self.symbols as *const libc::Elf64_Sym).add(index) }
    }

    fn string(&self, at: usize) -> &CStr {
        // SAFETY: an offset out of the object's own tables, into its terminated strings.
        unsafe { CStr::from_ptr((self.strings as *const c_char).add(at)) }
    }
}

/// The loader's list of objects, from link.h: the part that debuggers rely on.
#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
    dynamic: *const DynamicEntry,
    next: *const Self,
}

#[repr(C)]
struct LoaderState {
    version: c_int,
    objects: *const LinkMap,
}

unsafe extern "C" {
    static _r_debug: LoaderState;
    /// The dynamic entries of the object that this code is a part of.
    static _DYNAMIC: DynamicEntry;
}

/// The first definition of a symbol behind this library in the order of loading. It is looked up when the program has
/// one thread only.
///
/// It calls nothing: the runtime of ThreadSanitizer looks symbols up before its own `dl_iterate_phdr` works.
pub fn next_definition(name: &CStr) -> Option<usize> {
    // SAFETY: the loader's own list, which no other thread changes now.
    unsafe {
        let mut is_behind = false;
        let mut next = _r_debug.objects;
        while let Some(object) = next.as_ref() {
            if is_behind && !object.dynamic.is_null() {
                let tables = Tables::listed(object.base, object.dynamic);
                if let Some(found) = tables.and_then(|tables| tables.definitions(name).next()) {
                    return Some(found);
                }
            }
            is_behind |= core::ptr::eq(object.dynamic, &raw const _DYNAMIC);
            next = object.next;
        }
        None
    }
}

/// Returns whether it is the object that this code is a part of.
pub fn is_this_library(object: &Object<'_>) -> bool {
    object.contains(is_this_library as *const () as usize)
}
