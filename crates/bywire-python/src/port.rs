//! The port, as Python sees it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bywire::{Address, Admit, PortName, PortOptions, Reach, Rights};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyString};

use crate::errors::{Failure, find_classes, not_connected};
use crate::events::to_python;
use crate::peer::{Peer, priority};
use crate::region::Region;
use crate::shared::{Deadline, Shared};
use crate::state::{Arrival, State};
use crate::view::View;

/// The longest message that a port takes unless its program says otherwise. The module allocates memory for a long message when
/// it arrives.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// A message endpoint. `Port("name")` opens one by name, `Port(7)` by number, and `Port()` one with any free number.
#[pyclass(frozen, subclass, module = "bywire", weakref)]
pub struct Port {
    shared: Arc<Shared>,
    name: String,
    address: String,
}

/// A duration of this many seconds.
fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name} is a number of seconds from 0 on")))
}

fn port_name(name: &Bound<'_, PyAny>) -> PyResult<PortName> {
    if let Ok(text) = name.cast::<PyString>() {
        let parsed = text.to_string_lossy().parse::<PortName>();
        return parsed.map_err(|error| Failure::new("BadOption", error.to_string()).into());
    }
    name.extract().map(PortName::Number).map_err(|_| PyTypeError::new_err("a port has a name or a number"))
}

fn admit(text: &Bound<'_, PyAny>) -> PyResult<Admit> {
    if let Ok(group) = text.extract::<u32>() {
        return Ok(Admit::Group(group));
    }
    match text.extract::<String>()?.as_str() {
        "user" => Ok(Admit::SameUser),
        "everyone" => Ok(Admit::Everyone),
        other => Err(PyValueError::new_err(format!(
            "admit is \"user\", \"everyone\" or the number of a group, not {other:?}"
        ))),
    }
}

/// Sets one option by its name.
fn set(options: &mut PortOptions, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "admit" => options.admit = admit(value)?,
        "reach" => {
            options.reach = match value.extract::<String>()?.as_str() {
                "machine" => Reach::Machine,
                "fabric" => Reach::Fabric,
                other => {
                    let text = format!("reach is \"machine\" or \"fabric\", not {other:?}");
                    return Err(PyValueError::new_err(text));
                }
            }
        }
        "integrity" => options.integrity = value.extract()?,
        "message_bytes_max" => options.message_bytes_max = value.extract()?,
        "send_tokens" => options.send_tokens = value.extract()?,
        "receive_tokens" => options.receive_tokens = value.extract()?,
        "borrow_bytes_max" => options.borrow_bytes_max = value.extract()?,
        "peers_max" => options.peers_max = value.extract()?,
        "large_window_peers_max" => options.large_window_peers_max = value.extract()?,
        "spin" => options.spin = seconds(name, value.extract()?)?,
        "linger" => options.linger = seconds(name, value.extract()?)?,
        "unreachable_after" => options.unreachable_after = seconds(name, value.extract()?)?,
        "runtime_directory" => options.runtime_directory = value.extract::<Option<PathBuf>>()?,
        other => {
            return Err(PyTypeError::new_err(format!("a port has no option {other}: see help(bywire.Port)")));
        }
    }
    Ok(())
}

#[pymethods]
impl Port {
    #[new]
    #[pyo3(signature = (name=None, **options))]
    fn open(
        py: Python<'_>,
        name: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        find_classes(py)?;
        let mut chosen = PortOptions { message_bytes_max: MESSAGE_BYTES_MAX, ..PortOptions::default() };
        chosen.name = name.map(port_name).transpose()?;
        for (name, value) in options.into_iter().flatten() {
            set(&mut chosen, &name.extract::<String>()?, &value)?;
        }
        let port = py.detach(|| bywire::Port::open(chosen)).map_err(Failure::from)?;
        let (name, address) = (port.name().to_string(), port.address().to_string());
        Ok(Self { shared: Arc::new(Shared::new(port)?), name, address })
    }

