//! Errors of the message layer as exceptions of the package. Their texts are the errors' own sentences.

use std::collections::HashMap;

use bywire::{
    ConnectError, DisconnectReason, LendError, OpenError, Refusal, SendError, TransferError, WaitError,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// An error before it is raised: the exception's class in `bywire._errors`, and its sentence.
#[derive(Clone, Debug)]
pub struct Failure {
    class: &'static str,
    text: String,
}

impl Failure {
    /// A failure of this class.
    pub fn new(class: &'static str, text: impl Into<String>) -> Self {
        Self { class, text: text.into() }
    }

    /// The port was closed.
    pub fn closed() -> Self {
        Self::new("Closed", "the port is closed: open another one")
    }

    /// This process is a forked child of the one that opened the port.
    pub fn forked() -> Self {
        Self::new("Forked", SendError::Forked.to_string())
    }

    /// A connection that ended, or never was.
    pub fn disconnected(reason: Option<DisconnectReason>) -> Self {
        match reason {
            Some(reason) => SendError::Disconnected(reason).into(),
            None => SendError::NoPeer.into(),
        }
    }

    /// A wait reached its timeout.
    pub fn timed_out(what: &str) -> Self {
        Self::new("TimedOut", format!("{what} within the timeout"))
    }
}

static CLASSES: PyOnceLock<HashMap<String, Py<PyType>>> = PyOnceLock::new();

/// Finds the classes of the package's exceptions. Called before a port is opened.
///
/// # Errors
/// The package is incomplete.
pub fn find_classes(py: Python<'_>) -> PyResult<()> {
    CLASSES
        .get_or_try_init(py, || {
            let mut classes = HashMap::new();
            for (name, value) in py.import("bywire._errors")?.dict() {
                if let Ok(class) = value.cast_into::<PyType>() {
                    classes.insert(name.extract()?, class.unbind());
                }
            }
            Ok(classes)
        })
        .map(|_: &HashMap<_, _>| ())
}

impl From<Failure> for PyErr {
    fn from(Failure { class, text }: Failure) -> Self {
        Python::attach(|py| {
            let known = CLASSES.get(py).and_then(|classes| classes.get(class));
            match known {
                // Made when it is raised: the caller may hold a port's lock, under which no Python code may run.
                Some(class) => Self::from_type(class.bind(py).clone(), text),
                None => PyRuntimeError::new_err(text),
            }
        })
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let class = match error {
            OpenError::InUse(_) => "InUse",
            OpenError::BadOption(_) => "BadOption",
            OpenError::Fabric(_) => "NoFabric",
            _ => "OpenError",
        };
        Self::new(class, error.to_string())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let class = match error {
            ConnectError::NoPort => "NoPort",
            ConnectError::NotAdmitted => "NotAdmitted",
            ConnectError::TimedOut => "ConnectTimedOut",
            ConnectError::Unreachable | ConnectError::Blocked { .. } => "Unreachable",
            ConnectError::NoFabric(_) | ConnectError::UnknownNode => "NoFabric",
            ConnectError::Forked => "Forked",
            _ => "ConnectError",
        };
        Self::new(class, error.to_string())
    }
}

/// The error of a connection that ended before it was made.
pub fn not_connected(reason: DisconnectReason) -> Failure {
    match reason {
        DisconnectReason::NotConnected(error) => error.into(),
        DisconnectReason::Refused(Refusal::NotAdmitted) => ConnectError::NotAdmitted.into(),
        DisconnectReason::Refused(refusal) => ConnectError::Refused(refusal).into(),
        _ => ConnectError::Refused(Refusal::Closed).into(),
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let class = match error {
            SendError::Full => "Full",
            SendError::NoToken => "NoToken",
            SendError::TooLong { .. } => "TooLong",
            SendError::Disconnected(_) | SendError::NoPeer => "Disconnected",
            SendError::Forked => "Forked",
            _ => "SendError",
        };
        Self::new(class, error.to_string())
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        let class = match error {
            TransferError::Disconnected(_) => "Disconnected",
            TransferError::BadKey => "BadKey",
            TransferError::NoRight => "NoRight",
            TransferError::OutOfRange => "OutOfRange",
            _ => "TransferError",
        };
        Self::new(class, error.to_string())
    }
}

impl From<LendError> for Failure {
    fn from(error: LendError) -> Self {
        match error {
            LendError::Send(error) => error.into(),
            LendError::NoBlock => Self::new("NoBlock", error.to_string()),
            _ => Self::new("LendError", error.to_string()),
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let class = if error == WaitError::Forked { "Forked" } else { "Error" };
        Self::new(class, error.to_string())
    }
}
