//! Messages and other events, as Python sees them.

use std::sync::Arc;

use bywire::{Peer as Handle, Priority};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PySlice};

use crate::memory::{self, Owner};
use crate::peer::Peer;
use crate::shared::Shared;
use crate::state::{Arrival, Data, Posted};

/// A message that has arrived.
#[pyclass(frozen, module = "bywire")]
pub struct Message {
    shared: Arc<Shared>,
    peer: Handle,
    priority: Priority,
    /// Its bytes: `bytes` of a short message, a `bytearray` of a long one, a read-only `memoryview` of one that was lent, and a
    /// `memoryview` of the memory that was posted for it.
    #[pyo3(get)]
    data: Py<PyAny>,
    /// Whether it is a datagram.
    #[pyo3(get)]
    is_datagram: bool,
    /// Whether it is read in the memory of its sender.
    #[pyo3(get)]
    is_lent: bool,
}

#[pymethods]
impl Message {
    /// The sender.
    #[getter]
    fn peer(&self) -> Peer {
        Peer::new(self.shared.clone(), self.peer)
    }

    /// `bywire.LOW` or `bywire.HIGH`.
    #[getter]
    fn priority(&self) -> u32 {
        self.priority as u32
    }

    /// Gives a lent message back to its sender. Other messages need no release.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_lent {
            self.data.bind(py).call_method0("release").map_err(|error| {
                let text = "the message's memory is still in use: drop its arrays and memoryviews first";
                if error.is_instance_of::<PyBufferError>(py) { PyBufferError::new_err(text) } else { error }
            })?;
        }
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.data.bind(py).len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let view = crate::view::View::of(self.data.bind(py), false)?;
        // SAFETY: copied at once, attached. A lender that writes meanwhile changes only which bytes are copied.
        Ok(PyBytes::new(py, unsafe { view.bytes() }))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<bywire.Message of {} bytes>", self.__len__(py)?))
    }
}

/// A peer has connected.
#[pyclass(frozen, module = "bywire")]
pub struct Connected {
    /// The peer.
    #[pyo3(get)]
    peer: Py<Peer>,
}

/// A peer is gone.
#[pyclass(frozen, module = "bywire")]
pub struct Disconnection {
    /// The peer.
    #[pyo3(get)]
    peer: Py<Peer>,
    /// The reason, as a sentence.
    #[pyo3(get)]
    reason: String,
}

/// A peer has put data into a region of this port, with a note.
#[pyclass(frozen, module = "bywire")]
pub struct Notification {
    /// The peer.
    #[pyo3(get)]
    peer: Py<Peer>,
    /// The note, up to 32 bytes.
    #[pyo3(get)]
    note: Py<PyBytes>,
}

/// The object for something that arrived.
pub fn to_python(py: Python<'_>, shared: &Arc<Shared>, arrival: Arrival) -> PyResult<Py<PyAny>> {
    let peer = |handle| Py::new(py, Peer::new(shared.clone(), handle));
    Ok(match arrival {
        Arrival::Message { peer, priority, is_datagram, data } => {
            let is_lent = matches!(data, Data::Lent(_));
            let data = data_to_python(py, shared, data)?;
            let message = Message { shared: shared.clone(), peer, priority, data, is_datagram, is_lent };
            Py::new(py, message)?.into_any()
        }
        Arrival::Connected(handle) => Py::new(py, Connected { peer: peer(handle)? })?.into_any(),
        Arrival::Disconnected { peer: handle, reason, .. } => {
            let reason = reason.to_string();
            Py::new(py, Disconnection { peer: peer(handle)?, reason })?.into_any()
        }
        Arrival::Notified { peer: handle, note } => {
            let note = PyBytes::new(py, &note).unbind();
            Py::new(py, Notification { peer: peer(handle)?, note })?.into_any()
        }
    })
}

fn data_to_python(py: Python<'_>, shared: &Arc<Shared>, data: Data) -> PyResult<Py<PyAny>> {
    match data {
        Data::Payload(payload) => {
            // A long message of a peer that has ended comes in the library's memory.
            if payload.len() > bywire::FRAGMENT_BYTES {
                return Ok(PyByteArray::new(py, &payload).into_any().unbind());
            }
            let bytes = PyBytes::new(py, &payload).into_any().unbind();
            shared.recycle(payload);
            Ok(bytes)
        }
        Data::Posted(Posted::Own(object), length) => {
            let array = object.bind(py).cast::<PyByteArray>()?;
            if array.len() != length {
                array.resize(length)?;
            }
            Ok(object)
        }
        Data::Posted(Posted::Theirs(object, view), length) => {
            drop(view);
            let whole = PyMemoryView::from(object.bind(py))?.call_method1("cast", ("B",))?;
            Ok(whole.get_item(PySlice::new(py, 0, length as isize, 1))?.unbind())
        }
        Data::Lent(lent) => {
            let length = lent.len();
            // SAFETY: only the address is taken. Python code reads there while the lender may write, so it sees some bytes, and
            // the documentation says whom to trust with that. No slice lives on.
            let address = unsafe { lent.as_slice() }.as_ptr().cast_mut();
            let memory = memory::lend(py, (address, length), true, Owner::Lent(lent))?;
            Ok(PyMemoryView::from(&memory)?.into_any().unbind())
        }
    }
}
