//! Address vectors.

use std::ffi::{c_char, c_int, c_void};

use super::call::{
    absent, bind_nothing, close_object, control_nothing, give, operations, shielded, status, write_text,
};
use super::object::{VectorObject, domain_of, vector};
use crate::abi::{
    FI_ADDR_UNSPEC, FI_AV_TABLE, FI_CLASS_AV, FI_EINVAL, FI_ENOMEM, FI_ENOSYS, fi_av_attr, fi_ops, fi_ops_av,
    fid, fid_av, fid_domain,
};
use crate::name::{EndpointName, NAME_BYTES};

/// `FI_EVENT`: insert without waiting, and report to an event queue.
const FI_EVENT: u64 = crate::abi::FI_COMPLETION;

static OPERATIONS: fi_ops = operations(close, bind_nothing, control_nothing);
static VECTOR_OPERATIONS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc: absent,
    insertsym: absent,
    remove,
    lookup,
    straddr,
    av_set: absent,
};

/// Answers `fi_av_open`.
pub extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_av_attr,
    place: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program gives valid attributes.
        let attributes = unsafe { attributes.as_mut() }.ok_or(FI_EINVAL)?;
        // Names that other processes share, and events.
        if !attributes.name.is_null() || attributes.flags != 0 || attributes.rx_ctx_bits != 0 {
            return Err(FI_ENOSYS);
        }
        if attributes.kind == 0 {
            attributes.kind = FI_AV_TABLE;
        }
        let domain = domain_of(domain);
        let number = domain.state()?.add_vector();
        let head = fid { fclass: FI_CLASS_AV, context, ops: &OPERATIONS };
        give(VectorObject { head: fid_av { fid: head, ops: &VECTOR_OPERATIONS }, domain, number }, place);
        Ok(())
    })
}

extern "C" fn close(vector: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of vectors, and the program uses none after its close.
    unsafe {
        close_object::<VectorObject>(vector, |vector| vector.domain.state()?.remove_vector(vector.number))
    }
}

/// Stores names. The answer is how many are valid.
extern "C" fn insert(
    fid: *mut fid_av,
    names: *const c_void,
    count: usize,
    indices: *mut u64,
    flags: u64,
    _: *mut c_void,
) -> c_int {
    let inserted = shielded(|| {
        if flags & FI_EVENT != 0 {
            return Err(FI_ENOSYS);
        }
        let VectorObject { domain, number, .. } = vector(fid);
        let mut state = domain.state()?;
        let addresses = state.vector(*number)?;
        let mut inserted = 0;
        for place in 0..count {
            // SAFETY: the program gives `count` names, each of the length that `fi_getname` gives.
            let bytes =
                unsafe { std::slice::from_raw_parts(names.cast::<u8>().add(place * NAME_BYTES), NAME_BYTES) };
            let index = match EndpointName::parse(bytes) {
                Some(name) => Some(addresses.insert(name).ok_or(FI_ENOMEM)?),
                None => None,
            };
            inserted += c_int::from(index.is_some());
            if !indices.is_null() {
                // SAFETY: the program gives room for `count` indices, or none.
                unsafe { indices.add(place).write(index.unwrap_or(FI_ADDR_UNSPEC)) };
            }
        }
        Ok(inserted)
    });
    inserted.unwrap_or_else(|error| -error)
}

extern "C" fn remove(fid: *mut fid_av, indices: *mut u64, count: usize, _: u64) -> c_int {
    status(|| {
        let VectorObject { domain, number, .. } = vector(fid);
        let mut state = domain.state()?;
        let addresses = state.vector(*number)?;
        let mut are_all_there = true;
        for place in 0..count {
            // SAFETY: the program gives `count` indices.
            are_all_there &= addresses.remove(unsafe { *indices.add(place) });
        }
        if are_all_there { Ok(()) } else { Err(FI_EINVAL) }
    })
}

extern "C" fn lookup(fid: *mut fid_av, index: u64, target: *mut c_void, length: *mut usize) -> c_int {
    status(|| {
        let VectorObject { domain, number, .. } = vector(fid);
        let mut state = domain.state()?;
        let name = state.vector(*number)?.name(index).ok_or(FI_EINVAL)?;
        copy_name(name, target, length);
        Ok(())
    })
}

/// Copies a name, cut if there is less room. `length` becomes the length of the whole name. The result says whether it fit.
pub fn copy_name(name: &EndpointName, target: *mut c_void, length: *mut usize) -> bool {
    // SAFETY: the program gives a length, and room for as many bytes.
    let room = unsafe { length.replace(NAME_BYTES) };
    let copied = room.min(NAME_BYTES);
    if copied > 0 {
        // SAFETY: the program gives room for as many bytes as it has said.
        unsafe { std::ptr::copy_nonoverlapping(name.as_bytes().as_ptr(), target.cast(), copied) };
    }
    room >= NAME_BYTES
}

extern "C" fn straddr(
    _: *mut fid_av,
    name: *const c_void,
    target: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    let written = shielded(|| {
        // SAFETY: the program gives a name, of the length that `fi_getname` gives.
        let bytes = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), NAME_BYTES) };
        let text = EndpointName::parse(bytes).map_or_else(String::new, |name| format!("{name:?}"));
        // SAFETY: the program gives a length, and room for as many bytes.
        let room = unsafe { length.replace(text.len() + 1) };
        write_text(&text, target, room);
        Ok(())
    });
    if written.is_ok() { target } else { std::ptr::null() }
}
