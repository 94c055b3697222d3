//! A domain: endpoints, queues and address vectors behind one lock.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use bywire::Errno;
use bywire_sys::clock;
use bywire_sys::poller::Poller;

use crate::abi::{FI_EINVAL, FI_ENOAV, FI_EOPBADSTATE, FI_EOTHER};
use crate::addresses::Addresses;
use crate::endpoint::Endpoint;
use crate::idle::{Advice, Idle, Policy};
use crate::outlets::Outlets;

/// The longest sleep within a call that does not wait: the program has other things to look after.
const NAP: Duration = Duration::from_micros(100);

/// A domain.
#[derive(Debug)]
pub struct Domain {
    state: Mutex<State>,
    /// The descriptors of its endpoints, for sleeps without the state.
    sleep: Mutex<Poller>,
}

/// What a domain has, by number. Numbers are not used again.
#[derive(Debug)]
pub struct State {
    endpoints: Vec<Option<Endpoint>>,
    vectors: Vec<Option<Addresses>>,
    pub outlets: Outlets,
    idle: Idle,
}

impl Domain {
    /// # Errors
    /// The kernel's.
    pub fn new(policy: Policy) -> Result<Self, Errno> {
        let state = State {
            endpoints: Vec::new(),
            vectors: Vec::new(),
            outlets: Outlets::default(),
            idle: Idle::new(policy),
        };
        Ok(Self { state: Mutex::new(state), sleep: Mutex::new(Poller::new()?) })
    }

    /// The state, for one call at a time.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic.
    pub fn state(&self) -> Result<MutexGuard<'_, State>, i32> {
        self.state.lock().map_err(|_| FI_EOTHER)
    }

    /// Lets an enabled endpoint end a sleep.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch(&self, endpoint: &Endpoint) -> Result<(), i32> {
        let poller = self.sleep.lock().map_err(|_| FI_EOTHER)?;
        poller.add(endpoint.port(), 0).map_err(|error| error.raw_os_error())
    }

    /// Moves all endpoints on. If nothing happens for a while, the thread lets others have its core. The result has the
    /// state if anything happened.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic.
    pub fn poll<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<Option<MutexGuard<'a, State>>, i32> {
        if state.progress() {
            state.found();
            return Ok(Some(state));
        }
        if !state.idle.is_clock_due() {
            return Ok(None);
        }
        let began = clock::cycles();
        match state.idle.found_nothing(began) {
            Advice::Poll => return Ok(None),
            Advice::Yield => {
                drop(state);
                std::thread::yield_now();
                state = self.state()?;
                state.idle.yielded(began, clock::cycles());
            }
            Advice::Sleep => {
                let is_armed = state.endpoints.iter_mut().flatten().all(Endpoint::arm);
                drop(state);
                if is_armed {
                    self.nap()?;
                }
                state = self.state()?;
                state.idle.slept(clock::cycles());
            }
        }
        // Those who had the core may have sent something. The program may offer it again before it asks the next time.
        let has_moved = state.progress();
        if has_moved {
            state.found();
        }
        Ok(has_moved.then_some(state))
    }

    fn nap(&self) -> Result<(), i32> {
        match self.sleep.try_lock() {
            // If the kernel cannot wait, the next poll comes at once.
            Ok(mut poller) => drop(poller.wait(Some(NAP)).map(drop)),
            // Another thread sleeps here.
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Poisoned(_)) => return Err(FI_EOTHER),
        }
        Ok(())
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

    /// The program has found something, so it does not wait.
    pub fn found(&mut self) {
        self.idle.found();
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
