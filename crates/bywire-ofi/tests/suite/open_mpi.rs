//! Two and three ranks of Debian's Open MPI exchange messages of every length and kind over the provider, with the
//! options of docs/mpi.md, and see every byte. Needs openmpi-bin and libopenmpi-dev.
//!
//! Two jobs at once do not disturb each other. A job goes on with a rank that has children, and after a rank was
//! stopped for 1 s (for 4 s in a soak). Ranks in containers with host names of their own meet (as root). Windows are
//! shared or put into.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bywire_testing::Tier;

use crate::job::Job;
use crate::loaded::{Loaded, OPEN_MPI, options, run};

fn job(loaded: &Loaded, program: &Path, ranks: u32) -> Command {
    let mut command = loaded.command("mpirun");
    command.env("FI_PROVIDER", "bywire").envs(OPEN_MPI);
    command.args(["-n", &ranks.to_string(), "--oversubscribe"]).args(options()).arg(program);
    command
}

#[test]
fn two_jobs_at_once_have_nothing_to_do_with_each_other() {
    let Some(loaded) = Loaded::of_open_mpi(&[]) else { return };
    let program = loaded.compile("mpicc", "ping_pong.c", &[]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(run(&mut job(&loaded, &program, 2)), "exchanged\n"));
        }
    });
}

#[test]
fn ranks_of_one_machine_exchange_messages_of_every_length_and_kind() {
    let Some(loaded) = Loaded::of_open_mpi(&[]) else { return };
    let program = loaded.compile("mpicc", "ping_pong.c", &[]);
    for ranks in [2, 3] {
        assert_eq!(run(&mut job(&loaded, &program, ranks)), "exchanged\n", "{ranks} ranks");
    }
}

#[test]
fn a_rank_has_children_while_it_exchanges_messages() {
    let Some(loaded) = Loaded::of_open_mpi(&[]) else { return };
    let program = loaded.compile("mpicc", "steady.c", &[]);
    let printed = run(job(&loaded, &program, 2).args(["1", "fork"]));
    assert!(printed.ends_with("exchanged to the end\n"), "{printed}");
}

#[test]
fn a_job_goes_on_after_a_rank_was_stopped() {
    let Some(loaded) = Loaded::of_open_mpi(&[]) else { return };
    let program = loaded.compile("mpicc", "steady.c", &[]);
    let stopped = Tier::current().pick([1, 1, 4]);
    let mut job = Job::start(job(&loaded, &program, 2).arg((stopped + 1).to_string()));
    job.wait_until_it_has_begun();
    job.stop(1, Duration::from_secs(stopped));
    job.has_to_succeed();
}

#[test]
fn ranks_of_one_machine_have_shared_windows_and_others() {
    let Some(loaded) = Loaded::of_open_mpi(&[]) else { return };
    let program = loaded.compile("mpicc", "windows.c", &[]);
    assert_eq!(run(&mut job(&loaded, &program, 2)), "shared, put\n");
}

/// Starts a program in namespaces of its own, as a container has them, with a host name of its own.
const CONTAINER: &str = r#"#!/bin/sh
exec unshare --uts --ipc --pid --fork sh -c 'hostname "container$OMPI_COMM_WORLD_RANK" && exec "$0" "$@"' "$@"
"#;

#[test]
fn ranks_in_containers_with_host_names_of_their_own_exchange_messages() {
    let Some(loaded) = Loaded::of_open_mpi(&["unshare", "hostname"]) else { return };
    let may_unshare = Command::new("unshare").args(["--uts", "--ipc", "--pid", "--fork", "true"]).status();
    if !may_unshare.is_ok_and(|status| status.success()) {
        eprintln!("not run: namespaces need root");
        return;
    }
    let (program, container) = (loaded.compile("mpicc", "steady.c", &[]), loaded.path("container"));
    std::fs::write(&container, CONTAINER).expect("written");
    std::fs::set_permissions(&container, PermissionsExt::from_mode(0o700)).expect("executable");
    let printed = run(job(&loaded, &container, 2).arg(&program).arg("1"));
    assert!(printed.ends_with("exchanged to the end\n"), "{printed}");
}
