//! A domain: endpoints, queues and address vectors behind one lock.

use std::sync::{Mutex, MutexGuard};

use crate::abi::{FI_EINVAL, FI_ENOAV, FI_EOPBADSTATE, FI_EOTHER};
use crate::addresses::Addresses;
use crate::endpoint::Endpoint;
use crate::idle::Idle;
use crate::outlets::Outlets;

/// A domain.
#[derive(Debug, Default)]
pub struct Domain {
    state: Mutex<State>,
}

/// What a domain has, by number. Numbers are not used again.
#[derive(Debug, Default)]
pub struct State {
    endpoints: Vec<Option<Endpoint>>,
    vectors: Vec<Option<Addresses>>,
    pub outlets: Outlets,
    pub idle: Idle,
}

impl Domain {
    /// The state, for one call at a time.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic.
    pub fn state(&self) -> Result<MutexGuard<'_, State>, i32> {
        self.state.lock().map_err(|_| FI_EOTHER)
    }
}

impl State {
    pub fn add_endpoint(&mut self, endpoint: Endpoint) -> usize {
        self.endpoints.push(Some(endpoint));
        self.endpoints.len() - 1
    }

    pub fn remove_endpoint(&mut self, number: usize) -> Option<Endpoint> {
        self.endpoints.get_mut(number)?.take()
    }

    pub fn add_vector(&mut self) -> usize {
        self.vectors.push(Some(Addresses::default()));
        self.vectors.len() - 1
    }

    pub fn remove_vector(&mut self, number: usize) {
        if let Some(vector) = self.vectors.get_mut(number) {
            *vector = None;
        }
    }

    /// # Errors
    /// It was closed.
    pub fn vector(&mut self, number: usize) -> Result<&mut Addresses, i32> {
        self.vectors.get_mut(number).and_then(Option::as_mut).ok_or(FI_EINVAL)
    }

    /// # Errors
    /// It was closed.
    pub fn endpoint(&mut self, number: usize) -> Result<&mut Endpoint, i32> {
        self.endpoints.get_mut(number).and_then(Option::as_mut).ok_or(FI_EINVAL)
    }

    /// Lets an enabled endpoint work, with where it reports and the addresses that it knows.
    ///
    /// # Errors
    /// It is not enabled, or was closed, or those of `call`.
    #[inline]
    pub fn work<T>(
        &mut self,
        number: usize,
        call: impl FnOnce(&mut Endpoint, &mut Outlets, &Addresses) -> Result<T, i32>,
    ) -> Result<T, i32> {
        let endpoint = self.endpoints.get_mut(number).and_then(Option::as_mut).ok_or(FI_EINVAL)?;
        if !endpoint.bindings.is_enabled {
            return Err(FI_EOPBADSTATE);
        }
        let vector = endpoint.bindings.addresses.and_then(|number| self.vectors.get(number)?.as_ref());
        let addresses = vector.ok_or(FI_ENOAV)?;
        endpoint.follow(addresses);
        call(endpoint, &mut self.outlets, addresses)
    }

    /// Moves all endpoints on. The result says whether anything happened.
    pub fn progress(&mut self) -> bool {
        let mut has_moved = false;
        for number in 0..self.endpoints.len() {
            let moved =
                self.work(number, |endpoint, outlets, addresses| Ok(endpoint.progress(outlets, addresses)));
            has_moved |= moved == Ok(true);
        }
        has_moved
    }

    /// Lets a sleep on a queue's descriptor end when something may have arrived at an endpoint.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch(&mut self, number: usize, queue: usize) -> Result<(), i32> {
        let endpoint = self.endpoints.get(number).and_then(Option::as_ref).ok_or(FI_EINVAL)?;
        match self.outlets.queue(queue).and_then(|queue| queue.poller()) {
            Some(poller) => {
                poller.add(endpoint.port(), number as u64 + 1).map_err(|error| error.raw_os_error())
            }
            None => Ok(()),
        }
    }

    /// Prepares all endpoints that report to a queue for a sleep on their descriptors. `false`: one has something to do.
    pub fn arm(&mut self, queue: usize) -> bool {
        let reports = |endpoint: &&mut Endpoint| {
            let bindings = &endpoint.bindings;
            [bindings.transmit_queue, bindings.receive_queue].contains(&Some(queue))
        };
        self.endpoints.iter_mut().flatten().filter(reports).all(Endpoint::arm)
    }
}
