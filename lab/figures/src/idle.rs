//! The cost of an idle process with a port and connected peers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire::{Address, Event, Port, PortOptions};
use bywire_results::cell::Unit;

use crate::contestant::Contestant;
use crate::rival_pair;

/// The first argument of the process that idles.
pub const IDLER: &str = "__idle";

/// Ports connected to the idle one, as in the other measurements.
const PEERS: usize = 16;

/// After this the process sleeps, whatever it did to get there.
const SETTLE: Duration = Duration::from_millis(300);

/// How long it is watched.
const WATCH: Duration = Duration::from_secs(2);

const TIMEOUT: Duration = Duration::from_secs(10);

/// Nanoseconds of CPU per second, by the kernel's own account of all threads of the process.
pub fn contestant() -> Contestant {
    let command =
        format!("./x figures messages (a port with {PEERS} peers in `wait` for {} s)", WATCH.as_secs());
    Contestant::of_value(command, Unit::NanosecondsPerSecond, watch)
}

/// The process that idles: a port named `idle` and its peers, in `directory`; says `ready` when all are connected.
///
/// # Errors
/// Ports that cannot be opened or connected.
pub fn idler(directory: &Path) -> Result<()> {
    let options = || PortOptions { runtime_directory: Some(directory.to_owned()), ..PortOptions::default() };
    let mut port = Port::open(PortOptions { name: Some("idle".parse()?), ..options() })?;
    let address: Address = "localhost/idle".parse()?;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = Port::open(options())?;
        let connecting = std::thread::spawn({
            let address = address.clone();
            move || peer.connect(&address, TIMEOUT).map(|_| peer)
        });
        while !matches!(port.wait(Some(TIMEOUT))?.context("a peer does not come")?, Event::Connected(_)) {}
        peers.push(connecting.join().ok().context("a peer's thread died")??);
    }
    println!("ready");
    std::io::stdout().flush()?;
    loop {
        port.wait(None)?;
    }
}

fn watch() -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let mut idler = rival_pair::start_part(IDLER, directory.path())?;
    let output = idler.child.stdout.take().context("a process without output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line == "ready\n", "the process that was to idle has died");
    std::thread::sleep(SETTLE);
    let (before_ns, started) = (cpu_ns(idler.child.id())?, Instant::now());
    std::thread::sleep(WATCH);
    Ok((cpu_ns(idler.child.id())? - before_ns) as f64 / started.elapsed().as_secs_f64())
}

/// The CPU time of all threads of a process so far, in ns.
///
/// # Errors
/// No such process, or a kernel without the account.
pub fn cpu_ns(process: u32) -> Result<u64> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let account = fs::read_to_string(thread?.path().join("schedstat"))
            .context("this kernel keeps no account of threads (CONFIG_SCHED_INFO)")?;
        total += account.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use bywire_measure::interrupt::Leader;

    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let busy = Leader::start(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
        // The account is brought up to date at ticks.
        while cpu_ns(busy.child.id()).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert!(cpu_ns(u32::MAX).is_err());
    }
}
