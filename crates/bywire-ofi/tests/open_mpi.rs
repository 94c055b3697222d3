//! Programs of Debian's Open MPI over the provider, with the options of docs/mpi.md.

mod loaded;

use loaded::{Loaded, OPEN_MPI, is_open_mpi, options, run};

#[test]
fn ranks_of_one_machine_exchange_messages_of_every_length_and_kind() {
    let Some(loaded) = Loaded::new(&["mpirun", "mpicc"], "mpi.h") else { return };
    if !is_open_mpi(&loaded) {
        return;
    }
    let program = loaded.compile("mpicc", "ping_pong.c", &[]);
    for ranks in [2, 3] {
        let mut command = loaded.command("mpirun");
        command.env("FI_PROVIDER", "bywire").envs(OPEN_MPI);
        command.args(["-n", &ranks.to_string(), "--oversubscribe"]).args(options()).arg(&program);
        assert_eq!(run(&mut command), "exchanged\n", "{ranks} ranks");
    }
}
