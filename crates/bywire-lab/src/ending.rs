//! How a program of this project ends: its exit code, and one line for an error.
//!
//! 0 for success, 1 for what failed, 2 for a command that makes no sense or names what there is not, and
//! [`crate::interrupt::EXIT_CODE`] after an interrupt.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Error, Result};

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

/// `text` on one line, without anything that a terminal would obey: another machine may have had a say in it.
pub fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line = String::new();
    for letter in words.chars() {
        match is_obeyed(letter) {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

/// Whether a terminal obeys that letter. What turns the direction of writing, or ends a line, is not always a control
/// character, but hides what stands there as well.
pub(crate) fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_closed_output(error: &Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_and_obeyed_by_nobody() {
        for turning in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            assert_eq!(one_line(&format!("a{turning}b")), format!("a{}b", turning.escape_unicode()));
        }
        assert_eq!(one_line("a\n b\u{1b}[2J\u{7}\r\u{202e}µ"), "a b\\u{1b}[2J\\u{7} \\u{202e}µ");
    }
}
