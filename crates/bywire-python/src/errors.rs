//! Errors of the message layer as exceptions of the package. Their texts are the errors' own sentences.

use bywire::{
    ConnectError, DisconnectReason, LendError, OpenError, Refusal, SendError, TransferError, WaitError,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

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

impl From<Failure> for PyErr {
    fn from(Failure { class, text }: Failure) -> Self {
        Python::attach(|py| {
            let class = py.import("bywire._errors").and_then(|module| module.getattr(class));
            match class.and_then(|class| class.call1((text.as_str(),))) {
                Ok(exception) => Self::from_value(exception),
                // The package is incomplete, or the interpreter is shutting down.
                Err(_) => PyRuntimeError::new_err(text),
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
