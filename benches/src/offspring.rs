//! This program once more, as a process that plays a part in a measurement.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A running process. Dropping it ends and reaps it, whatever happens.
pub struct Offspring(pub Child);

impl Offspring {
    /// Starts this program with the arguments `part` and `directory`; its standard output is piped to this process.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start(part: &str, directory: &Path) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(part).arg(directory).stdout(Stdio::piped());
        Ok(Self(command.spawn().with_context(|| format!("cannot start a process as {part}"))?))
    }
}

impl Drop for Offspring {
    fn drop(&mut self) {
        let _dead_already = self.0.kill();
        let _gone = self.0.wait();
    }
}
