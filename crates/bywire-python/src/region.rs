//! Regions: memory that peers put into and get from.

use std::sync::Arc;

use bywire::Key;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::shared::Shared;

/// Memory of this port that peers with its key may read or write.
#[pyclass(frozen, module = "bywire")]
pub struct Region {
    pub shared: Arc<Shared>,
    /// The key: send it to the peers that may use the region.
    #[pyo3(get)]
    pub key: u64,
    /// The object that the memory belongs to.
    #[pyo3(get)]
    pub memory: Py<PyAny>,
}

#[pymethods]
impl Region {
    /// A new `memoryview` of the memory, as bytes. Peers' data arrives during calls of the port.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyMemoryView::from(self.memory.bind(py))?.call_method1("cast", ("B",))
    }

    /// Ends the region: its key is invalid from now on. Does nothing the second time.
    fn revoke(&self) -> PyResult<()> {
        let view = {
            let mut state = self.shared.lock()?;
            if let Ok(port) = state.port() {
                drop(port.revoke(Key(self.key)));
            }
            state.regions.remove(&self.key)
        };
        drop(view);
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyAny>) -> PyResult<()> {
        self.revoke()
    }
}
