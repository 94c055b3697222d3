//! The memory of connections between ranks that have exchanged a few messages.

use anyhow::{Context, Result};
use bywire_command::provider;
use bywire_results::cell::Unit;

use crate::contestant::Contestant;
use crate::open_mpi;

const PROGRAM: &str = include_str!("quiet_connections.c");

/// Rank 0 is connected to all others but one while it measures.
const RANKS: &str = "33";

/// The bytes that a connection takes at both ends, of Open MPI over Bywire on one machine.
///
/// # Errors
/// No compiler for MPI, or no provider.
pub fn contestant() -> Result<Contestant> {
    let directory = tempfile::tempdir()?;
    let program = open_mpi::build(directory.path(), "quiet_connections", PROGRAM)?;
    let provider = provider::directory()?;
    let command = format!("mpirun -np {RANKS} quiet_connections DIRECTORY");
    Ok(Contestant::of_value(command, Unit::Bytes, move || {
        // One of its own for each job.
        let files = tempfile::tempdir_in(&directory)?;
        let mut command = open_mpi::launcher();
        command.args(["-np", RANKS, "--oversubscribe", "--bind-to", "none"]);
        command.args(provider::options()).envs(provider::variables(&provider));
        command.args(["-x", "BYWIRE_RUNTIME_DIR"]).env("BYWIRE_RUNTIME_DIR", files.path());
        bytes(&open_mpi::printed(command.arg(&program).arg(files.path()))?)
    }))
}

fn bytes(printed: &str) -> Result<f64> {
    let value = printed.lines().find_map(|line| line.strip_prefix("bytes ")?.trim().parse().ok());
    value.context("the program under mpirun prints no bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_found_between_other_lines() {
        assert_eq!(bytes("a warning\nbytes 1024.5\n").unwrap(), 1024.5);
        assert!(bytes("bytes x\n").is_err());
    }
}
