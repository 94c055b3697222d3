//! What the provider offers, and whether that is what the program wants.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::{
    FI_AV_TABLE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV, FI_ENODATA, FI_ENOMEM, FI_EP_RDM,
    FI_INJECT, FI_INJECT_COMPLETE, FI_LOCAL_COMM, FI_MATCH_COMPLETE, FI_MR_BASIC, FI_MR_PROV_KEY,
    FI_MR_SCALABLE, FI_MR_VIRT_ADDR, FI_MSG, FI_MULTI_RECV, FI_ORDER_SAS, FI_PROGRESS_MANUAL,
    FI_PROGRESS_UNSPEC, FI_READ, FI_RECV, FI_REMOTE_COMM, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RM_ENABLED,
    FI_RMA, FI_RMA_EVENT, FI_SEND, FI_SOURCE, FI_TAGGED, FI_THREAD_DOMAIN, FI_THREAD_SAFE,
    FI_TRANSMIT_COMPLETE, FI_WRITE, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr,
    fi_tx_attr,
};
use crate::domain::Naming;
use crate::memory::PIECES_MAX;
use crate::name::{EndpointName, NAME_BYTES, TICKET_BYTES};
use crate::regions::REGIONS_MAX;

/// The version of this provider.
pub const PROVIDER_VERSION: u32 = 1;
/// The longest payload of an inject, in bytes.
pub const INJECT_BYTES: usize = 4096;
/// The longest message, in bytes.
const MESSAGE_BYTES: usize = 1 << 40;
/// Operations that a program may begin without looking for completions.
const OPERATIONS: usize = 1 << 16;
/// Places of registered memory that one operation accesses.
pub const RMA_PIECES: usize = 1;
/// Pieces of registered memory.
pub const REGION_PIECES: usize = 1;
/// Endpoints, queues and the like: as many as there are descriptors for.
const OBJECTS: usize = 1 << 10;

/// Capabilities of transmitting and receiving.
const TRANSMIT_CAPS: u64 = FI_TAGGED | FI_MSG | FI_SEND | FI_RMA | FI_READ | FI_WRITE;
const RECEIVE_CAPS: u64 = FI_TAGGED
    | FI_MSG
    | FI_RECV
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_RMA
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RMA_EVENT;
/// The directions of messages, and those of RMA.
const MESSAGE_WAYS: u64 = FI_SEND | FI_RECV;
const RMA_WAYS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const CAPS: u64 = TRANSMIT_CAPS | RECEIVE_CAPS | DOMAIN_CAPS;
const TRANSMIT_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;
const RECEIVE_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

const NAME: &CStr = c"bywire";
/// The version from which `mr_mode` consists of bits.
const WITH_MODE_BITS: u32 = 1 << 16 | 5;

/// Answers `fi_getinfo`.
pub fn describe(version: u32, hints: *const fi_info, found: *mut *mut fi_info) -> Result<(), i32> {
    // SAFETY: libfabric gives valid hints or none.
    let hints = unsafe { hints.as_ref() }.map(Hints::of);
    if !is_wanted(hints.as_ref()) || hints.as_ref().is_some_and(|hints| !hints.are_met()) {
        return Err(FI_ENODATA);
    }
    let info = allocate(version, hints.as_ref()).ok_or(FI_ENOMEM)?;
    // SAFETY: libfabric gives a valid place.
    unsafe { found.write(info) };
    Ok(())
}

/// Has the program or its user asked for this provider? Otherwise every program would get it that takes the first one.
fn is_wanted(hints: Option<&Hints<'_>>) -> bool {
    let names = |list: &str| list.split([',', ';']).any(|name| name.trim() == "bywire");
    let is_in_hints =
        hints.and_then(|hints| hints.provider).is_some_and(|name| names(&name.to_string_lossy()));
    is_in_hints
        || std::env::var("FI_PROVIDER").is_ok_and(|list| !list.trim_start().starts_with('^') && names(&list))
}

/// A C string of the program's hints.
fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: hints have valid strings or none, for as long as the call runs.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// What a program asks for.
struct Hints<'a> {
    info: &'a fi_info,
    transmit: Option<&'a fi_tx_attr>,
    receive: Option<&'a fi_rx_attr>,
    endpoint: Option<&'a fi_ep_attr>,
    domain: Option<&'a fi_domain_attr>,
    fabric: Option<&'a fi_fabric_attr>,
    provider: Option<&'a CStr>,
}

