//! Two ranks of Open MPI or MPICH on two machines in namespaces exchange the same messages as on one, encrypted and
//! plain, through what happens to machines. Needs root, openmpi-bin and libopenmpi-dev.
//!
//! A job goes on while the services of its machines are down and after they have restarted, after 2 s without a cable,
//! and after a rank was stopped for 2 s (5 s in a soak). It ends when a node is revoked. Messages, writes and reads
//! with a peer that is killed on the other machine end as soon as on one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bywire_node::fabric::Fabric;
use bywire_testing::test_network::{TestNetwork, path};
use bywire_testing::{Tier, repetitions};

use crate::job::Job;
use crate::loaded::{self, Loaded, OPEN_MPI, finish, mpich_commands, mpich_variables, run, text};

/// How long one end is away.
fn away() -> Duration {
    Duration::from_secs(Tier::current().pick([2, 2, 5]))
}

/// Within this time a job has ended of which a node is away for good.
const SOON: Duration = Duration::from_secs(30);

/// What this machine needs for a job.
const COMMANDS: [&str; 2] = ["nsenter", "timeout"];

/// A program that starts a command on the second machine, instead of ssh. The command, and all that it starts, find the service
/// of that machine in the directory where the first one has its own, and another host name.
fn agent(loaded: &Loaded, network: &TestNetwork) -> PathBuf {
    let [here, there] = &network.machines[..] else { unreachable!() };
    let (from, to) = (there.runtime(), here.runtime());
    let enter = format!(
        "hostname there && mount --bind {} {} && exec nsenter --net={} sh -c \"$1\"",
        from.display(),
        to.display(),
        path(&there.namespace)
    );
    let agent_path = loaded.path("agent");
    // MPICH has an option before the host.
    let text = format!(
        "#!/bin/sh\n[ \"$1\" != -x ] || shift\nshift\nexec unshare --mount --uts sh -c '{enter}' agent \"$*\"\n"
    );
    std::fs::write(&agent_path, text).expect("written");
    std::fs::set_permissions(&agent_path, PermissionsExt::from_mode(0o700)).expect("executable");
    agent_path
}

/// Attempts at a job that spawns. In most of them on some machines, Open MPI's own exchange of names loses a race.
const SPAWNS_MAX: u32 = 15;

/// A job with one rank on each machine.
fn job(loaded: &Loaded, network: &TestNetwork, program: &Path) -> Command {
    let agent_path = agent(loaded, network);
    let [here, there] = &network.machines[..] else { unreachable!() };
    let mut command = loaded.command("timeout");
    command.env("BYWIRE_RUNTIME_DIR", here.runtime()).env("FI_PROVIDER", "bywire").envs(OPEN_MPI);
    // Room for all processes that a job ever spawns: the launcher may not know yet that the earlier ones have ended.
    let hosts = format!("{}:8,{}:8", here.address.ip(), there.address.ip());
    command.args(["100", "mpirun", "-n", "2", "--map-by", "node", "--host", &hosts]);
    command.args(["--mca", "oob_tcp_if_include", "eth0", "--mca", "plm_rsh_agent"]).arg(&agent_path);
    command.args(loaded::options()).arg(program);
    command
}

/// The same under MPICH. `None`: it is not here.
fn job_of_mpich(loaded: &Loaded, network: &TestNetwork, source: &str) -> Option<Command> {
    let [compiler, launcher] = mpich_commands();
    if !Path::new(&launcher).exists() {
        eprintln!("not run: MPICH of the Python Package Index is not installed");
        return None;
    }
    let program = loaded.compile(&compiler, source, &[]);
    let [here, there] = &network.machines[..] else { unreachable!() };
    let [first, second] = [here, there].map(|machine| machine.address.ip().to_string());
    let mut command = loaded.command("timeout");
    command.env("BYWIRE_RUNTIME_DIR", here.runtime()).env("FI_PROVIDER", "bywire").envs(mpich_variables());
    command.args(["100", &launcher, "-n", "2", "-hosts", &format!("{first}:1,{second}:1")]);
    command.args(["-localhost", &first, "-iface", "eth0", "-launcher", "ssh", "-launcher-exec"]);
    command.arg(agent(loaded, network)).arg(program);
    Some(command)
}

