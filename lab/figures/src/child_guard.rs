//! The processes of a measurement, some of which run this program too.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// A running process. Dropping it ends and reaps it, whatever happens.
pub struct ChildGuard(pub Child);

impl ChildGuard {
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

impl ChildGuard {
    /// Its output until it exits. Both output streams are piped and neither is long.
    ///
    /// # Errors
    /// It does not end within `timeout`, or fails: then with the last line that it said.
    pub fn printed(mut self, program: &str, timeout: Duration) -> Result<String> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            ensure!(started.elapsed() < timeout, "{program} has not ended after {} s", timeout.as_secs());
            std::thread::sleep(Duration::from_millis(5));
        };
        let output = self.0.stdout.take().map(std::io::read_to_string).transpose()?.unwrap_or_default();
        let said = self.0.stderr.take().map(std::io::read_to_string).transpose()?.unwrap_or_default();
        if !status.success() {
            let last = said.lines().last().or(output.lines().last());
            bail!("{program}: {status}: {}", last.unwrap_or("it said nothing"));
        }
        Ok(output)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _dead_already = self.0.kill();
        let _gone = self.0.wait();
    }
}