impl<'a> Hints<'a> {
    fn of(info: &'a fi_info) -> Self {
        // SAFETY: hints have valid attributes or none. Of those, only fields of version 1.17 are read.
        let (transmit, receive, endpoint, domain, fabric) = unsafe {
            (
                info.tx_attr.as_ref(),
                info.rx_attr.as_ref(),
                info.ep_attr.as_ref(),
                info.domain_attr.as_ref(),
                info.fabric_attr.as_ref(),
            )
        };
        let provider = fabric.and_then(|fabric| text(fabric.prov_name));
        Self { info, transmit, receive, endpoint, domain, fabric, provider }
    }

    /// Does the provider have all that is asked for?
    fn are_met(&self) -> bool {
        let named = |name: *const c_char| text(name).is_none_or(|name| name == NAME);
        let manual = |progress: u32| [FI_PROGRESS_UNSPEC, FI_PROGRESS_MANUAL].contains(&progress);
        self.info.caps & !CAPS == 0
            && self.info.addr_format == 0
            && self.transmit.is_none_or(|transmit| {
                transmit.caps & !CAPS == 0
                    && transmit.op_flags & !TRANSMIT_FLAGS == 0
                    && transmit.msg_order & !FI_ORDER_SAS == 0
                    && transmit.comp_order == 0
                    && transmit.inject_size <= INJECT_BYTES
                    && transmit.size <= OPERATIONS
                    && transmit.iov_limit <= PIECES_MAX
                    && transmit.rma_iov_limit <= RMA_PIECES
            })
            && self.receive.is_none_or(|receive| {
                receive.caps & !CAPS == 0
                    && receive.op_flags & !RECEIVE_FLAGS == 0
                    && receive.msg_order & !FI_ORDER_SAS == 0
                    && receive.comp_order == 0
                    && receive.size <= OPERATIONS
                    && receive.iov_limit <= PIECES_MAX
            })
            && self.endpoint.is_none_or(|endpoint| {
                [0, FI_EP_RDM].contains(&endpoint.kind)
                    && endpoint.protocol == 0
                    && endpoint.max_msg_size <= MESSAGE_BYTES
                    && endpoint.tx_ctx_cnt <= 1
                    && endpoint.rx_ctx_cnt <= 1
                    && endpoint.auth_key_size == 0
            })
            && self.domain.is_none_or(|domain| {
                named(domain.name)
                    && manual(domain.control_progress)
                    && manual(domain.data_progress)
                    && domain.cq_data_size <= 8
                    && domain.caps & !DOMAIN_CAPS == 0
                    && domain.auth_key_size == 0
            })
            && self.fabric.is_none_or(|fabric| named(fabric.name))
    }
}

/// Zeroed memory that libfabric frees with the description.
fn zeroed<T>() -> Option<&'static mut T> {
    // SAFETY: of every type that is allocated here, zeros are a value.
    unsafe { libc::calloc(1, size_of::<T>()).cast::<T>().as_mut() }
}

fn name() -> Option<*mut c_char> {
    // SAFETY: a valid string.
    let copy = unsafe { libc::strdup(NAME.as_ptr()) };
    (!copy.is_null()).then_some(copy)
}

