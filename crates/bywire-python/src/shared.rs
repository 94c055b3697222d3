//! A port that threads of one interpreter take turns with: its lock, and how a thread waits.
//!
//! A thread that waits holds the port while it spins, at most 50 µs, and not while it sleeps. So another thread can send
//! meanwhile. The interpreter's lock is free during both.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bywire::{Port, Priority, sleep_ended, spin};
use bywire_sys::fork::ForkGuard;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::errors::Failure;
use crate::state::{Posted, State};

/// How often a wait looks for room again when the port keeps as many arrivals as it may: for a second.
const FULL_ROUNDS_MAX: u32 = 1000;
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// The longest message that needs no memory of the library.
const INLINE_BYTES: usize = 56;

/// A port and the things that wake the threads that wait for it.
pub struct Shared {
    guard: ForkGuard,
    state: Mutex<State>,
    descriptor: RawFd,
}

/// The end of a wait. `None`: it has none.
#[derive(Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The end of a wait of this many seconds.
    ///
    /// # Errors
    /// `ValueError` for a number that is negative or none.
    pub fn after(timeout: Option<f64>) -> PyResult<Self> {
        let Some(seconds) = timeout else { return Ok(Self(None)) };
        if seconds.is_nan() || seconds < 0.0 {
            return Err(PyValueError::new_err(
                "a timeout is a number of seconds from 0 on, or None for no end",
            ));
        }
        // A timeout beyond the range of the clock means forever.
        let timeout = Duration::try_from_secs_f64(seconds).ok();
        Ok(Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout))))
    }

    fn rest(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// The outcome of one round of a wait.
enum Round<R> {
    /// Found, and whether something else has to be done attached to the interpreter.
    Done(R, bool),
    /// Long messages wait for memory, or a signal has to be handled.
    Attend,
    TimedOut,
}

impl Shared {
    /// Wraps a port that was opened just now.
    ///
    /// # Errors
    /// `OSError` without memory or descriptors.
    pub fn new(port: Port) -> PyResult<Self> {
        let system = |error: Errno| PyOSError::new_err((error.raw_os_error(), error.to_string()));
        Ok(Self {
            guard: ForkGuard::new().map_err(system)?,
            descriptor: port.as_fd().as_raw_fd(),
            state: Mutex::new(State::new(port)),
        })
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// The state. The caller runs no Python code while it holds the lock.
    ///
    /// # Errors
    /// `Forked`. A thread of the parent may have held the lock when it forked.
    pub fn lock(&self) -> Result<MutexGuard<'_, State>, Failure> {
        if self.guard.is_owner() { Ok(self.lock_anyway()) } else { Err(Failure::forked()) }
    }

    fn lock_anyway(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that sleep, after a call that may have taken what would have woken them.
    fn wake_others(&self, state: &State) {
        for bell in &state.sleepers {
            // A full counter wakes the thread as well.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Closes the port. Waits of other threads end with `Closed`.
    pub fn close(&self, py: Python<'_>) {
        if !self.guard.is_owner() {
            return;
        }
        let closed = py.detach(|| {
            let mut state = self.lock_anyway();
            let mut closed = state.take_all();
            self.wake_others(&state);
            // Dropping the port may take a while for peers on other machines, which others need not wait for.
            drop(state);
            drop(closed.port.take());
            closed
        });
        // Messages may own memory of Python.
        drop(closed);
    }

    /// Takes one event of the port, if there is one, and then what is wanted, if it has arrived. Never waits.
    ///
    /// # Errors
    /// The port is closed, or belongs to the parent process.
    pub fn attempt<R>(
        &self,
        py: Python<'_>,
        mut attempt: impl FnMut(&mut State) -> Option<R>,
    ) -> PyResult<Option<R>> {
        let (found, needs_attention) = {
            let mut state = self.lock()?;
            let mut found = attempt(&mut state);
            if found.is_none() {
                while let Some(event) = if state.is_full() { None } else { state.port()?.poll() } {
                    state.absorb(event);
                    found = attempt(&mut state);
                    if found.is_some() {
                        break;
                    }
                }
                self.wake_others(&state);
            }
            (found, state.needs_attention())
        };
        if needs_attention {
            self.attend(py)?;
        }
        Ok(found)
    }

    /// Looks for what is wanted as long as a wait spins before it sleeps. `None`: it has not come.
    ///
    /// # Errors
    /// Those of [`Self::attempt`].
    pub fn spin<R: Send>(
        &self,
        py: Python<'_>,
        mut attempt: impl FnMut(&mut State) -> Option<R> + Send,
    ) -> PyResult<Option<R>> {
        let (found, needs_attention) = py.detach(|| {
            let mut state = self.lock()?;
            let mut found = attempt(&mut state);
            while found.is_none() && state.needed.is_empty() && !state.is_full() {
                let Some(event) = spin(state.port()?) else { break };
                state.absorb(event);
                found = attempt(&mut state);
            }
            self.wake_others(&state);
            Ok::<_, Failure>((found, state.needs_attention()))
        })?;
        if needs_attention {
            self.attend(py)?;
        }
        Ok(found)
    }

    /// Waits until `attempt` yields something. `None`: the time is up.
    ///
    /// # Errors
    /// The port is closed, belongs to the parent process, or keeps too many arrivals; or a signal's handler has raised an
    /// exception, such as `KeyboardInterrupt`.
    pub fn wait<R: Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        mut attempt: impl FnMut(&mut State) -> Option<R> + Send,
    ) -> PyResult<Option<R>> {
        if let Some(found) = self.attempt(py, &mut attempt)? {
            return Ok(Some(found));
        }
        loop {
            match py.detach(|| self.round(deadline, &mut attempt))? {
                Round::Done(found, false) => return Ok(Some(found)),
                Round::Done(found, true) => {
                    self.attend(py)?;
                    return Ok(Some(found));
                }
                Round::TimedOut => return Ok(None),
                Round::Attend => {}
            }
            py.check_signals()?;
            self.attend(py)?;
        }
    }

    /// Waits detached from the interpreter.
    fn round<R>(
        &self,
        deadline: Deadline,
        attempt: &mut impl FnMut(&mut State) -> Option<R>,
    ) -> Result<Round<R>, Failure> {
        let mut full_rounds = 0;
        loop {
            let mut state = self.lock()?;
            let mut has_absorbed = false;
            loop {
                if let Some(found) = attempt(&mut state) {
                    self.wake_others(&state);
                    return Ok(Round::Done(found, state.needs_attention()));
                }
                if !state.needed.is_empty() {
                    self.wake_others(&state);
                    return Ok(Round::Attend);
                }
                if state.is_full() {
                    break;
                }
                match spin(state.port()?) {
                    Some(event) => {
                        state.absorb(event);
                        has_absorbed = true;
                    }
                    None => break,
                }
            }
            // Another thread may wait for what this one does not want.
            if has_absorbed {
                self.wake_others(&state);
            }
            if state.is_full() && deadline.rest() != Some(Duration::ZERO) {
                drop(state);
                full_rounds += 1;
                if full_rounds == FULL_ROUNDS_MAX {
                    return Err(Failure::new(
                        "Overflow",
                        "4096 messages wait that the program does not take: call `receive` or `wait` of the port",
                    ));
                }
                // Another thread may take some.
                std::thread::sleep(FULL_PAUSE);
                continue;
            }
            let rest = deadline.rest();
            if rest == Some(Duration::ZERO) {
                self.wake_others(&state);
                return Ok(Round::TimedOut);
            }
            if !state.port()?.arm() {
                continue;
            }
            // Each thread has a bell of its own. It would take one that all share before another thread has heard it.
            let bell = match state.bells.pop() {
                Some(bell) => bell,
                None => new_bell()
                    .map_err(|error| Failure::new("Error", format!("the system refused: {error}")))?,
            };
            state.sleepers.push(bell.clone());
            drop(state);
            let began = Instant::now();
            let slept = self.sleep(&bell, rest);
            let mut state = self.lock()?;
            state.sleepers.retain(|other| !Arc::ptr_eq(other, &bell));
            state.bells.push(bell);
            if let Ok(port) = state.port() {
                sleep_ended(port, began.elapsed());
                if let Some(event) = port.poll() {
                    state.absorb(event);
                    self.wake_others(&state);
                }
            }
            match slept {
                Ok(()) => {}
                Err(Errno::INTR) => {
                    self.wake_others(&state);
                    return Ok(Round::Attend);
                }
                Err(error) => {
                    return Err(Failure::new("Error", format!("the system refused to wait: {error}")));
                }
            }
        }
    }

    fn sleep(&self, bell: &OwnedFd, rest: Option<Duration>) -> Result<(), Errno> {
        // SAFETY: the descriptor belongs to the port. If another thread closes the port meanwhile, the bell ends the wait, and
        // until then the number at worst means another descriptor, which wakes this thread for nothing.
        let port = unsafe { rustix::fd::BorrowedFd::borrow_raw(self.descriptor) };
        let mut descriptors =
            [PollFd::from_borrowed_fd(port, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        poll(&mut descriptors, rest.as_ref())?;
        if !descriptors[1].revents().is_empty() {
            // Rung after this, it wakes the next thread that sleeps with it once for nothing.
            rustix::io::read(bell, &mut [0u8; 8])?;
        }
        Ok(())
    }

    /// Posts memory for the long messages that wait for some, and gives back that of complete transfers.
    fn attend(&self, py: Python<'_>) -> PyResult<()> {
        let (needed, finished) = {
            let mut state = self.lock()?;
            (std::mem::take(&mut state.needed), std::mem::take(&mut state.finished))
        };
        drop(finished);
        for (priority, length) in needed {
            let (posted, address, length) = new_bytearray(py, length)?;
            // SAFETY: the bytes are those of an object that no program has seen. `State::posted` keeps it until the library has
            // given the memory back.
            let buffer = unsafe { bywire::Buffer::from_raw(address, length) };
            let result = self.lock()?.post(priority, buffer, posted);
            // Without a token the sender is held back, until memory that was posted before has been used.
            drop(result);
        }
        Ok(())
    }

    /// Gives the library's memory back to it, for later messages.
    pub fn recycle(&self, payload: bywire::Payload) {
        // A short message has none.
        if payload.len() > INLINE_BYTES
            && let Ok(mut state) = self.lock()
            && let Ok(port) = state.port()
        {
            port.recycle(payload);
        }
    }

    /// Posts memory of the program.
    ///
    /// # Errors
    /// All tokens are in use, or the memory is posted already.
    pub fn post(&self, priority: Priority, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = crate::view::View::of(object, true)?;
        if view.len() == 0 {
            return Err(PyValueError::new_err("memory for a message has at least one byte"));
        }
        // SAFETY: `State::posted` keeps the view until the library has given the memory back.
        let buffer = unsafe { view.lend() };
        let mut state = self.lock()?;
        if state.is_posted(view.address() as usize) {
            drop(state);
            return Err(PyValueError::new_err("this memory is posted already"));
        }
        let result = state.post(priority, buffer, Posted::Theirs(object.clone().unbind(), view));
        drop(state);
        result.map_err(|(failure, _)| failure.into())
    }
}

/// A bell for one thread that sleeps.
fn new_bell() -> Result<Arc<OwnedFd>, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new)
}

/// A new `bytearray` whose bytes mean nothing yet.
fn new_bytearray(py: Python<'_>, length: u64) -> PyResult<(Posted, *mut u8, usize)> {
    let bytes = isize::try_from(length).map_err(|_| PyMemoryError::new_err("the message is too long"))?;
    // SAFETY: attached. Without a source the interpreter leaves the memory as it is.
    let object = unsafe { ffi::PyByteArray_FromStringAndSize(std::ptr::null(), bytes) };
    // SAFETY: a new reference, or null with an exception set.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object)? };
    // SAFETY: a `bytearray`, and attached.
    let address = unsafe { ffi::PyByteArray_AsString(object.as_ptr()) };
    Ok((Posted::Own(object.unbind()), address.cast(), bytes as usize))
}
