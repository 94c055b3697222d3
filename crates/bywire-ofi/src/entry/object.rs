//! The objects behind descriptors.

use std::sync::{Arc, Mutex};

use bywire_sys::poller::Poller;

use super::call::object;
use crate::abi::{fi_cq_tagged_entry, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep, fid_mr};
use crate::domain::Domain;

#[repr(C)]
pub struct DomainObject {
    pub head: fid_domain,
    pub domain: Arc<Domain>,
}

#[repr(C)]
pub struct VectorObject {
    pub head: fid_av,
    pub domain: Arc<Domain>,
    /// Its number in the domain.
    pub number: usize,
}

#[repr(C)]
pub struct QueueObject {
    pub head: fid_cq,
    pub domain: Arc<Domain>,
    /// Its number in the domain.
    pub number: usize,
    /// How much of a completion the program reads: the beginning of [`fi_cq_tagged_entry`].
    pub entry_bytes: usize,
    /// For waiting without the domain's lock.
    pub sleep: Option<Mutex<Poller>>,
}

#[repr(C)]
pub struct EndpointObject {
    pub head: fid_ep,
    pub domain: Arc<Domain>,
    /// Its number in the domain.
    pub number: usize,
}

#[repr(C)]
pub struct CounterObject {
    pub head: fid_cntr,
    pub domain: Arc<Domain>,
    /// Its number in the domain.
    pub number: usize,
}

#[repr(C)]
pub struct RegionObject {
    pub head: fid_mr,
    pub domain: Arc<Domain>,
    pub key: u64,
}

/// The whole of a completion.
pub const ENTRY_BYTES_MAX: usize = size_of::<fi_cq_tagged_entry>();

/// The state of the domain in which something is opened.
pub fn domain_of(domain: *mut fid_domain) -> Arc<Domain> {
    // SAFETY: the calls that open something in a domain are in its own table.
    unsafe { object::<DomainObject, _>(domain) }.domain.clone()
}

/// The vector of whose tables a call is, or at whose class the caller has looked.
pub fn vector<'a, F>(vector: *mut F) -> &'a VectorObject {
    // SAFETY: it is the first field of such an object.
    unsafe { object(vector) }
}

/// The queue of whose tables a call is, or at whose class the caller has looked.
pub fn queue<'a, F>(queue: *mut F) -> &'a QueueObject {
    // SAFETY: it is the first field of such an object.
    unsafe { object(queue) }
}

/// The counter of whose tables a call is, or at whose class the caller has looked.
pub fn counter<'a, F>(counter: *mut F) -> &'a CounterObject {
    // SAFETY: it is the first field of such an object.
    unsafe { object(counter) }
}

/// The endpoint of whose tables a call is.
pub fn endpoint<'a, F>(endpoint: *mut F) -> &'a EndpointObject {
    // SAFETY: it is the first field of such an object.
    unsafe { object(endpoint) }
}

/// The region of whose tables a call is.
pub fn region<'a, F>(region: *mut F) -> &'a RegionObject {
    // SAFETY: it is the first field of such an object.
    unsafe { object(region) }
}
