//! Domains, and what is opened in them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::call::{absent, bind_events, close_object, control_nothing, give, operations, status};
use super::object::DomainObject;
use super::{address_vector, counter, endpoint, info, memory_region, queue};
use crate::abi::{FI_CLASS_DOMAIN, FI_EBUSY, fi_info, fi_ops, fi_ops_domain, fid, fid_domain, fid_fabric};
use crate::domain::Domain;
use crate::parameters::Parameters;

static OPERATIONS: fi_ops = operations(close, bind_events, control_nothing);
static DOMAIN_OPERATIONS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: address_vector::open,
    cq_open: queue::open,
    endpoint: endpoint::open,
    scalable_ep: absent,
    cntr_open: counter::open,
    poll_open: absent,
    stx_ctx: absent,
    srx_ctx: absent,
    query_atomic: absent,
    query_collective: absent,
    endpoint2: absent,
};

/// Answers `fi_domain`.
pub extern "C" fn open(
    _: *mut fid_fabric,
    info: *mut fi_info,
    place: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let head = fid { fclass: FI_CLASS_DOMAIN, context, ops: &OPERATIONS };
        let head = fid_domain { fid: head, ops: &DOMAIN_OPERATIONS, mr: &memory_region::DOMAIN_OPERATIONS };
        let domain = Domain::new(Parameters::read().idle, info::naming(info), info::is_serial(info));
        let domain = domain.map_err(|error| error.raw_os_error())?;
        give(DomainObject { head, domain: Arc::new(domain) }, place);
        Ok(())
    })
}

extern "C" fn close(domain: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of domains, and the program uses none after its close.
    unsafe {
        close_object::<DomainObject>(domain, |object| {
            // What was opened in it has it too. A forked child may lack the thread that would close that.
            let is_in_use = object.domain.is_owner() && Arc::strong_count(&object.domain) > 1;
            if is_in_use { Err(FI_EBUSY) } else { Ok(()) }
        })
    }
}
