//! A port that threads of one interpreter take turns with: its lock, and how a thread waits.
//!
//! A thread that waits holds the port while it spins, at most 50 µs, and not while it sleeps. So another thread can send
//! meanwhile. The interpreter's lock is free during both.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bywire::{Port, Priority, sleep_ended};
use bywire_sys::fork::ForkGuard;
use bywire_sys::poller::Poller;
use bywire_sys::wake::Eventfd;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    watch: OnceLock<Watch>,
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
    NeedsInterpreter,
    TimedOut,
}

/// The descriptor that an event loop watches: the port's, and a bell for what other threads have taken off the port.
struct Watch {
    poller: Poller,
    bell: Eventfd,
}

/// A turn with the port: its state, locked. At its end those who sleep are woken if they have to look again.
pub struct Turn<'a> {
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
}

impl Deref for Turn<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Turn<'_> {
    /// Has this thread sleep from the end of the turn on. The others are woken now if they have to look again, without it.
    fn fall_asleep(&mut self, bell: Arc<Eventfd>) {
        self.wake_others();
        self.sleepers.fall_asleep(bell);
    }

    fn wake_others(&mut self) {
        self.state.sleepers.end_turn(self.shared.watcher_bell());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.wake_others();
    }
}

impl Shared {
    /// Wraps a port that was opened just now.
    ///
    /// # Errors
    /// `OSError` without memory or descriptors.
    pub fn new(port: Port) -> PyResult<Self> {
        Ok(Self {
            guard: ForkGuard::new().map_err(system_error)?,
            descriptor: port.as_fd().as_raw_fd(),
            watch: OnceLock::new(),
            state: Mutex::new(State::new(port)),
        })
    }

