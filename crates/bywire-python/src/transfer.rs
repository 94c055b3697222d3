//! Sends, puts and gets that are under way.

use std::sync::{Arc, PoisonError};

use pyo3::prelude::*;

use crate::errors::Failure;
use crate::shared::{Deadline, Shared};
use crate::state::SharedOutcome;

/// A send, put or get that was started. The port uses its memory until it is done.
#[pyclass(frozen, module = "bywire")]
pub struct Transfer {
    pub shared: Arc<Shared>,
    pub outcome: SharedOutcome,
}

/// The outcome of a transfer; `None` while it is under way.
pub fn outcome_of(outcome: &SharedOutcome) -> Option<Result<(), Failure>> {
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    outcome.result.map(|result| result.map_err(Failure::from))
}

impl Transfer {
    /// Waits for its end.
    ///
    /// # Errors
    /// It failed, or the time is up.
    pub fn finish(&self, py: Python<'_>, deadline: Deadline) -> PyResult<()> {
        let ended = self.shared.wait(py, deadline, |_| outcome_of(&self.outcome))?;
        match ended {
            Some(result) => Ok(result?),
            None => Err(Failure::timed_out("the transfer was not complete").into()),
        }
    }
}

#[pymethods]
impl Transfer {
    /// Whether it has ended, well or not. Looks at the port once.
    #[getter]
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        if let Some(ended) = outcome_of(&self.outcome).map(|_| true) {
            return Ok(ended);
        }
        Ok(self.shared.attempt(py, |_| outcome_of(&self.outcome))?.is_some())
    }

    /// Waits until it is done. Raises the error if it failed, and `bywire.TimedOut` after `timeout` seconds; it is under way then,
    /// and uses its memory.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.finish(py, Deadline::after(timeout)?)
    }

    fn __repr__(&self) -> &'static str {
        match outcome_of(&self.outcome) {
            None => "<bywire.Transfer under way>",
            Some(Ok(())) => "<bywire.Transfer done>",
            Some(Err(_)) => "<bywire.Transfer failed>",
        }
    }
}