/// A description that repeats the choices of the hints. `None`: there is no memory, of which the rest is then lost.
fn allocate(version: u32, hints: Option<&Hints<'_>>) -> Option<*mut fi_info> {
    // Capabilities that are not asked for can cost something. Those for both ways come together.
    let asked = hints.map_or(0, |hints| hints.info.caps);
    let ways = |kinds: u64, ways: u64| if asked & kinds != 0 && asked & ways == 0 { ways } else { 0 };
    let ways = ways(FI_TAGGED | FI_MSG, MESSAGE_WAYS) | ways(FI_RMA, RMA_WAYS);
    let caps = if asked == 0 { CAPS } else { asked | ways | DOMAIN_CAPS };
    let transmit: &mut fi_tx_attr = zeroed()?;
    transmit.caps = caps & TRANSMIT_CAPS;
    transmit.op_flags = hints.and_then(|hints| hints.transmit).map_or(0, |transmit| transmit.op_flags);
    transmit.msg_order = FI_ORDER_SAS;
    transmit.inject_size = INJECT_BYTES;
    transmit.size = OPERATIONS;
    transmit.iov_limit = PIECES_MAX;
    transmit.rma_iov_limit = if caps & FI_RMA != 0 { RMA_PIECES } else { 0 };

    let receive: &mut fi_rx_attr = zeroed()?;
    receive.caps = caps & RECEIVE_CAPS;
    receive.op_flags = hints.and_then(|hints| hints.receive).map_or(0, |receive| receive.op_flags);
    receive.msg_order = FI_ORDER_SAS;
    receive.size = OPERATIONS;
    receive.iov_limit = PIECES_MAX;

    let endpoint: &mut fi_ep_attr = zeroed()?;
    endpoint.kind = FI_EP_RDM;
    endpoint.protocol_version = 1;
    endpoint.max_msg_size = MESSAGE_BYTES;
    endpoint.mem_tag_format = u64::MAX;
    (endpoint.tx_ctx_cnt, endpoint.rx_ctx_cnt) = (1, 1);

    let wanted = hints.and_then(|hints| hints.domain);
    let domain: &mut fi_domain_attr = zeroed()?;
    domain.name = name()?;
    domain.threading = wanted.map_or(0, |domain| domain.threading);
    if domain.threading == 0 {
        domain.threading = FI_THREAD_SAFE;
    }
    (domain.control_progress, domain.data_progress) = (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL);
    domain.resource_mgmt = FI_RM_ENABLED;
    domain.av_type = wanted.map_or(0, |domain| domain.av_type);
    if domain.av_type == 0 {
        domain.av_type = FI_AV_TABLE;
    }
    domain.mr_mode = registration(version, wanted);
    (domain.mr_iov_limit, domain.mr_cnt) = (REGION_PIECES, REGIONS_MAX);
    (domain.mr_key_size, domain.cq_data_size) = (8, 8);
    (domain.cq_cnt, domain.ep_cnt, domain.tx_ctx_cnt, domain.rx_ctx_cnt) =
        (OBJECTS, OBJECTS, OBJECTS, OBJECTS);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    domain.cntr_cnt = OBJECTS;
    domain.caps = DOMAIN_CAPS;

    let fabric: &mut fi_fabric_attr = zeroed()?;
    fabric.name = name()?;
    fabric.prov_version = PROVIDER_VERSION;
    fabric.api_version = version;

    // An endpoint gets its name when it is opened.
    let name: &mut [u8; NAME_BYTES] = zeroed()?;
    *name = *EndpointName::new("", 0, 0, [0; TICKET_BYTES]).as_bytes();

    let info: &mut fi_info = zeroed()?;
    (info.src_addr, info.src_addrlen) = (std::ptr::from_mut(name).cast(), NAME_BYTES);
    info.caps = caps;
    info.tx_attr = transmit;
    info.rx_attr = receive;
    info.ep_attr = endpoint;
    info.domain_attr = domain;
    info.fabric_attr = fabric;
    Some(info)
}

/// How memory is registered. Nothing is required of the program, so it may choose keys, and places are named by where they are
/// in their region. A program that knows the older choice only, with addresses and keys of the provider, gets that.
fn registration(version: u32, wanted: Option<&fi_domain_attr>) -> c_int {
    match wanted.map_or(0, |domain| domain.mr_mode) {
        FI_MR_BASIC => FI_MR_BASIC,
        FI_MR_SCALABLE => FI_MR_SCALABLE,
        _ if version < WITH_MODE_BITS => FI_MR_SCALABLE,
        _ => 0,
    }
}

/// Does the program with this description promise to use a domain by one thread at a time?
pub fn is_serial(info: *const fi_info) -> bool {
    // SAFETY: the program gives a valid description, with valid attributes or none.
    let domain = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
    domain.is_some_and(|domain| domain.threading == FI_THREAD_DOMAIN)
}

/// How other endpoints name memory that is registered in a domain with this description.
pub fn naming(info: *const fi_info) -> Naming {
    // SAFETY: the program gives a valid description, with valid attributes or none.
    let mode = unsafe {
        let Some(info) = info.as_ref() else { return Naming::default() };
        info.domain_attr.as_ref().map_or(0, |domain| domain.mr_mode)
    };
    let is_basic = mode == FI_MR_BASIC;
    Naming {
        by_address: is_basic || mode & FI_MR_VIRT_ADDR != 0,
        has_own_keys: is_basic || mode & FI_MR_PROV_KEY != 0,
    }
}

/// Do the receives of an endpoint with this description name their source?
pub fn has_directed_receives(info: *const fi_info) -> bool {
    // SAFETY: the program gives a valid description.
    unsafe { info.as_ref() }.is_none_or(|info| info.caps & FI_DIRECTED_RECV != 0)
}

/// Flags of operations that have none of their own, in the description that an endpoint is opened with.
pub fn default_flags(info: *const fi_info) -> (u64, u64) {
    // SAFETY: the program gives a valid description, with valid attributes or none.
    let (transmit, receive) = unsafe {
        let Some(info) = info.as_ref() else { return (0, 0) };
        (info.tx_attr.as_ref(), info.rx_attr.as_ref())
    };
    (transmit.map_or(0, |transmit| transmit.op_flags), receive.map_or(0, |receive| receive.op_flags))
}
