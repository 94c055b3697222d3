//! A domain: endpoints, queues and address vectors behind one lock.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use bywire::Errno;
use bywire_sys::clock;
use bywire_sys::fork::ForkGuard;
use bywire_sys::poller::Poller;

use crate::abi::{FI_EBUSY, FI_EINVAL, FI_ENOKEY, FI_EOPBADSTATE, FI_EOTHER};
use crate::addresses::Addresses;
use crate::endpoint::{Bindings, Endpoint};
use crate::idle::{Advice, Idle, Policy};
use crate::outlets::{self, Outlets};
use crate::persistence::Persistence;
use crate::regions::{Region, Regions};

/// The longest sleep within a call that does not wait: the program has other things to look after.
const NAP: Duration = Duration::from_micros(100);

/// How long closing waits: that of an endpoint until everything has left, that of a region for peers that are reading it. Then
/// their connections end: at once within a machine, within a second between machines.
const LINGER: Duration = Duration::from_secs(5);
/// When it gives up endpoints whose port has not given the memory back. None is known to need it.
const GIVE_UP: Duration = Duration::from_secs(8);
/// How long it pauses between looks.
const PAUSE: Duration = Duration::from_micros(50);

/// A domain.
#[derive(Debug)]
pub struct Domain {
    /// Asked before the lock, which may be that of another thread at the time of a fork, and then is never free in the child.
    guard: ForkGuard,
    state: Mutex<State>,
    /// The descriptors of its endpoints, for sleeps without the state.
    sleep: Mutex<Poller>,
    pub naming: Naming,
}

/// How other endpoints name registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Places are named by their address, instead of where they are in their region.
    pub by_address: bool,
    /// Keys are chosen here, instead of by the program.
    pub has_own_keys: bool,
}

/// What a domain has, by number. A number is free again when nothing names it any more.
#[derive(Debug)]
pub struct State {
    /// As many as there were at a time. Each poll goes through them.
    endpoints: Vec<Option<Endpoint>>,
    /// The numbers of those that were given up, which the program has not closed yet.
    given_up: Vec<usize>,
    vectors: Vec<Option<Addresses>>,
    pub outlets: Outlets,
    /// Each endpoint has them too.
    regions: Regions,
    /// The keys of those that are being closed.
    closing: Vec<u64>,
    /// The queues on which the program sleeps.
    sleeps: Vec<Sleep>,
    idle: Idle,
    persistence: Persistence,
}

/// A sleep of the program on a queue's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    pub queue: usize,
    /// Within a call of this provider? Otherwise the program has asked whether it may sleep, and its sleep may be over.
    pub is_within_call: bool,
}

