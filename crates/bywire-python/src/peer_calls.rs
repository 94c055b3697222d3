//! The methods of a peer: sending, receiving, put, get, lending, and what is known of it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bywire::{Confirm, FRAGMENT_BYTES, Key, PeerInfo, Priority, SendError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::errors::Failure;
use crate::events::to_python;
use crate::heap::{Block, Heap};
use crate::memory;
use crate::peer::{Peer, priority};
use crate::shared::Deadline;
use crate::state::{Arrival, SharedOutcome, State};
use crate::transfer::Transfer;
use crate::view::View;

/// Returns whether trying again later may help.
fn is_transient(error: SendError) -> bool {
    matches!(error, SendError::Full | SendError::NoToken | SendError::Connecting)
}

/// The outcome of an attempt. `None`: trying again later may help.
fn unless_transient<T>(result: Result<T, SendError>) -> Option<Result<T, Failure>> {
    match result {
        Err(error) if is_transient(error) => None,
        other => Some(other.map_err(Failure::from)),
    }
}

impl Peer {
    fn info<T>(&self, read: impl FnOnce(&PeerInfo) -> T) -> PyResult<T> {
        let mut state = self.shared.lock()?;
        let known = state.port()?.peer_info(self.handle).map(read);
        drop(state);
        known.ok_or_else(|| Failure::disconnected(None).into())
    }

    /// Sends a short message. Waits for room.
    fn send_short(
        &self,
        py: Python<'_>,
        priority: Priority,
        bytes: &[u8],
        deadline: Deadline,
    ) -> PyResult<Result<(), SendError>> {
        let first = self.shared.lock()?.port()?.send(self.handle, priority, bytes);
        match first {
            Err(error) if is_transient(error) => {}
            other => return Ok(other),
        }
        // Python code that another thread runs meanwhile may change the memory.
        let copy = bytes.to_vec();
        let sent = self.shared.wait(py, deadline, |state| {
            let port = match state.port() {
                Ok(port) => port,
                Err(failure) => return Some(Err(failure)),
            };
            match port.send(self.handle, priority, &copy) {
                Err(error) if is_transient(error) => None,
                other => Some(Ok(other)),
            }
        })?;
        match sent {
            Some(result) => Ok(result?),
            None => Ok(Err(SendError::Full)),
        }
    }

    /// Starts a transfer. Waits for a token.
    fn begin(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        view: View,
        mut begin: impl FnMut(&mut State, &mut Option<View>) -> Result<SharedOutcome, SendError> + Send,
    ) -> PyResult<Transfer> {
        let mut view = Some(view);
        let begun = self.shared.wait(py, deadline, |state| {
            if let Err(failure) = state.port() {
                return Some(Err(failure));
            }
            unless_transient(begin(state, &mut view))
        })?;
        let outcome = begun.ok_or_else(|| Failure::from(SendError::NoToken))??;
        Ok(Transfer { shared: self.shared.clone(), outcome })
    }

    fn begin_send(
        &self,
        py: Python<'_>,
        view: View,
        priority: Priority,
        confirm: Confirm,
        deadline: Deadline,
    ) -> PyResult<Transfer> {
        self.begin(py, deadline, view, |state, view| {
            let Some(memory) = view.as_ref() else { return Err(SendError::NoPeer) };
            // SAFETY: `State::note_transfer` keeps the view until the transfer is complete. A send that fails gives the memory back.
            let buffer = unsafe { memory.lend() };
            let started = state.port.as_mut().ok_or(SendError::NoPeer).and_then(|port| {
                port.send_buffer(self.handle, priority, buffer, confirm).map_err(|unsent| unsent.error)
            });
            state.note_transfer(started, view)
        })
    }
}

