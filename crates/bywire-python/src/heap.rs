//! Lending: memory shared with one peer, in blocks that are filled once and read in place.

use std::sync::Arc;

use bywire::Heap as SharedHeap;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::errors::Failure;
use crate::memory::{self, FreeBlock, Owner};
use crate::shared::{Deadline, Shared};

/// Memory shared with one peer, in equal blocks.
#[pyclass(frozen, module = "bywire")]
pub struct Heap {
    pub shared: Arc<Shared>,
    pub heap: SharedHeap,
}

#[pymethods]
impl Heap {
    /// A free block. Waits until the peer has given one back, at most `timeout` seconds, and then raises `bywire.NoBlock`.
    #[pyo3(signature = (timeout=None))]
    fn block(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Block> {
        let taken = self.shared.wait(py, Deadline::after(timeout)?, |_| self.heap.block())?;
        let Some(mut block) = taken else {
            return Err(Failure::from(bywire::LendError::NoBlock).into());
        };
        let memory = (block.as_mut_ptr(), block.len());
        let owner = FreeBlock { block: Some(block), heap: self.heap.clone(), shared: self.shared.clone() };
        Ok(Block { memory: memory::lend(py, memory, false, Owner::Block(owner))?.unbind() })
    }

    /// The size of every block.
    #[getter]
    fn block_bytes(&self) -> usize {
        self.heap.block_bytes()
    }
}

/// A block of a heap, to write a message into. It goes back to its heap if it is dropped without being lent.
#[pyclass(frozen, module = "bywire")]
pub struct Block {
    pub memory: Py<PyAny>,
}

#[pymethods]
impl Block {
    /// A new `memoryview` of the memory.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(self.memory.bind(py))
    }

    /// Whether memoryviews or arrays of the memory exist.
    #[getter]
    fn is_used(&self, py: Python<'_>) -> bool {
        memory::is_used(self.memory.bind(py))
    }
}
