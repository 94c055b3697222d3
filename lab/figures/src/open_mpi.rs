//! Open MPI over shared memory, by a small program of the usual kind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bywire_measure::pin;
use bywire_results::cell::Unit;

use crate::contestant::{Contestant, SHORT_BYTES, Samples};
use crate::series::Metric;

const PROGRAM: &str = include_str!("ping_pong.c");

/// The choices of a plain user of one machine: shared memory between the ranks.
const MPIRUN: [&str; 15] = [
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "vader,self",
    "--mca",
    "mpi_yield_when_idle",
    "0",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "cma",
];

/// All of it in one run: the median half-RTT, [`Metric::Mean`], for each length [`Metric::Rate`], and of short messages
/// [`Metric::Messages`]. Payloads are written before they are sent and read after they arrive. The program is built in
/// `directory`.
///
/// # Errors
/// No compiler for MPI, no `mpirun`, or one that refuses the program.
pub fn contestant(directory: &Path) -> Result<Contestant> {
    let program = build(directory, "ping_pong", PROGRAM)?;
    let (source, target) = pin::two_cores();
    let command = format!("mpirun -np 2 {} ping_pong {source} {target}", MPIRUN.join(" "));
    Ok(Contestant::adapter(command, Unit::Nanoseconds, move || {
        let mut command = launcher();
        command.args(["-np", "2"]).args(MPIRUN).arg(&program);
        samples(&printed(command.args([source, target].map(|core| core.to_string())))?)
    }))
}

/// Open MPI's launcher, which root has to permit itself.
pub fn launcher() -> Command {
    let mut command = Command::new("mpirun");
    if rustix::process::geteuid().is_root() {
        command.arg("--allow-run-as-root");
    }
    command
}

/// What a job prints.
///
/// # Errors
/// It fails, or there is no `mpirun`.
pub fn printed(job: &mut Command) -> Result<String> {
    let output = job.stdin(Stdio::null()).output().context("cannot start mpirun")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mpirun: {}: {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Compiles a program in `directory`.
///
/// # Errors
/// No compiler for MPI, or one that refuses the program.
pub fn build(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let source = directory.join(name).with_extension("c");
    let program = directory.join(name);
    std::fs::write(&source, text)?;
    let output = Command::new("mpicc").args(["-O2", "-Wall", "-o"]).args([&program, &source]).output();
    let output = output.context(
        "mpicc is not installed: ./x figures rivals installs it, or apt-get install libopenmpi-dev openmpi-bin",
    )?;
    ensure!(output.status.success(), "mpicc: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(program)
}

/// Parses lines of `latency MEDIAN MEAN` and `stream SIZE MESSAGES_PER_SECOND`, and ignores others.
fn samples(printed: &str) -> Result<Samples> {
    let mut samples = Samples::new();
    for line in printed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse::<f64>().ok().filter(|number| *number > 0.0);
        match (words.first(), number(1), number(2)) {
            (Some(&"latency"), Some(median), Some(mean)) => {
                samples.extend([(Metric::Value, median), (Metric::Mean, mean)]);
            }
            (Some(&"stream"), Some(size), Some(messages)) => {
                samples.push((Metric::Rate(size as u64), messages * size));
                if size <= SHORT_BYTES as f64 {
                    samples.push((Metric::Messages, messages));
                }
            }
            _ => {}
        }
    }
    ensure!(!samples.is_empty(), "the program under mpirun prints no figures");
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_between_other_lines() {
        let found = samples("a warning\nlatency 298.5 310\nstream 8 1000\nstream x 1\n").unwrap();
        let expected = [
            (Metric::Value, 298.5),
            (Metric::Mean, 310.0),
            (Metric::Rate(8), 8000.0),
            (Metric::Messages, 1000.0),
        ];
        assert_eq!(found, expected);
        assert!(samples("nothing\n").is_err());
    }
}