/// Runs a command on the first machine to its end, and returns what it prints.
fn run_on_first(network: &TestNetwork, command: &mut Command) -> String {
    network.machines[0].namespace.run(|| run(command)).expect("inside")
}

/// A job that exchanges messages for this time, after its first ones.
fn steady(loaded: &Loaded, network: &TestNetwork, time: Duration) -> Job {
    begun(loaded, network, &[&time.as_secs().to_string()])
}

/// A job of `steady.c` that has begun.
fn begun(loaded: &Loaded, network: &TestNetwork, words: &[&str]) -> Job {
    let program = loaded.compile("mpicc", "steady.c", &[]);
    let mut command = job(loaded, network, &program);
    command.args(words);
    let mut job = network.machines[0].namespace.run(|| Job::start(&mut command)).expect("inside");
    job.wait_until_it_has_begun();
    job
}

#[test]
fn ranks_of_two_machines_exchange_messages_of_every_length_and_kind() {
    let Some(loaded) = Loaded::of_open_mpi(&COMMANDS) else { return };
    let program = loaded.compile("mpicc", "ping_pong.c", &[]);
    for is_encrypted in [true, false] {
        let Some(network) = TestNetwork::up_with(2, is_encrypted) else { return };
        let mut command = job(&loaded, &network, &program);
        let printed = run_on_first(&network, &mut command);
        assert_eq!(printed, "exchanged\n", "encrypted: {is_encrypted}");
    }
}

#[test]
fn ranks_of_mpich_on_two_machines_exchange_messages_of_every_length_and_kind() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    let Some(mut command) = job_of_mpich(&loaded, &network, "ping_pong.c") else { return };
    assert_eq!(run_on_first(&network, &mut command), "exchanged\n");
}

#[test]
fn processes_that_ranks_of_two_machines_spawn_exchange_messages_with_all() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    let program = loaded.compile("mpicc", "spawn.c", &[]);
    let mut command = job(&loaded, &network, &program);
    let output = (1..=SPAWNS_MAX).find_map(|attempt| {
        let output = network.machines[0].namespace.run(|| finish(&mut command)).expect("inside");
        let said = text(&output.stderr);
        let is_open_mpis = said.contains("PML add procs failed") && said.contains("\"Not found\" (-13)");
        if attempt < SPAWNS_MAX && is_open_mpis {
            println!(
                "once more: Open MPI's launcher did not know the names of ranks that it had just started"
            );
            return None;
        }
        assert!(output.status.success(), "{}\n{said}", output.status);
        Some(output)
    });
    assert_eq!(output.map(|output| text(&output.stdout)).as_deref(), Some("exchanged\n"));
    let Some(mut command) = job_of_mpich(&loaded, &network, "spawn.c") else { return };
    assert_eq!(run_on_first(&network, &mut command), "exchanged\n");
}

/// Segments of TCP that this namespace has sent.
fn segments_sent() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut both = names.split(' ').zip(values.split(' '));
    both.find(|(name, _)| *name == "OutSegs").expect("it is counted").1.parse().expect("a number")
}

#[test]
fn windows_of_ranks_on_two_machines_use_nothing_but_the_fabric() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    let run_alone = |command: &mut Command| {
        network.machines[0].namespace.run(|| {
            let before = segments_sent();
            assert_eq!(run(command), "accessed\n");
            let sent = segments_sent() - before;
            // The launchers' own. The windows' bytes would be more than 5,000.
            assert!(sent < 1000, "{sent} segments of TCP");
        })
    };
    let program = loaded.compile("mpicc", "puts.c", &[]);
    run_alone(&mut job(&loaded, &network, &program)).expect("inside");
    let Some(mut command) = job_of_mpich(&loaded, &network, "puts.c") else { return };
    run_alone(&mut command).expect("inside");
}

