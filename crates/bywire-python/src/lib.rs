//! The Python module `bywire`: ports, messages, regions and lending for programs in Python.
//!
//! This crate is the compiled half of the package. `python/bywire` is the other half: exceptions, asyncio, and
//! `bywire.multiprocessing`.

mod errors;
mod events;
mod heap;
mod memory;
mod peer;
mod peer_calls;
mod port;
mod region;
mod shared;
mod sleepers;
mod state;
mod transfer;
mod view;

use pyo3::prelude::*;

/// The compiled part of the package `bywire`.
#[pymodule]
mod _bywire {
    #[pymodule_export]
    use crate::events::{Connected, Disconnection, Message, Notification};
    #[pymodule_export]
    use crate::heap::{Block, Heap};
    #[pymodule_export]
    use crate::peer::Peer;
    #[pymodule_export]
    use crate::port::Port;
    #[pymodule_export]
    use crate::region::Region;
    #[pymodule_export]
    use crate::transfer::Transfer;

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("FRAGMENT_BYTES", bywire::FRAGMENT_BYTES)?;
        module.add("NOTE_BYTES_MAX", bywire::NOTE_BYTES_MAX)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