impl Domain {
    /// A domain. With `is_serial` the program has promised to use it by one thread at a time.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(policy: Policy, naming: Naming, is_serial: bool) -> Result<Self, Errno> {
        let state = State {
            endpoints: Vec::new(),
            given_up: Vec::new(),
            vectors: Vec::new(),
            outlets: Outlets::default(),
            regions: Regions::default(),
            closing: Vec::new(),
            sleeps: Vec::new(),
            idle: Idle::new(policy),
            persistence: Persistence::new(is_serial),
        };
        Ok(Self {
            guard: ForkGuard::new()?,
            state: Mutex::new(state),
            sleep: Mutex::new(Poller::new()?),
            naming,
        })
    }

    /// Is this the process that has opened it, and not a forked child?
    pub fn is_owner(&self) -> bool {
        self.guard.is_owner()
    }

    /// The state, for one call at a time.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic, and [`FI_EOPBADSTATE`] in a forked child. What it would change there is the parent's as well.
    #[inline(always)]
    pub fn state(&self) -> Result<MutexGuard<'_, State>, i32> {
        if !self.is_owner() {
            return Err(FI_EOPBADSTATE);
        }
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

    /// Takes that back. A forked child may keep the port's descriptor open, which then would never be quiet.
    fn unwatch(&self, endpoint: &Endpoint) {
        if let Ok(poller) = self.sleep.lock() {
            poller.remove(endpoint.port());
        }
    }

    /// Closes an endpoint once everything that it has sent has left. Other threads use the domain meanwhile.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic.
    pub fn close_endpoint(&self, number: usize) -> Result<(), i32> {
        let began = Instant::now();
        let mut state = self.state()?;
        while let Some(endpoint) = state.enabled_in_closing(number) {
            if !endpoint.is_busy() || began.elapsed() >= LINGER {
                endpoint.tell_end();
                break;
            }
            // All of them: its receiver may be another one.
            let has_moved = state.progress_in_closing();
            state = self.pause(state, has_moved)?;
        }
        if let Some(endpoint) = state.remove_endpoint(number) {
            self.unwatch(&endpoint);
        }
        Ok(())
    }

    /// Ends a region. Nothing reads or writes its memory any more when this returns, which it does in any case. Other threads use the
    /// domain meanwhile.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic.
    pub fn close_region(&self, key: u64) -> Result<(), i32> {
        let began = Instant::now();
        let mut state = self.state()?;
        state.begin_to_close_region(key);
        while state.puts_region(key) {
            if began.elapsed() >= GIVE_UP {
                for endpoint in state.give_up(key) {
                    self.unwatch(&endpoint);
                    endpoint.abandon(&mut state.outlets);
                }
                break;
            }
            if began.elapsed() >= LINGER {
                state.end_puts_of_region(key);
            }
            let has_moved = state.progress_in_closing();
            state = self.pause(state, has_moved)?;
        }
        state.closing.retain(|closing| *closing != key);
        Ok(())
    }

    /// Leaves the state to other threads for a moment, for longer if nothing has happened.
    fn pause<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        has_moved: bool,
    ) -> Result<MutexGuard<'a, State>, i32> {
        drop(state);
        if has_moved {
            std::thread::yield_now()
        } else {
            std::thread::sleep(PAUSE)
        }
        self.state()
    }

    /// Moves all endpoints on. If nothing happens for a while, the thread lets others have its core. The result has the
    /// state if anything happened. `is_ready` is what the program waits for, which another thread may have brought about.
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic.
    #[inline(always)]
    pub fn poll<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        is_ready: impl Fn(&mut State) -> bool,
    ) -> Result<Option<MutexGuard<'a, State>>, i32> {
        let began = state.persistence.considers().then(clock::cycles);
        if state.progress() {
            state.found();
            return Ok(Some(state));
        }
        if state.idle.is_clock_due() {
            return self.idle(state);
        }
        match began {
            Some(began) => self.look_further(state, began, is_ready),
            None => Ok(None),
        }
    }

    /// A read that began at `began` has looked once, in vain. Maybe it goes on: as [`Domain::poll`].
    #[inline(never)]
    fn look_further<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        began: u64,
        is_ready: impl Fn(&mut State) -> bool,
    ) -> Result<Option<MutexGuard<'a, State>>, i32> {
        let looked = clock::cycles();
        let mut now = looked;
        if state.idle.keeps_core(now)
            && let Some(end) = state.persistence.end(began, now)
        {
            let mut has_found = false;
            while !has_found && now < end {
                drop(state);
                state = self.state()?;
                state.progress();
                has_found = is_ready(&mut state);
                now = clock::cycles();
            }
            state.persistence.went_on(now.wrapping_sub(looked), has_found);
            if has_found {
                state.found();
                return Ok(Some(state));
            }
            state.idle.passed();
        }
        state.persistence.ended_in_vain(now);
        Ok(None)
    }

    /// Waits a moment for the connection to a remote. A program counts what it has injected as sent, and may wait for its effect without
    /// a call that moves it on. The other endpoint may be one of this domain, or of another thread.
    #[cold]
    pub fn wait_for_connection(&self, number: usize, remote: usize) {
        let began_ns = clock::nanoseconds();
        while let Ok(mut state) = self.state() {
            state.progress();
            let waited_ns = clock::nanoseconds().saturating_sub(began_ns);
            let endpoint = state.endpoints.get_mut(number).and_then(Option::as_mut);
            if !endpoint.is_some_and(|endpoint| endpoint.waits_on(remote, waited_ns)) {
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Nothing has happened for a while: as [`Domain::poll`].
    ///
    /// # Errors
    /// [`FI_EOTHER`] after a panic, and [`FI_EOPBADSTATE`] in a forked child.
    #[inline(never)]
    fn idle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<Option<MutexGuard<'a, State>>, i32> {
        let began = clock::cycles();
        match state.idle.found_nothing(began) {
            Advice::Poll => {
                state.persistence.ended_in_vain(began);
                return Ok(None);
            }
            Advice::Yield => {
                drop(state);
                std::thread::yield_now();
                state = self.state()?;
                state.idle.yielded(began, clock::cycles());
            }
            Advice::Sleep => {
                let is_armed = state.endpoints.iter_mut().flatten().all(Endpoint::arm);
                if is_armed {
                    drop(state);
                    self.nap()?;
                    state = self.state()?;
                    state.idle.slept(clock::cycles());
                } else if state.idle.may_offer_instead() {
                    drop(state);
                    std::thread::yield_now();
                    state = self.state()?;
                    state.idle.yielded(began, clock::cycles());
                }
            }
        }
        // Those who had the core may have sent something. The program may offer it again before it asks the next time.
        let has_moved = state.progress();
        if has_moved {
            state.found();
        } else {
            state.persistence.ended_in_vain(clock::cycles());
        }
        Ok(has_moved.then_some(state))
    }

    fn nap(&self) -> Result<(), i32> {
        match self.sleep.try_lock() {
            // If the kernel cannot wait, the next poll comes at once.
            Ok(mut poller) => drop(poller.wait_briefly(NAP).map(drop)),
            // Another thread sleeps here.
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Poisoned(_)) => return Err(FI_EOTHER),
        }
        Ok(())
    }
}

