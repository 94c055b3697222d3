//! The time until a port detects that a peer's process was killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire::{Address, Event, Port, PortOptions};
use bywire_results::cell::Unit;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::contestant::Contestant;
use crate::rival_pair;

/// The first argument of the process that will be killed.
pub const VICTIM: &str = "__victim";

/// Kills for one reading, which is the slowest of them.
const KILLS: u32 = 5;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The state of the detecting port meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Asleep in `Port::wait`.
    Waiting,
    /// Calling `Port::poll` again and again.
    Polling,
}

/// Nanoseconds from the end of the process, as its pidfd shows, to the port's event; never below 0.
pub fn contestant(mode: WaitMode) -> Contestant {
    let command = format!("./x figures messages ({KILLS} kills a round, the slowest counts)");
    Contestant::of_value(command, Unit::Nanoseconds, move || slowest(mode))
}

/// The process that will be killed: connects to the port `observer` in `directory`, and waits.
///
/// # Errors
/// No such port.
pub fn victim(directory: &Path) -> Result<()> {
    let mut port = open(directory, None)?;
    port.connect(&"localhost/observer".parse::<Address>()?, TIMEOUT)?;
    // This process ends too if the observer ends first.
    while !matches!(port.wait(None)?, Some(Event::Disconnected { .. })) {}
    Ok(())
}

fn slowest(mode: WaitMode) -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let mut observer = open(directory.path(), Some("observer"))?;
    let mut slowest_ns = 0.0f64;
    for _ in 0..KILLS {
        slowest_ns = slowest_ns.max(1e9 * notice(&mut observer, directory.path(), mode)?.as_secs_f64());
    }
    Ok(slowest_ns)
}

fn open(directory: &Path, name: Option<&str>) -> Result<Port> {
    let name = name.map(str::parse).transpose()?;
    let runtime_directory = Some(directory.to_owned());
    Ok(Port::open(PortOptions { name, runtime_directory, ..PortOptions::default() })?)
}

fn notice(observer: &mut Port, directory: &Path, mode: WaitMode) -> Result<Duration> {
    let mut victim = rival_pair::start_part(VICTIM, directory)?;
    await_event(observer, WaitMode::Waiting, |event| matches!(event, Event::Connected(_)))?;
    let pid = Pid::from_raw(victim.child.id() as i32).context("a process without an identity")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let teardown = std::thread::spawn(move || {
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).map(|_| Instant::now())
    });
    victim.child.kill()?;
    await_event(observer, mode, |event| matches!(event, Event::Disconnected { .. }))?;
    let noticed = Instant::now();
    let torn_down = teardown.join().ok().context("the clock's thread died")??;
    Ok(noticed.saturating_duration_since(torn_down))
}

fn await_event(port: &mut Port, mode: WaitMode, wanted: impl Fn(&Event) -> bool) -> Result<()> {
    let started = Instant::now();
    loop {
        let event = match mode {
            WaitMode::Waiting => port.wait(Some(TIMEOUT))?,
            WaitMode::Polling => port.poll(),
        };
        match event {
            Some(event) if wanted(&event) => return Ok(()),
            Some(_) => {}
            None => ensure!(started.elapsed() < TIMEOUT, "nothing was noticed for {} s", TIMEOUT.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_is_noticed_either_way() {
        for mode in [WaitMode::Waiting, WaitMode::Polling] {
            let directory = tempfile::tempdir().unwrap();
            let mut observer = open(directory.path(), Some("observer")).unwrap();
            let path = directory.path().to_owned();
            let other = std::thread::spawn(move || {
                let mut port = open(&path, None).unwrap();
                port.connect(&"localhost/observer".parse::<Address>().unwrap(), TIMEOUT).unwrap();
            });
            await_event(&mut observer, mode, |event| matches!(event, Event::Disconnected { .. })).unwrap();
            other.join().unwrap();
        }
    }
}