#[pymethods]
impl Peer {
    /// Sends a message of any length: anything with the buffer protocol. Waits for room, and returns once the memory may be used
    /// again; with `delivered=True` once the other port has taken the message.
    ///
    /// Raises `bywire.Full` if there was no room for `timeout` seconds, and `bywire.Disconnected`.
    #[pyo3(signature = (data, *, priority=0, delivered=false, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        priority: u32,
        delivered: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let priority = self::priority(priority)?;
        let deadline = Deadline::after(timeout)?;
        // The usual case, without a view.
        if let Ok(bytes) = data.cast_exact::<PyBytes>()
            && !delivered
            && bytes.as_bytes().len() <= FRAGMENT_BYTES
        {
            match self.send_short(py, priority, bytes.as_bytes(), deadline)? {
                Err(SendError::TooLong { .. }) => {}
                other => return Ok(other.map_err(Failure::from)?),
            }
        }
        let view = View::of(data, false)?;
        if !delivered && view.len() <= FRAGMENT_BYTES {
            // SAFETY: `send_short` copies at once, attached.
            match self.send_short(py, priority, unsafe { view.bytes() }, deadline)? {
                Err(SendError::TooLong { .. }) => {}
                other => return Ok(other.map_err(Failure::from)?),
            }
        }
        let confirm = if delivered { Confirm::Delivered } else { Confirm::Copied };
        self.begin_send(py, view, priority, confirm, deadline)?.finish(py, deadline)
    }

    /// Starts to send a message. The memory must not change until the transfer is done. Waits for a token only.
    #[pyo3(signature = (data, *, priority=0, delivered=false, timeout=None))]
    fn start_send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        priority: u32,
        delivered: bool,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let confirm = if delivered { Confirm::Delivered } else { Confirm::Copied };
        let view = View::of(data, false)?;
        self.begin_send(py, view, self::priority(priority)?, confirm, Deadline::after(timeout)?)
    }

    /// Sends a short message if there is room at once, and returns whether there was.
    #[pyo3(signature = (data, *, priority=0))]
    fn try_send(&self, data: &Bound<'_, PyAny>, priority: u32) -> PyResult<bool> {
        let priority = self::priority(priority)?;
        let view = View::of(data, false)?;
        // SAFETY: copied at once, attached.
        let sent = self.shared.lock()?.port()?.send(self.handle, priority, unsafe { view.bytes() });
        match sent {
            Err(SendError::Full | SendError::Connecting) => Ok(false),
            other => Ok(other.map(|()| true).map_err(Failure::from)?),
        }
    }

    /// Sends a datagram of up to 4 KiB: it arrives at most once, in no order. Returns whether there was room.
    #[pyo3(signature = (data, *, priority=0))]
    fn send_datagram(&self, data: &Bound<'_, PyAny>, priority: u32) -> PyResult<bool> {
        let priority = self::priority(priority)?;
        let view = View::of(data, false)?;
        // SAFETY: copied at once, attached.
        let sent = self.shared.lock()?.port()?.send_datagram(self.handle, priority, unsafe { view.bytes() });
        Ok(sent.map_err(Failure::from)?)
    }

    /// The next message of this peer. Messages of others are kept.
    ///
    /// Raises `bywire.TimedOut` after `timeout` seconds, and `bywire.Disconnected` once the peer has left and its messages are
    /// taken.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = Deadline::after(timeout)?;
        let taken = self.shared.wait(py, deadline, |state| self.take(state))?;
        let arrival = taken.ok_or_else(|| Failure::timed_out("no message came"))??;
        to_python(py, &self.shared, arrival)
    }

    /// The next message of this peer, if it has arrived.
    #[pyo3(signature = ())]
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.shared.attempt(py, |state| self.take(state))? {
            Some(arrival) => to_python(py, &self.shared, arrival?).map(Some),
            None => Ok(None),
        }
    }

    /// Puts data into the peer's region with this key, and waits until it is there. A note of up to 32 bytes is reported to the
    /// peer afterwards.
    #[pyo3(signature = (key, data, *, offset=0, note=None, priority=0, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one call in Python")]
    fn put(
        &self,
        py: Python<'_>,
        key: u64,
        data: &Bound<'_, PyAny>,
        offset: u64,
        note: Option<Vec<u8>>,
        priority: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.start_put(py, key, data, offset, note, priority, timeout)?.finish(py, Deadline::after(timeout)?)
    }

    /// Starts to put. The memory must not change until the transfer is done.
    #[pyo3(signature = (key, data, *, offset=0, note=None, priority=0, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one call in Python")]
    fn start_put(
        &self,
        py: Python<'_>,
        key: u64,
        data: &Bound<'_, PyAny>,
        offset: u64,
        note: Option<Vec<u8>>,
        priority: u32,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let priority = self::priority(priority)?;
        let view = View::of(data, false)?;
        self.begin(py, Deadline::after(timeout)?, view, |state, view| {
            let Some(memory) = view.as_ref() else { return Err(SendError::NoPeer) };
            // SAFETY: `State::note_transfer` keeps the view until the transfer is complete. A put that fails gives the memory back.
            let buffer = unsafe { memory.lend() };
            let started = state.port.as_mut().ok_or(SendError::NoPeer).and_then(|port| {
                let target = (Key(key), offset);
                port.put(self.handle, priority, target, buffer, note.as_deref())
                    .map_err(|unsent| unsent.error)
            });
            state.note_transfer(started, view)
        })
    }

    /// Gets bytes from the peer's region with this key: `length` of them into a new `bytearray`, or into the writable memory
    /// `into`. Returns that memory.
    #[pyo3(signature = (key, length=None, *, into=None, offset=0, priority=0, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one call in Python")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: u64,
        length: Option<usize>,
        into: Option<Bound<'py, PyAny>>,
        offset: u64,
        priority: u32,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = match (length, into) {
            (None, Some(memory)) => memory,
            (Some(length), None) => PyByteArray::new_with(py, length, |_| Ok(()))?.into_any(),
            _ => return Err(PyValueError::new_err("get takes either a length or `into`")),
        };
        let transfer = self.start_get(py, key, &memory, offset, priority, timeout)?;
        transfer.finish(py, Deadline::after(timeout)?)?;
        Ok(memory)
    }

    /// Starts to get into writable memory, which is to be left alone until the transfer is done.
    #[pyo3(signature = (key, into, *, offset=0, priority=0, timeout=None))]
    fn start_get(
        &self,
        py: Python<'_>,
        key: u64,
        into: &Bound<'_, PyAny>,
        offset: u64,
        priority: u32,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let priority = self::priority(priority)?;
        let view = View::of(into, true)?;
        self.begin(py, Deadline::after(timeout)?, view, |state, view| {
            let Some(memory) = view.as_ref() else { return Err(SendError::NoPeer) };
            // SAFETY: `State::note_transfer` keeps the view until the transfer is complete. A get that fails gives the memory back.
            let buffer = unsafe { memory.lend() };
            let started = state.port.as_mut().ok_or(SendError::NoPeer).and_then(|port| {
                port.get(self.handle, priority, (Key(key), offset), buffer).map_err(|unsent| unsent.error)
            });
            state.note_transfer(started, view)
        })
    }

    /// Shares memory with this peer: up to 1,024 blocks that are filled once and read in place.
    fn heap(&self, block_bytes: usize, blocks: u32) -> PyResult<Heap> {
        let made = self.shared.lock()?.port()?.heap(self.handle, block_bytes, blocks);
        Ok(Heap { shared: self.shared.clone(), heap: made.map_err(Failure::from)? })
    }

    /// Lends the first `length` bytes of a block, as a message that the peer reads in place. Waits for room.
    #[pyo3(signature = (block, length=None, *, priority=0, timeout=None, force=false))]
    fn send_lent(
        &self,
        py: Python<'_>,
        block: &Block,
        length: Option<usize>,
        priority: u32,
        timeout: Option<f64>,
        force: bool,
    ) -> PyResult<()> {
        let priority = self::priority(priority)?;
        let deadline = Deadline::after(timeout)?;
        let memory = block.memory.bind(py);
        let taken = memory::take_block(memory, force)?;
        let length = length.unwrap_or(taken.len());
        let mut held = Some(taken);
        let sent = self.shared.wait(py, deadline, |state| {
            let port = match state.port() {
                Ok(port) => port,
                Err(failure) => return Some(Err(failure)),
            };
            match port.send_lent(priority, held.take()?, length) {
                Ok(()) => Some(Ok(())),
                Err((error, block)) => {
                    held = Some(block);
                    match error {
                        bywire::LendError::Send(error) => unless_transient(Err(error)),
                        other => Some(Err(other.into())),
                    }
                }
            }
        });
        if let Some(block) = held {
            memory::return_block(memory, block);
        }
        Ok(sent?.ok_or_else(|| Failure::from(SendError::Full))??)
    }

    /// Ends the connection. The peer's messages that were not taken yet are dropped.
    fn disconnect(&self) -> PyResult<()> {
        self.shared.lock()?.port()?.disconnect(self.handle);
        Ok(())
    }

    /// Whether the connection stands.
    #[getter]
    fn is_connected(&self) -> PyResult<bool> {
        Ok(self.shared.lock()?.port()?.peers().any(|peer| peer == self.handle))
    }

    /// Its address, `node/port`.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.info(|info| info.address.to_string())
    }

    /// Its process, if it is on this machine and in a namespace that this process sees.
    #[getter]
    fn pid(&self) -> PyResult<Option<i32>> {
        self.info(PeerInfo::pid)
    }

    /// Its user, if it is on this machine. The kernel attests it.
    #[getter]
    fn uid(&self) -> PyResult<Option<u32>> {
        self.info(PeerInfo::uid)
    }

    /// The name of its user, if it is on another machine. Its node vouches for it.
    #[getter]
    fn user(&self) -> PyResult<Option<String>> {
        self.info(|info| match &info.owner {
            bywire::Owner::Remote { user } => Some(user.clone()),
            bywire::Owner::Local { .. } => None,
        })
    }

    /// The longest message that it accepts, in bytes.
    #[getter]
    fn message_bytes_max(&self) -> PyResult<u64> {
        self.info(|info| info.message_bytes_max)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.handle == other.handle && Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.handle, Arc::as_ptr(&self.shared)).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        match self.info(ToString::to_string) {
            Ok(known) => format!("<bywire.Peer {known}>"),
            Err(_) => "<bywire.Peer, disconnected>".to_owned(),
        }
    }
}

impl Peer {
    fn take(&self, state: &mut State) -> Option<Result<Arrival, Failure>> {
        let is_message = |arrival: &Arrival| {
            arrival.peer() == self.handle
                && matches!(arrival, Arrival::Message { .. } | Arrival::Disconnected { .. })
        };
        match state.take_where(is_message) {
            Some(Arrival::Disconnected { reason, .. }) => Some(Err(Failure::disconnected(Some(reason)))),
            Some(arrival) => Some(Ok(arrival)),
            None => state.require_connected(self.handle).err().map(Err),
        }
    }
}