impl State {
    pub fn add_endpoint(&mut self, mut endpoint: Endpoint) -> usize {
        endpoint.regions = self.regions.clone();
        let is_free = |number: &usize| self.endpoints[*number].is_none() && !self.given_up.contains(number);
        let number = (0..self.endpoints.len()).find(is_free).unwrap_or(self.endpoints.len());
        if number == self.endpoints.len() {
            self.endpoints.push(None);
        }
        self.endpoints[number] = Some(endpoint);
        number
    }

    /// Removes an endpoint. No queue's descriptor tells of it any more.
    fn remove_endpoint(&mut self, number: usize) -> Option<Endpoint> {
        self.given_up.retain(|given_up| *given_up != number);
        let endpoint = self.endpoints.get_mut(number)?.take()?;
        for queue in [endpoint.bindings.transmit_queue, endpoint.bindings.receive_queue].into_iter().flatten()
        {
            if let Some(poller) = self.outlets.queue(queue).and_then(|queue| queue.poller()) {
                poller.remove(endpoint.port());
            }
        }
        Some(endpoint)
    }

    pub fn add_vector(&mut self) -> usize {
        outlets::put(&mut self.vectors, Addresses::default())
    }

    /// Closes an address vector.
    ///
    /// # Errors
    /// [`FI_EBUSY`]: an endpoint has it.
    pub fn remove_vector(&mut self, number: usize) -> Result<(), i32> {
        self.unless_bound(|bindings| bindings.addresses == Some(number))?;
        if let Some(vector) = self.vectors.get_mut(number) {
            *vector = None;
        }
        Ok(())
    }

    fn unless_bound(&self, is_bound: impl Fn(&Bindings) -> bool) -> Result<(), i32> {
        let mut bindings = self.endpoints.iter().flatten().map(|endpoint| &endpoint.bindings);
        if bindings.any(is_bound) { Err(FI_EBUSY) } else { Ok(()) }
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

    /// Registers memory.
    ///
    /// # Errors
    /// The key is in use, or there are too many regions.
    pub fn add_region(&mut self, key: u64, region: Region) -> Result<(), i32> {
        if !self.regions.has_room_for(key) || self.closing.contains(&key) {
            return Err(FI_ENOKEY);
        }
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.regions.insert(key, region.clone());
        }
        self.regions.insert(key, region);
        Ok(())
    }

    /// Changes what is counted of a region.
    pub fn change_region(&mut self, key: u64, change: impl Fn(&mut Region)) {
        let others = self.endpoints.iter_mut().flatten().map(|endpoint| &mut endpoint.regions);
        others.chain([&mut self.regions]).filter_map(|regions| regions.region_mut(key)).for_each(change);
    }

