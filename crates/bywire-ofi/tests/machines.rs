//! A job of Open MPI between two machines of a fabric, encrypted and plain.

mod loaded;
#[path = "../../bywire-node/tests/test_network/mod.rs"]
mod test_network;

use std::os::unix::fs::PermissionsExt;

use loaded::{Loaded, OPEN_MPI, is_open_mpi, run};
use test_network::{TestNetwork, path};

/// Starts a command of the launcher on the second machine, instead of ssh.
fn agent(network: &TestNetwork) -> String {
    let there = &network.machines[1];
    let (namespace, runtime) = (path(&there.namespace), there.runtime());
    let runtime = runtime.display();
    format!("#!/bin/sh\nshift\nBYWIRE_RUNTIME_DIR={runtime} exec nsenter --net={namespace} sh -c \"$*\"\n")
}

#[test]
fn ranks_of_two_machines_exchange_messages_of_every_length_and_kind() {
    let Some(loaded) = Loaded::new(&["mpirun", "mpicc", "nsenter"], "mpi.h") else { return };
    if !is_open_mpi(&loaded) {
        return;
    }
    let program = loaded.compile("mpicc", "ping_pong.c", &[]);
    for is_encrypted in [true, false] {
        let Some(network) = TestNetwork::up_with(2, is_encrypted) else { return };
        let agent_path = loaded.path("agent");
        std::fs::write(&agent_path, agent(&network)).expect("written");
        std::fs::set_permissions(&agent_path, PermissionsExt::from_mode(0o700)).expect("executable");
        let [here, there] = &network.machines[..] else { unreachable!() };
        let mut command = loaded.command("mpirun");
        command.env("BYWIRE_RUNTIME_DIR", here.runtime()).env("FI_PROVIDER", "bywire").envs(OPEN_MPI);
        let hosts = format!("{}:1,{}:1", here.address.ip(), there.address.ip());
        command.args([
            "-n",
            "2",
            "--host",
            &hosts,
            "--mca",
            "oob_tcp_if_include",
            "eth0",
            "--mca",
            "plm_rsh_agent",
        ]);
        command.arg(&agent_path).args(loaded::options()).arg(&program);
        let printed = here.namespace.run(|| run(&mut command)).expect("inside");
        assert_eq!(printed, "exchanged\n", "encrypted: {is_encrypted}");
    }
}
