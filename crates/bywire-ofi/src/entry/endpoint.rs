//! Endpoints.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use bywire::OpenError;

use super::call::{ABSENT_TABLE, absent, close_object, count, give, operations, status};
use super::message_calls::{tagged, untagged};
use super::object::{EndpointObject, counter, domain_of, endpoint, queue, vector};
use super::{address_vector, info, rma};
use crate::abi::{
    FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EP, FI_CLASS_EQ, FI_EBUSY, FI_EINVAL, FI_ENABLE,
    FI_ENOAV, FI_ENOCQ, FI_ENOENT, FI_ENOMEM, FI_ENOPROTOOPT, FI_ENOSYS, FI_EOPBADSTATE, FI_EOTHER,
    FI_ETOOSMALL, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_SELECTIVE_COMPLETION, FI_SEND, FI_WRITE, fi_info, fi_ops, fi_ops_cm, fi_ops_ep, fid, fid_domain,
    fid_ep,
};
use crate::endpoint::Endpoint;
use crate::host;
use crate::parameters::Parameters;

static OPERATIONS: fi_ops = operations(close, bind, control);
static ENDPOINT_OPERATIONS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: absent,
    rx_ctx: absent,
    rx_size_left: absent,
    tx_size_left: absent,
};
static CONNECTION_OPERATIONS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: absent,
    getname,
    getpeer: absent,
    connect: absent,
    listen: absent,
    accept: absent,
    reject: absent,
    shutdown: absent,
    join: absent,
};

/// Answers `fi_endpoint`.
pub extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    place: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let mut endpoint = Endpoint::open(&Parameters::read()).map_err(|error| {
            host::complain(&format!("no endpoint: {error}"));
            match error {
                OpenError::System(error) => error.raw_os_error(),
                OpenError::RuntimeDirectory { cause, .. } => cause.raw_os_error(),
                _ => FI_ENOMEM,
            }
        })?;
        let bindings = &mut endpoint.bindings;
        (bindings.transmit_flags, bindings.receive_flags) = info::default_flags(info);
        bindings.is_directed = info::has_directed_receives(info);
        host::inform(&format!("endpoint {:?}", endpoint.name()));
        let domain = domain_of(domain);
        let number = domain.state()?.add_endpoint(endpoint);
        let head = fid { fclass: FI_CLASS_EP, context, ops: &OPERATIONS };
        let head = fid_ep {
            fid: head,
            ops: &ENDPOINT_OPERATIONS,
            cm: &CONNECTION_OPERATIONS,
            msg: &untagged::OPERATIONS,
            rma: &rma::OPERATIONS,
            tagged: &tagged::OPERATIONS,
            atomic: &ABSENT_TABLE,
            collective: &ABSENT_TABLE,
        };
        give(EndpointObject { head, domain, number }, place);
        Ok(())
    })
}

/// Everything that was sent leaves first.
extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of endpoints, and the program uses none after its close.
    unsafe { close_object::<EndpointObject>(fid, |endpoint| endpoint.domain.close_endpoint(endpoint.number)) }
}

extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    status(|| {
        let EndpointObject { domain, number, .. } = endpoint(fid);
        let mut state = domain.state()?;
        let bindings = &mut state.endpoint(*number)?.bindings;
        if bindings.is_enabled {
            return Err(FI_EOPBADSTATE);
        }
        // SAFETY: the program gives a valid descriptor, which begins with its class.
        let class = unsafe { other.as_ref() }.ok_or(FI_EINVAL)?.fclass;
        let their_domain = match class {
            FI_CLASS_AV => Some(&vector(other).domain),
            FI_CLASS_CQ => Some(&queue(other).domain),
            FI_CLASS_CNTR => Some(&counter(other).domain),
            _ => None,
        };
        // Their numbers mean something else in another domain.
        if their_domain.is_some_and(|other| !Arc::ptr_eq(other, domain)) {
            return Err(FI_EINVAL);
        }
        match class {
            FI_CLASS_AV if bindings.addresses.is_some() => return Err(FI_EBUSY),
            FI_CLASS_AV => bindings.addresses = Some(vector(other).number),
            FI_CLASS_CQ => {
                let is_selective = flags & FI_SELECTIVE_COMPLETION != 0;
                let queue = Some(queue(other).number);
                if flags & (FI_SEND | FI_RECV) == 0 {
                    return Err(FI_EINVAL);
                }
                if flags & FI_SEND != 0 {
                    (bindings.transmit_queue, bindings.is_transmit_selective) = (queue, is_selective);
                }
                if flags & FI_RECV != 0 {
                    (bindings.receive_queue, bindings.is_receive_selective) = (queue, is_selective);
                }
            }
            FI_CLASS_CNTR => {
                let number = Some(counter(other).number);
                if flags & FI_SEND != 0 {
                    bindings.send_counter = number;
                }
                if flags & FI_RECV != 0 {
                    bindings.receive_counter = number;
                }
                if flags & FI_READ != 0 {
                    bindings.read_counter = number;
                }
                if flags & FI_WRITE != 0 {
                    bindings.write_counter = number;
                }
                if flags & FI_REMOTE_READ != 0 {
                    bindings.remote_read_counter = number;
                }
                if flags & FI_REMOTE_WRITE != 0 {
                    bindings.remote_write_counter = number;
                }
            }
            // Nothing reports there.
            FI_CLASS_EQ => {}
            _ => return Err(FI_ENOSYS),
        }
        Ok(())
    })
}

extern "C" fn control(fid: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    status(|| match command {
        FI_ENABLE => enable(endpoint(fid)),
        _ => Err(FI_ENOSYS),
    })
}

fn enable(object: &EndpointObject) -> Result<(), i32> {
    let mut state = object.domain.state()?;
    let endpoint = state.endpoint(object.number)?;
    let bindings = endpoint.bindings;
    if bindings.addresses.is_none() {
        return Err(FI_ENOAV);
    }
    if bindings.transmit_queue.is_none() || bindings.receive_queue.is_none() {
        return Err(FI_ENOCQ);
    }
    if bindings.is_enabled {
        return Ok(());
    }
    object.domain.watch(endpoint)?;
    state.watch(object.number, bindings.transmit_queue.ok_or(FI_ENOCQ)?)?;
    if bindings.receive_queue != bindings.transmit_queue {
        state.watch(object.number, bindings.receive_queue.ok_or(FI_ENOCQ)?)?;
    }
    state.endpoint(object.number)?.bindings.is_enabled = true;
    Ok(())
}

extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    count(|| {
        let EndpointObject { domain, number, .. } = endpoint(fid);
        let mut state = domain.state()?;
        let (endpoint, outlets, _) = state.enabled(*number)?;
        if endpoint.cancel(context as usize, outlets) { Ok(0) } else { Err(FI_ENOENT) }
    })
}

extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    status(|| {
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(FI_ENOPROTOOPT);
        }
        let EndpointObject { domain, number, .. } = endpoint(fid);
        let bytes = domain.state()?.endpoint(*number)?.bindings.multi_receive_bytes as usize;
        // SAFETY: the program gives a length, and room for as many bytes.
        unsafe {
            if length.replace(size_of::<usize>()) < size_of::<usize>() {
                return Err(FI_ETOOSMALL);
            }
            value.cast::<usize>().write_unaligned(bytes);
        }
        Ok(())
    })
}

extern "C" fn setopt(fid: *mut fid, level: c_int, name: c_int, value: *const c_void, length: usize) -> c_int {
    status(|| {
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(FI_ENOPROTOOPT);
        }
        if length != size_of::<usize>() {
            return Err(FI_EINVAL);
        }
        let EndpointObject { domain, number, .. } = endpoint(fid);
        // SAFETY: the program gives a value of this length.
        let bytes = unsafe { value.cast::<usize>().read_unaligned() };
        domain.state()?.endpoint(*number)?.bindings.multi_receive_bytes = bytes as u64;
        Ok(())
    })
}

extern "C" fn getname(fid: *mut fid, target: *mut c_void, length: *mut usize) -> c_int {
    status(|| {
        let EndpointObject { domain, number, .. } = endpoint(fid);
        let mut state = domain.state()?;
        let name = state.endpoint(*number)?.name();
        if length.is_null() {
            return Err(FI_EOTHER);
        }
        if address_vector::copy_name(name, target, length) { Ok(()) } else { Err(FI_ETOOSMALL) }
    })
}