    /// Lets nothing more begin with a region.
    fn begin_to_close_region(&mut self, key: u64) {
        self.closing.push(key);
        self.regions.remove(key);
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.regions.remove(key);
        }
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.withdraw_region(key, &mut self.outlets);
        }
    }

    /// Is a region still read for peers, or written by them?
    fn puts_region(&self, key: u64) -> bool {
        self.endpoints.iter().flatten().any(|endpoint| endpoint.puts_region(key))
    }

    fn end_puts_of_region(&mut self, key: u64) {
        self.endpoints.iter_mut().flatten().for_each(|endpoint| endpoint.end_puts_of_region(key));
    }

    /// An endpoint that may have something to send.
    fn enabled_in_closing(&mut self, number: usize) -> Option<&mut Endpoint> {
        let endpoint = self.endpoints.get_mut(number)?.as_mut()?;
        endpoint.bindings.is_enabled.then_some(endpoint)
    }

    /// Moves all endpoints on, also if their queue is full.
    fn progress_in_closing(&mut self) -> bool {
        self.move_on(Endpoint::progress_in_closing)
    }

    /// Takes away endpoints that still put a region. They are to be dropped with their ports, which give back all memory.
    fn give_up(&mut self, key: u64) -> Vec<Endpoint> {
        let is_putting =
            |number: &usize| self.endpoints[*number].as_ref().is_some_and(|one| one.puts_region(key));
        let putting: Vec<_> = (0..self.endpoints.len()).filter(is_putting).collect();
        let endpoints = putting.iter().filter_map(|number| self.remove_endpoint(*number)).collect();
        self.given_up.extend(putting);
        endpoints
    }

    /// An enabled endpoint, with where it reports and the addresses that it knows.
    ///
    /// # Errors
    /// It is not enabled, or was closed.
    #[inline(always)]
    pub fn enabled(&mut self, number: usize) -> Result<(&mut Endpoint, &mut Outlets, &Addresses), i32> {
        let endpoint = self.endpoints.get_mut(number).and_then(Option::as_mut).ok_or(FI_EINVAL)?;
        if !endpoint.bindings.is_enabled {
            return Err(FI_EOPBADSTATE);
        }
        let vector = endpoint.bindings.addresses.and_then(|number| self.vectors.get(number)?.as_ref());
        let addresses = vector.ok_or(FI_EINVAL)?;
        endpoint.follow(addresses);
        Ok((endpoint, &mut self.outlets, addresses))
    }

    /// The program has found something, so it does not wait.
    #[inline]
    pub fn found(&mut self) {
        self.idle.found();
        self.persistence.found();
    }

    /// A read was answered without a look.
    #[inline]
    pub fn answered_in_vain(&mut self, now: u64) {
        self.persistence.ended_in_vain(now);
    }

    /// Moves all endpoints on. The result says whether anything happened.
    #[inline]
    pub fn progress(&mut self) -> bool {
        self.move_on(Endpoint::progress)
    }

    #[inline(always)]
    fn move_on(&mut self, one: impl Fn(&mut Endpoint, &mut Outlets, &Addresses) -> bool) -> bool {
        let Self { endpoints, vectors, outlets, .. } = self;
        let mut has_moved = false;
        for endpoint in endpoints.iter_mut().flatten() {
            let bindings = &endpoint.bindings;
            let vector = bindings.addresses.and_then(|number| vectors.get(number)?.as_ref());
            if let Some(addresses) = vector.filter(|_| bindings.is_enabled) {
                endpoint.follow(addresses);
                has_moved |= one(endpoint, outlets, addresses);
            }
        }
        self.arm_again();
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
        self.endpoints
            .iter_mut()
            .flatten()
            .filter(|endpoint| endpoint.bindings.has_queue(queue))
            .all(Endpoint::arm)
    }

    /// Notes that the program is about to sleep on a queue whose endpoints were armed.
    pub fn fall_asleep(&mut self, sleep: Sleep) {
        self.sleeps.push(sleep);
    }

    /// Takes such a note back.
    pub fn wake_up(&mut self, sleep: Sleep) {
        if let Some(place) = self.sleeps.iter().position(|other| *other == sleep) {
            self.sleeps.swap_remove(place);
        }
    }

    /// Closes a queue.
    ///
    /// # Errors
    /// [`FI_EBUSY`]: an endpoint has it.
    pub fn remove_queue(&mut self, number: usize) -> Result<(), i32> {
        self.unless_bound(|bindings| bindings.has_queue(number))?;
        self.sleeps.retain(|sleep| sleep.queue != number);
        self.outlets.remove(number);
        Ok(())
    }

    /// Closes a counter.
    ///
    /// # Errors
    /// [`FI_EBUSY`]: an endpoint or a region has it.
    pub fn remove_counter(&mut self, number: usize) -> Result<(), i32> {
        self.unless_bound(|bindings| bindings.has_counter(number))?;
        if self.regions.have_counter(number) {
            return Err(FI_EBUSY);
        }
        self.outlets.remove_counter(number);
        Ok(())
    }

    /// To be called when endpoints have moved on: then their descriptors no longer tell of what arrives, and another thread may be
    /// asleep, or this one about to sleep.
    #[inline]
    pub fn arm_again(&mut self) {
        if !self.sleeps.is_empty() {
            self.arm_for_sleepers();
        }
    }

    #[cold]
    fn arm_for_sleepers(&mut self) {
        for place in 0..self.sleeps.len() {
            let queue = self.sleeps[place].queue;
            if !self.arm(queue)
                && let Some(queue) = self.outlets.queue(queue)
            {
                queue.signal();
            }
        }
    }

    /// When one of them has something to do of which its descriptor does not tell.
    pub fn due_ns(&self, queue: usize) -> Option<u64> {
        let reporting = self.endpoints.iter().flatten().filter(|endpoint| endpoint.bindings.has_queue(queue));
        reporting.filter_map(Endpoint::due_ns).min()
    }
}
