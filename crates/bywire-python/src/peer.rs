//! A connection of a port: the class, and what its methods and those of messages need of it.

use std::sync::Arc;

use bywire::{Peer as Handle, Priority};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::shared::Shared;

/// One connection of a port. Peers are equal if they are the same connection.
#[pyclass(frozen, module = "bywire")]
pub struct Peer {
    pub shared: Arc<Shared>,
    pub handle: Handle,
}

impl Peer {
    /// The object for a connection of a port.
    pub fn new(shared: Arc<Shared>, handle: Handle) -> Self {
        Self { shared, handle }
    }
}

/// The priority with this number.
///
/// # Errors
/// `ValueError`.
pub fn priority(number: u32) -> PyResult<Priority> {
    match number {
        0 => Ok(Priority::Low),
        1 => Ok(Priority::High),
        _ => Err(PyValueError::new_err("a priority is bywire.LOW or bywire.HIGH")),
    }
}
