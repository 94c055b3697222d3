//! The exit status of the commands, and one line for an error.
//!
//! 0 is success, 1 failure, 2 invalid usage, and [`INTERRUPTED`] an interrupt.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Error, Result};

use crate::plain::one_line;

/// The exit status for [`Misuse`].
pub const MISUSE: u8 = 2;
/// The exit status that a shell expects of an interrupted program.
pub const INTERRUPTED: i32 = 130;

/// Invalid usage: a request that no machine can meet, or a name that does not exist. One line says what is wrong and
/// what to give instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

impl Misuse {
    /// Makes a misuse of any error. The line includes the error's causes.
    pub fn of(error: impl Into<Error>) -> Error {
        Self(format!("{:#}", error.into())).into()
    }
}

/// The exit status for the result of `program`. Writes one line to standard error if it failed. A closed standard
/// output is not a failure.
pub fn of(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(program, format!("{error:#}"));
            if is_misuse(&error) { ExitCode::from(MISUSE) } else { ExitCode::FAILURE }
        }
    }
}

/// True if `error` ends with [`MISUSE`].
pub fn is_misuse(error: &Error) -> bool {
    error.chain().any(|cause| cause.is::<Misuse>())
}

/// Writes `reason` to standard error as one line.
pub fn complain(program: &str, reason: impl Display) {
    let _closed = writeln!(io::stderr(), "{program}: {}", one_line(&reason.to_string()));
}

fn is_closed_output(error: &Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
