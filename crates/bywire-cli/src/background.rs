//! A command that continues in the background: it is started again in a session of its own, and reports through a pipe
//! that it is ready, or why it failed.

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bywire_command::exit_status::{self, Misuse};

/// The user's option.
const ASKED: &str = "--background";
/// The option of the second process in its place.
const DETACHED: &str = "--detached";

/// The first byte of the second process's report: its outcome.
const READY: u8 = b'+';
const MISUSED: u8 = b'?';
const FAILED: u8 = b'-';
/// Behind it.
const END: u8 = 0;

/// Starts the same command line in the background, and prints its output when it is ready.
///
/// # Errors
/// Those of the second process, of the same class.
pub fn start() -> Result<()> {
    let program = env::current_exe().context("cannot find this program's own file")?;
    let (report, theirs) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1).filter(|word| word != ASKED)).arg(DETACHED);
    // Its standard input is the pipe, because no other process inherits that stream from it.
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start in the background")?;
    drop(command);
    let mut said = Vec::new();
    BufReader::new(report).read_until(END, &mut said)?;
    let [kind, text @ .., END] = &said[..] else {
        bail!("it ended before it was ready: leave out {ASKED} to see more");
    };
    let text = String::from_utf8_lossy(text).into_owned();
    match *kind {
        READY => bywire_command::output::print(&text),
        MISUSED => bail!(Misuse(text)),
        _ => bail!(text),
    }
}

/// In the second process: the way back to the first one.
pub struct Report(File);

impl Report {
    /// Leaves the terminal and takes the pipe.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn take() -> Result<Self> {
        // Fails for a leader of a group, which leaves the terminal to itself already.
        let _ = rustix::process::setsid();
        Ok(Self(io::stdin().as_fd().try_clone_to_owned()?.into()))
    }

    /// Lets the first process go.
    ///
    /// # Errors
    /// It has ended already.
    pub fn ready(mut self, text: impl Display) -> Result<()> {
        self.say(READY, text).context("the process that started this has gone")
    }

    /// Reports why the start failed.
    pub fn failed(mut self, error: &anyhow::Error) {
        let kind = if exit_status::is_misuse(error) { MISUSED } else { FAILED };
        let _gone = self.say(kind, format!("{error:#}"));
    }

    fn say(&mut self, kind: u8, text: impl Display) -> io::Result<()> {
        self.0.write_all(&[&[kind], text.to_string().as_bytes(), &[END]].concat())
    }
}
