//! How a program of this project ends: its exit code, and one line for an error.
//!
//! 0 for success, 1 for what failed, 2 for a command that makes no sense or names what there is not, and
//! [`crate::interrupt::EXIT_CODE`] after an interrupt.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Error, Result};
use bywire_results::plain::one_line;

/// The exit code for [`Misuse`].
pub const MISUSE: u8 = 2;

/// A request that cannot be met on any machine, or that names something which this one has not: one line that says
/// what was asked for and what to ask for instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

impl Misuse {
    /// Out of an error of any kind; its causes become part of the line.
    pub fn of(error: impl Into<Error>) -> Error {
        Self(format!("{:#}", error.into())).into()
    }
}

/// The exit code for what `program` came to, after a line to standard error where it failed. A closed standard output
/// is no failure: whoever read it has read enough.
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

/// Whether `error` ends with [`MISUSE`].
pub fn is_misuse(error: &Error) -> bool {
    error.chain().any(|cause| cause.is::<Misuse>())
}

/// One line to standard error, whatever `reason` contains.
pub fn complain(program: &str, reason: impl Display) {
    let _closed = writeln!(io::stderr(), "{program}: {}", one_line(&reason.to_string()));
}

fn is_closed_output(error: &Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
