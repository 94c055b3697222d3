//! Fabrics: where domains are opened, and sleeps begin.

use std::ffi::{c_int, c_void};

use super::call::{absent, bind_nothing, close_object, control_nothing, give, operations, status};
use super::{domain, event_queue, queue};
use crate::abi::{
    FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_FABRIC, FI_EINVAL, FI_ENOSYS, fi_fabric_attr, fi_ops, fi_ops_fabric,
    fid, fid_fabric,
};

/// A fabric has no state of its own.
#[repr(C)]
struct Fabric {
    head: fid_fabric,
}

static OPERATIONS: fi_ops = operations(close, bind_nothing, control_nothing);
static FABRIC_OPERATIONS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: domain::open,
    passive_ep: absent,
    eq_open: event_queue::open,
    wait_open: absent,
    trywait,
    domain2: absent,
};

/// Answers `fi_fabric`.
pub extern "C" fn open(
    attributes: *mut fi_fabric_attr,
    place: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: libfabric gives valid attributes.
        let attributes = unsafe { attributes.as_ref() }.ok_or(FI_EINVAL)?;
        let head = fid { fclass: FI_CLASS_FABRIC, context, ops: &OPERATIONS };
        let head = fid_fabric { fid: head, ops: &FABRIC_OPERATIONS, api_version: attributes.api_version };
        give(Fabric { head }, place);
        Ok(())
    })
}

extern "C" fn close(fabric: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of fabrics, and the program uses none after its close.
    unsafe { close_object::<Fabric>(fabric, |_| Ok(())) }
}

/// May the program sleep on the descriptors of these queues?
extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    status(|| {
        for place in 0..usize::try_from(count).map_err(|_| FI_EINVAL)? {
            // SAFETY: the program gives `count` valid descriptors.
            let fid = unsafe { *fids.add(place) };
            // SAFETY: a valid descriptor begins with its class.
            match unsafe { (*fid).fclass } {
                FI_CLASS_CQ => queue::prepare_sleep(fid)?,
                FI_CLASS_EQ => event_queue::prepare_sleep(fid)?,
                _ => return Err(FI_ENOSYS),
            }
        }
        Ok(())
    })
}
