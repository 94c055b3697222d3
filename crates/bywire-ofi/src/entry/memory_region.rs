//! Registered memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use bywire_sys::process;

use super::call::{close_object, give, operations, status};
use super::info::REGION_PIECES;
use super::object::{RegionObject, counter, domain_of, region};
use crate::abi::{
    FI_CLASS_CNTR, FI_CLASS_EP, FI_CLASS_MR, FI_EBADFLAGS, FI_EINVAL, FI_ENABLE, FI_ENOSYS, FI_READ, FI_RECV,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA_EVENT, FI_SEND, FI_WRITE, fi_mr_attr, fi_ops, fi_ops_mr, fid,
    fid_domain, fid_mr, iovec,
};
use crate::memory::Memory;
use crate::regions::Region;

/// What memory may be registered for.
const ACCESSES: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

static OPERATIONS: fi_ops = operations(close, bind, control);
pub static DOMAIN_OPERATIONS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: register,
    regv: register_several,
    regattr: register_described,
};

/// What a call says of a region.
struct Registration {
    access: u64,
    offset: u64,
    /// The key that the program would like.
    key: u64,
    flags: u64,
    context: *mut c_void,
}

impl Registration {
    fn register(self, domain: *mut fid, place: *mut *mut fid_mr, memory: Memory) -> Result<(), i32> {
        if self.flags & !FI_RMA_EVENT != 0 || self.access & !ACCESSES != 0 {
            return Err(FI_EBADFLAGS);
        }
        if self.offset != 0 || place.is_null() {
            return Err(FI_EINVAL);
        }
        let domain = domain_of(domain.cast::<fid_domain>());
        let mut key = self.key;
        if domain.naming.has_own_keys {
            let mut random = [0; 8];
            process::random(&mut random).map_err(|error| error.raw_os_error())?;
            key = u64::from_ne_bytes(random);
        }
        let base = if domain.naming.by_address { memory.base() as u64 } else { 0 };
        let region = Region {
            memory,
            base,
            may_be_read: self.access & FI_REMOTE_READ != 0,
            may_be_written: self.access & FI_REMOTE_WRITE != 0,
            read_counter: None,
            write_counter: None,
        };
        domain.state()?.add_region(key, region)?;
        let head = fid { fclass: FI_CLASS_MR, context: self.context, ops: &OPERATIONS };
        let head = fid_mr { fid: head, mem_desc: std::ptr::null_mut(), key };
        give(RegionObject { head, domain, key }, place);
        Ok(())
    }
}

/// Memory to register: one piece. A port puts no others, and copies of them would have no bound.
fn only(vectors: *const iovec, count: usize) -> Result<Memory, i32> {
    if count != REGION_PIECES {
        return Err(FI_EINVAL);
    }
    // SAFETY: the program gives one.
    let iovec { base, length } = *unsafe { vectors.as_ref() }.ok_or(FI_EINVAL)?;
    Ok(whole(base, length))
}

/// A program may register all of its address space, from address 0 on.
fn whole(base: *const c_void, length: usize) -> Memory {
    // SAFETY: the program leaves the memory to the domain until it closes the region. It exposes what it names.
    unsafe { Memory::new(base.cast_mut().cast(), length) }
}

extern "C" fn register(
    domain: *mut fid,
    base: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    place: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        Registration { access, offset, key, flags, context }.register(domain, place, whole(base, length))
    })
}

extern "C" fn register_several(
    domain: *mut fid,
    vectors: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    place: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let memory = only(vectors, count)?;
        Registration { access, offset, key, flags, context }.register(domain, place, memory)
    })
}

extern "C" fn register_described(
    domain: *mut fid,
    attributes: *const fi_mr_attr,
    flags: u64,
    place: *mut *mut fid_mr,
) -> c_int {
    status(|| {
        // SAFETY: the program gives valid attributes, of version 1.17 or newer.
        let attributes = unsafe { attributes.as_ref() }.ok_or(FI_EINVAL)?;
        let fi_mr_attr { access, offset, requested_key: key, context, .. } = *attributes;
        let memory = only(attributes.mr_iov, attributes.iov_count)?;
        Registration { access, offset, key, flags, context }.register(domain, place, memory)
    })
}

extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of regions, and the program uses none after its close.
    unsafe { close_object::<RegionObject>(fid, |region| region.domain.close_region(region.key)) }
}

/// Counts what other endpoints do with the memory. All endpoints of the domain have it.
extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    status(|| {
        let RegionObject { domain, key, .. } = region(fid);
        // SAFETY: the program gives a valid descriptor, which begins with its class.
        match unsafe { other.as_ref() }.ok_or(FI_EINVAL)?.fclass {
            FI_CLASS_EP => {}
            // Its number means something else in another domain.
            FI_CLASS_CNTR if !Arc::ptr_eq(&counter(other).domain, domain) => return Err(FI_EINVAL),
            FI_CLASS_CNTR => {
                let number = Some(counter(other).number);
                domain.state()?.change_region(*key, |region| {
                    if flags & FI_REMOTE_READ != 0 {
                        region.read_counter = number;
                    }
                    if flags & FI_REMOTE_WRITE != 0 {
                        region.write_counter = number;
                    }
                });
            }
            _ => return Err(FI_ENOSYS),
        }
        Ok(())
    })
}

extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    // A region can be used from the beginning on.
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}
