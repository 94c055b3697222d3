//! Two and three ranks of MPICH exchange the same messages as those of Open MPI, with the variables of docs/mpi.md.
//! `./x test` installs MPICH in the cache.

use crate::loaded::{Loaded, mpich_commands, mpich_variables, run};

#[test]
fn ranks_of_mpich_exchange_messages_of_every_length_and_kind() {
    let [compiler, launcher] = mpich_commands();
    let Some(loaded) = Loaded::new(&[&compiler, &launcher], "stdio.h") else { return };
    let program = loaded.compile(&compiler, "ping_pong.c", &[]);
    for ranks in ["2", "3"] {
        let mut command = loaded.command(&launcher);
        command.env("FI_PROVIDER", "bywire");
        command.envs(mpich_variables()).args(["-n", ranks]).arg(&program);
        assert_eq!(run(&mut command), "exchanged\n", "{ranks} ranks");
    }
}
