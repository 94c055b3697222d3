//! Open MPI over shared memory, by a small program of the usual kind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bywire_measure::pin;

use crate::contest::{Contestant, Taken};
use crate::lab::SHORT_BYTES;

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

/// All of it in one run: series `mpi latency`, `mpi latency mean` (ns), and by size `mpi stream SIZE` (bytes per
/// second), of short messages also `mpi stream SIZE messages`. Payloads are written before they are sent and read after they arrive.
/// The program is built in `directory`.
///
/// # Errors
/// No compiler for MPI, no `mpirun`, or one that refuses the program.
pub fn contestant(name: &str, directory: &Path) -> Result<Contestant> {
    let program = build(directory, "ping_pong", PROGRAM)?;
    let (source, target) = pin::two_cores();
    Ok(Contestant {
        name: name.to_owned(),
        command: format!("mpirun -np 2 {} ping_pong {source} {target}", MPIRUN.join(" ")),
        take: Box::new(move || {
            let mut command = launcher();
            command
                .args(["-np", "2"])
                .args(MPIRUN)
                .arg(&program)
                .args([source, target].map(|c| c.to_string()));
            Ok(Taken { values: values(&printed(&mut command)?)?, ..Taken::default() })
        }),
    })
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
fn values(printed: &str) -> Result<Vec<(String, f64)>> {
    let mut values = Vec::new();
    for line in printed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse::<f64>().ok().filter(|number| *number > 0.0);
        match (words.first(), number(1), number(2)) {
            (Some(&"latency"), Some(median), Some(mean)) => {
                values.push(("mpi latency".to_owned(), median));
                values.push(("mpi latency mean".to_owned(), mean));
            }
            (Some(&"stream"), Some(size), Some(messages)) => {
                values.push((format!("mpi stream {size}"), messages * size));
                if size <= SHORT_BYTES as f64 {
                    values.push((format!("mpi stream {size} messages"), messages));
                }
            }
            _ => {}
        }
    }
    ensure!(!values.is_empty(), "the program under mpirun prints no figures");
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_between_other_lines() {
        let values = values("a warning\nlatency 298.5 310\nstream 8 1000\nstream x 1\n").unwrap();
        let expected = [
            ("mpi latency", 298.5),
            ("mpi latency mean", 310.0),
            ("mpi stream 8", 8000.0),
            ("mpi stream 8 messages", 1000.0),
        ];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
        assert!(super::values("nothing\n").is_err());
    }
}