    /// Its name or number, as text.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its address, `node/port`.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        Ok(self.shared.lock()?.port.is_none())
    }

    /// Connects to `node/port`; a name alone is a port of this machine.
    ///
    /// Raises `bywire.ConnectError`, and of its kinds `bywire.NoPort` if no such port is open. `timeout` is in seconds.
    #[pyo3(signature = (address, timeout=10.0))]
    fn connect(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<Peer> {
        let deadline = Deadline::after(timeout)?;
        let peer = self.start_connect(address)?;
        let ended = self.shared.wait(py, deadline, |state| take_connected(state, &peer))?;
        match ended {
            Some(Ok(())) => Ok(peer),
            Some(Err(failure)) => Err(failure.into()),
            None => {
                self.shared.lock()?.port()?.disconnect(peer.handle);
                Err(Failure::from(bywire::ConnectError::TimedOut).into())
            }
        }
    }

    /// Begins to connect. `bywire.Connected` or `bywire.Disconnection` follows from `wait` or `poll`.
    fn start_connect(&self, address: &str) -> PyResult<Peer> {
        let address = address.parse::<Address>();
        let address = address.map_err(|error| Failure::new("BadAddress", error.to_string()))?;
        let mut state = self.shared.lock()?;
        let begun = state.port()?.connect_start(&address).map_err(Failure::from);
        if let Ok(handle) = begun {
            state.ours.insert(handle);
        }
        drop(state);
        Ok(Peer::new(self.shared.clone(), begun?))
    }

    /// Whether this connection, which was started, stands now. Raises the error if it failed.
    fn is_established(&self, py: Python<'_>, peer: &Peer) -> PyResult<bool> {
        match self.shared.attempt(py, |state| take_connected(state, peer))? {
            Some(result) => Ok(result.map(|()| true)?),
            None => Ok(false),
        }
    }

    /// The next message of anybody. Connections that come are skipped.
    ///
    /// Raises `bywire.TimedOut` after `timeout` seconds, and `bywire.Disconnected` when a peer leaves that this port has
    /// connected to.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = Deadline::after(timeout)?;
        let taken = self.shared.wait(py, deadline, State::take_message)?;
        let arrival = taken.ok_or_else(|| Failure::timed_out("no message came"))??;
        to_python(py, &self.shared, arrival)
    }

    /// The next message of anybody, if it has arrived. With `spin=True` looks for it as long as a wait spins before it sleeps.
    #[pyo3(signature = (spin=false))]
    fn try_receive(&self, py: Python<'_>, spin: bool) -> PyResult<Option<Py<PyAny>>> {
        let mut taken = self.shared.attempt(py, State::take_message)?;
        if taken.is_none() && spin {
            taken = self.shared.spin(py, State::take_message)?;
        }
        match taken {
            Some(arrival) => to_python(py, &self.shared, arrival?).map(Some),
            None => Ok(None),
        }
    }

    /// The next event, of any kind: `bywire.Message`, `Connected`, `Disconnection` or `Notification`. `None` after `timeout`
    /// seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let deadline = Deadline::after(timeout)?;
        let taken = self.shared.wait(py, deadline, |state| state.kept.pop_front())?;
        taken.map(|arrival| to_python(py, &self.shared, arrival)).transpose()
    }

    /// The next event, if there is one.
    #[pyo3(signature = ())]
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let taken = self.shared.attempt(py, |state| state.kept.pop_front())?;
        taken.map(|arrival| to_python(py, &self.shared, arrival)).transpose()
    }

    /// The next note that a peer has put with data. Messages are kept. Raises `bywire.TimedOut` after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn notification(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let is_note = |arrival: &Arrival| matches!(arrival, Arrival::Notified { .. });
        let taken = self.shared.wait(py, Deadline::after(timeout)?, |state| state.take_where(is_note))?;
        let arrival = taken.ok_or_else(|| Failure::timed_out("no note came"))?;
        to_python(py, &self.shared, arrival)
    }

    /// Posts writable memory for one long message: the smallest memory that is long enough takes it. Without any, the module
    /// allocates memory for each long message when it arrives.
    #[pyo3(signature = (memory, *, priority=0))]
    fn post(&self, memory: &Bound<'_, PyAny>, priority: u32) -> PyResult<()> {
        self.shared.post(self::priority(priority)?, memory)
    }

    /// Registers memory that peers with the region's key may read or write. `memory` has the buffer protocol, or is a number of
    /// bytes, for a new `bytearray`.
    #[pyo3(signature = (memory, *, read=true, write=false))]
    fn register(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        read: bool,
        write: bool,
    ) -> PyResult<Region> {
        let memory = match memory.extract::<usize>() {
            Ok(length) => PyByteArray::new_with(py, length, |_| Ok(()))?.into_any(),
            Err(_) => memory.clone(),
        };
        let view = View::of(&memory, write)?;
        let mut state = self.shared.lock()?;
        // SAFETY: `State::regions` keeps the view until the region is revoked or the port is gone. The library writes there only
        // with the right to, which writable memory alone has.
        let buffer = unsafe { view.lend() };
        let registered = state.port()?.register(buffer, Rights { read, write });
        let key = match registered {
            Ok(key) => key.0,
            Err(error) => {
                drop(state);
                return Err(PyOSError::new_err(error.to_string()));
            }
        };
        state.regions.insert(key, view);
        drop(state);
        Ok(Region { shared: self.shared.clone(), key, memory: memory.unbind() })
    }

    /// The peers that are connected.
    fn peers(&self) -> PyResult<Vec<Peer>> {
        let handles: Vec<_> = self.shared.lock()?.port()?.peers().collect();
        Ok(handles.into_iter().map(|handle| Peer::new(self.shared.clone(), handle)).collect())
    }

    /// Counters since the port was opened.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = self.shared.lock()?.port()?.statistics();
        let dictionary = PyDict::new(py);
        dictionary.set_item("datagrams_unsent", counted.datagrams_unsent)?;
        dictionary.set_item("datagrams_damaged", counted.datagrams_damaged)?;
        dictionary.set_item("refused", counted.refused)?;
        dictionary.set_item("sleeps", counted.sleeps)?;
        Ok(dictionary)
    }

    /// A descriptor that becomes readable, after `arm` has returned true, as soon as there may be an event. Watch it, but do not
    /// read or close it.
    fn fileno(&self) -> PyResult<i32> {
        self.shared.watch_descriptor()
    }

    /// Prepares to sleep on the descriptor. Returns `False` if there may be an event: poll again then.
    fn arm(&self) -> PyResult<bool> {
        self.shared.arm()
    }

    /// An event loop calls this when the descriptor is readable, before its tasks look for themselves.
    #[pyo3(name = "_woke")]
    fn woke(&self) -> PyResult<()> {
        Ok(self.shared.watcher_woke()?)
    }

    /// Takes what has arrived, for later calls. An event loop calls this when the descriptor is readable.
    fn pump(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.attempt(py, |_| None::<()>).map(|_| ())
    }

    /// Closes the port. Its peers see that it was closed. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        self.shared.close(py);
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if self.shared.lock()?.port.is_none() {
            return Ok(None);
        }
        self.receive(py, None).map(Some)
    }

    fn __repr__(&self) -> String {
        format!("<bywire.Port {}>", self.address)
    }
}

/// The outcome of a connection that was started, once there is one.
fn take_connected(state: &mut State, peer: &Peer) -> Option<Result<(), Failure>> {
    let is_outcome = |arrival: &Arrival| {
        arrival.peer() == peer.handle
            && matches!(arrival, Arrival::Connected(_) | Arrival::Disconnected { .. })
    };
    match state.take_where(is_outcome)? {
        Arrival::Disconnected { reason, .. } => Some(Err(not_connected(reason))),
        _ => Some(Ok(())),
    }
}
