//! Messages, writes and reads under way with a peer that is killed at a random moment end within 10 ms (median) after
//! it, and the endpoint goes on. A job of Open MPI ends with a killed rank. Nothing is left in the runtime directory.
//! Needs libfabric-dev, openmpi-bin and libopenmpi-dev.
//!
//! Random: `BYWIRE_ROUNDS`, from `BYWIRE_SEED` on. Peers are killed 40 times, and 1,000 in a soak; a rank twice, and 50
//! times in a soak.

use std::path::Path;

use bywire_testing::{number, repetitions};

use crate::loaded::{Loaded, OPEN_MPI, finish, options, run};

/// Sockets of ports.
fn ports(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"));
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".port")).collect()
}

#[test]
fn operations_with_a_killed_peer_end_soon_and_the_endpoint_goes_on() {
    let Some((loaded, program)) = Loaded::with_program("kills.c") else { return };
    let (rounds, first) = (repetitions("BYWIRE_ROUNDS", [40, 40, 1000]), number("BYWIRE_SEED", 1));
    // A program has limited time.
    for seed in first..first + rounds.div_ceil(100) {
        let mut command = loaded.command(&program);
        let peers = rounds.min(100).to_string();
        let output = finish(command.args([peers, seed.to_string()]));
        let said = String::from_utf8_lossy(&output.stderr);
        eprint!("{said}");
        assert!(output.status.success() && output.stdout == b"survived\n", "seed {seed}: {said}");
    }
    assert_eq!(ports(&loaded.path("run")), Vec::<String>::new());
}

#[test]
fn a_job_whose_rank_is_killed_ends_and_leaves_nothing() {
    let Some(loaded) = Loaded::of_open_mpi(&["cc"]) else { return };
    let program = loaded.compile("mpicc", "killed_rank.c", &[]);
    let ports_program = loaded.compile("cc", "kills.c", &["-lfabric"]);
    let (rounds, seed) = (repetitions("BYWIRE_ROUNDS", [40, 40, 1000]) / 20, number("BYWIRE_SEED", 1));
    for turn in seed..seed + rounds {
        let mut command = loaded.command("mpirun");
        command.env("FI_PROVIDER", "bywire").envs(OPEN_MPI);
        command.args(["-n", "3", "--oversubscribe"]).args(options()).arg(&program).arg(turn.to_string());
        let output = finish(&mut command);
        assert!(!output.status.success(), "{turn}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The launcher sees the end of the rank, or another rank does first, and has the job ended. That rank may be ended while
        // it sends its message to the launcher, which then complains of half a message.
        let is_seen = said.contains("signal 9")
            || said.contains("MPI_ERRORS_ARE_FATAL")
            || said.contains("show_help.c") && said.contains("this rank kills itself");
        let has_crashed = said.contains("signal 11") || output.status.code() == Some(128 + 11);
        assert!(is_seen && !has_crashed, "{turn}: {output:?}");
    }
    // Openers clear away the sockets of killed ranks.
    assert_eq!(run(loaded.command(&ports_program).args(["4", "1"])), "survived\n");
    assert_eq!(ports(&loaded.path("run")), Vec::<String>::new());
}