    /// Takes a turn with the port. The caller runs no Python code until it ends.
    ///
    /// # Errors
    /// `Forked`. A thread of the parent may have held the lock when it forked.
    pub fn lock(&self) -> Result<Turn<'_>, Failure> {
        if self.guard.is_owner() { Ok(self.lock_anyway()) } else { Err(Failure::forked()) }
    }

    fn lock_anyway(&self) -> Turn<'_> {
        Turn { shared: self, state: self.state.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn watcher_bell(&self) -> Option<&Eventfd> {
        self.watch.get().map(|watch| &watch.bell)
    }

    /// The descriptor for an event loop, made at its first use.
    fn watch(&self) -> PyResult<&Watch> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch);
        }
        let turn = self.lock()?;
        let port = turn.port.as_ref().ok_or_else(Failure::closed)?;
        let watch = Watch {
            poller: Poller::new().map_err(system_error)?,
            bell: Eventfd::new().map_err(system_error)?,
        };
        watch.poller.add(port, 0).map_err(system_error)?;
        watch.poller.add(&watch.bell, 0).map_err(system_error)?;
        // Another thread may have been first.
        Ok(self.watch.get_or_init(|| watch))
    }

    /// The descriptor for an event loop, readable after [`Self::arm`] as soon as there may be something.
    ///
    /// # Errors
    /// The port is closed, or belongs to the parent process; `OSError` without memory or descriptors.
    pub fn watch_descriptor(&self) -> PyResult<RawFd> {
        let watch = self.watch()?;
        self.lock()?.port()?;
        Ok(watch.poller.as_fd().as_raw_fd())
    }

    /// Prepares an event loop to sleep on that descriptor. `false`: there may be something already.
    ///
    /// # Errors
    /// Those of [`Self::watch_descriptor`].
    pub fn arm(&self) -> PyResult<bool> {
        let watch = self.watch()?;
        let mut turn = self.lock()?;
        if turn.sleepers.take_watcher_ring() {
            watch.bell.drain();
        }
        // Another thread may have put something by since the loop has looked.
        if turn.sleepers.take_watcher_news() || !turn.arm()? {
            return Ok(false);
        }
        turn.sleepers.watch();
        Ok(true)
    }

    /// Notes that the event loop is awake, and looks for itself. Nobody has to ring for it until it arms again.
    ///
    /// # Errors
    /// The port belongs to the parent process.
    pub fn watcher_woke(&self) -> Result<(), Failure> {
        if self.lock()?.sleepers.take_watcher_ring()
            && let Some(bell) = self.watcher_bell()
        {
            bell.drain();
        }
        Ok(())
    }

    /// Has those who sleep look again: something has changed that is no event of the port.
    pub fn wake_waiters(&self) {
        if let Ok(mut turn) = self.lock() {
            turn.sleepers.note_news();
        }
    }

    /// Closes the port. Waits of other threads end with `Closed`.
    pub fn close(&self, py: Python<'_>) {
        if !self.guard.is_owner() {
            return;
        }
        let closed = py.detach(|| {
            let mut turn = self.lock_anyway();
            let mut closed = turn.take_all();
            turn.sleepers.ring_all(self.watcher_bell());
            // Dropping the port may take a while for peers on other machines, which others need not wait for.
            drop(turn);
            drop(closed.port.take());
            closed
        });
        // Messages may own memory of Python.
        drop(closed);
    }

    /// Takes what has arrived until `attempt` yields something. Never waits.
    ///
    /// # Errors
    /// The port is closed, or belongs to the parent process.
    pub fn attempt<R>(
        &self,
        py: Python<'_>,
        mut attempt: impl FnMut(&mut State) -> Option<R>,
    ) -> PyResult<Option<R>> {
        let (found, needs_interpreter) = {
            let mut turn = self.lock()?;
            (turn.take_until(State::poll, &mut attempt)?, turn.needs_interpreter())
        };
        if needs_interpreter {
            self.provide_memory(py)?;
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
        let (found, needs_interpreter) = py.detach(|| {
            let mut turn = self.lock()?;
            let found = turn.take_until(State::spin, &mut attempt)?;
            Ok::<_, Failure>((found, turn.needs_interpreter()))
        })?;
        if needs_interpreter {
            self.provide_memory(py)?;
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
                    self.provide_memory(py)?;
                    return Ok(Some(found));
                }
                Round::TimedOut => return Ok(None),
                Round::NeedsInterpreter => {}
            }
            py.check_signals()?;
            self.provide_memory(py)?;
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
            let mut turn = self.lock()?;
            if let Some(found) = turn.take_until(State::spin, attempt)? {
                return Ok(Round::Done(found, turn.needs_interpreter()));
            }
            if !turn.needed.is_empty() {
                return Ok(Round::NeedsInterpreter);
            }
            let rest = deadline.rest();
            if rest == Some(Duration::ZERO) {
                return Ok(Round::TimedOut);
            }
            if turn.is_full() {
                drop(turn);
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
            if !turn.arm()? {
                continue;
            }
            let bell = match turn.sleepers.spare_bell() {
                Some(bell) => bell,
                None => Arc::new(Eventfd::new().map_err(|error| refused("a descriptor", error))?),
            };
            turn.fall_asleep(bell.clone());
            drop(turn);
            let began = Instant::now();
            let slept = self.sleep(&bell, rest);
            let mut turn = self.lock()?;
            turn.sleepers.wake_up(bell);
            if let Some(port) = turn.port.as_mut() {
                sleep_ended(port, began.elapsed());
            }
            match slept {
                Ok(()) => {}
                Err(Errno::INTR) => return Ok(Round::NeedsInterpreter),
                Err(error) => return Err(refused("to wait", error)),
            }
        }
    }

    /// Sleeps until the port's descriptor is readable or the bell was rung.
    fn sleep(&self, bell: &Eventfd, rest: Option<Duration>) -> Result<(), Errno> {
        // SAFETY: the descriptor belongs to the port. If another thread closes the port meanwhile, the bell ends the wait, and
        // until then the number at worst means another descriptor, which wakes this thread for nothing.
        let port = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        let mut descriptors =
            [PollFd::from_borrowed_fd(port, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        poll(&mut descriptors, rest.as_ref())?;
        if !descriptors[1].revents().is_empty() {
            // If it rings after this, it wakes the next thread that sleeps with it once for nothing.
            bell.drain();
        }
        Ok(())
    }

    /// Posts memory for the long messages that wait for some, and gives back that of complete transfers.
    fn provide_memory(&self, py: Python<'_>) -> PyResult<()> {
        let (needed, finished) = {
            let mut turn = self.lock()?;
            (std::mem::take(&mut turn.needed), std::mem::take(&mut turn.finished))
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
            && let Ok(mut turn) = self.lock()
            && let Ok(port) = turn.port()
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
        let mut turn = self.lock()?;
        if turn.is_posted(view.address() as usize) {
            drop(turn);
            return Err(PyValueError::new_err("this memory is posted already"));
        }
        let result = turn.post(priority, buffer, Posted::Theirs(object.clone().unbind(), view));
        drop(turn);
        result.map_err(|(failure, _)| failure.into())
    }
}

fn system_error(error: Errno) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

fn refused(what: &str, error: Errno) -> Failure {
    Failure::new("Error", format!("the system refused {what}: {error}"))
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