#[test]
fn a_job_goes_on_while_the_services_of_its_machines_are_down_and_after_they_have_restarted() {
    let (Some(loaded), Some(mut network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else {
        return;
    };
    let job = steady(&loaded, &network, Duration::from_secs(3));
    for number in [1, 0] {
        network.machines[number].stop();
        sleep(Duration::from_millis(500));
        network.machines[number].start();
    }
    job.has_to_succeed();
}

#[test]
fn a_job_whose_machines_have_no_service_says_what_to_do() {
    let (Some(loaded), Some(mut network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else {
        return;
    };
    network.machines.iter_mut().for_each(|machine| machine.stop());
    let program = loaded.compile("mpicc", "ping_pong.c", &[]);
    let mut command = job(&loaded, &network, &program);
    let output = network.machines[0].namespace.run(|| command.output().expect("it runs")).expect("inside");
    let said = String::from_utf8_lossy(&output.stderr);
    let has_reason = said.contains("bywire: no connection to") && said.contains("start it with `bywire up`");
    assert!(!output.status.success() && has_reason, "{said}");
}

#[test]
fn a_first_message_waits_for_a_rank_that_calls_late() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    // The services give up a request that nobody answers after five seconds.
    begun(&loaded, &network, &["1", "late", "6"]).has_to_succeed();
}

#[test]
fn a_first_message_waits_for_services_that_restart() {
    let (Some(loaded), Some(mut network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else {
        return;
    };
    let job = begun(&loaded, &network, &["1", "late", "3"]);
    for number in [1, 0] {
        network.machines[number].stop();
        sleep(Duration::from_millis(500));
        network.machines[number].start();
        sleep(Duration::from_millis(500));
    }
    job.has_to_succeed();
}

#[test]
fn a_job_goes_on_after_seconds_without_a_cable() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    let job = steady(&loaded, &network, away() + Duration::from_secs(2));
    network.set_cable(1, false);
    sleep(away());
    network.set_cable(1, true);
    job.has_to_succeed();
}

#[test]
fn a_job_goes_on_after_a_rank_on_another_machine_was_stopped() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    let job = steady(&loaded, &network, away() + Duration::from_secs(1));
    job.stop(1, away());
    job.has_to_succeed();
}

#[test]
fn a_job_ends_when_the_node_of_one_of_its_ranks_is_revoked() {
    let (Some(loaded), Some(network)) = (Loaded::of_open_mpi(&COMMANDS), TestNetwork::up(2)) else { return };
    let job = steady(&loaded, &network, 2 * SOON);
    let all = network.fabric();
    let nodes = all.nodes[..1].to_vec();
    network.machines[0].write(&Fabric { serial: 2, nodes, ..all });
    network.machines[0].reload();
    let revoked = Instant::now();
    job.has_to_fail();
    assert!(revoked.elapsed() < SOON, "{:?}", revoked.elapsed());
}

#[test]
fn operations_with_a_killed_peer_on_another_machine_end_soon_and_the_endpoint_goes_on() {
    let Some(loaded) = Loaded::new(&["cc", "nsenter"], "rdma/fabric.h") else { return };
    let Some(network) = TestNetwork::up(2) else { return };
    let program = loaded.compile("cc", "kills.c", &["-lfabric"]);
    let mut command = loaded.command(&program);
    command.env("BYWIRE_RUNTIME_DIR", network.machines[0].runtime());
    let rounds = repetitions("BYWIRE_ROUNDS", [10, 10, 100]);
    command.args([&rounds.to_string(), "1"]).arg(agent(&loaded, &network));
    let printed = run_on_first(&network, &mut command);
    assert_eq!(printed, "survived\n");
}
