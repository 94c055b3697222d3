//! MPI programs use an installation by the commands of docs/mpi.md, as they are printed there: on one machine, without
//! shared memory and the right to trace, and between two machines. Needs root, Open MPI, and MPICH from the cache.
//!
//! No job is moved that has not asked. Open MPI opens no way of its own to other machines. A missing provider is
//! reported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bywire_testing::test_network::{Machine, TestNetwork, path};
use tempfile::TempDir;

use crate::packages;

/// What a script is given. One that takes longer hangs.
const SECONDS: &str = "120";

/// An MPI implementation.
#[derive(Clone, Copy, Debug)]
enum Mpi {
    Open,
    Mpich,
}

/// A home directory with an installation in `bywire`, and a directory with `program`.
struct Home {
    directory: TempDir,
    /// Directories before those of the search path.
    programs: Vec<PathBuf>,
}

impl Home {
    /// `None`: the implementation is not here, or no namespaces can be made, which is printed.
    fn with(mpi: Mpi) -> Option<Self> {
        let mut programs = Vec::new();
        match mpi {
            Mpi::Open => {
                if !packages::have(&[("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")]) {
                    return None;
                }
                let said = Command::new("mpirun").arg("--version").output().expect("it runs");
                if !String::from_utf8_lossy(&said.stdout).contains("Open MPI") {
                    println!("not run: mpirun is not that of Open MPI");
                    return None;
                }
            }
            Mpi::Mpich => {
                let Some(own) = packages::cached("mpich/bin/mpicc") else {
                    println!("not run: MPICH is not in the cache: `./x test` installs it");
                    return None;
                };
                programs.extend(own.parent().map(Path::to_owned));
            }
        }
        let tried = Command::new("unshare").args(["-m", "-n", "--uts", "true"]).output();
        if !tried.is_ok_and(|output| output.status.success()) {
            println!("not run: no namespaces can be made here: run as root");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        install(&directory.path().join(".bywire"));
        let home = Self { directory, programs };
        home.compile();
        Some(home)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn compile(&self) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bywire-ofi/tests/c/ping_pong.c");
        let compiler = self.programs.first().map_or_else(|| "mpicc".into(), |own| own.join("mpicc"));
        let output = Command::new(compiler).arg("-o").arg(self.path("program")).arg(source).output();
        let output = output.expect("a compiler");
        assert!(output.status.success(), "{output:?}");
    }

    /// The lines that give root's programs ports of their own.
    fn own_ports(&self) -> String {
        let runtime = self.path("run");
        if !runtime.exists() {
            fs::create_dir(&runtime).expect("made");
        }
        "mount -t tmpfs none /run; mkdir /run/bywire; mount --bind \"$HOME/run\" /run/bywire".to_owned()
    }

    /// A shell that runs a script there, in a mount namespace of its own.
    fn shell(&self, script: &str) -> Command {
        let mut shell = Command::new("timeout");
        shell
            .args([SECONDS, "unshare", "-m", "--uts", "sh", "-ec", script])
            .current_dir(self.directory.path());
        let old = std::env::var_os("PATH").unwrap_or_default();
        let installed = self.path(".bywire/bin");
        let all = self.programs.iter().cloned().chain([installed]).chain(std::env::split_paths(&old));
        shell.env("PATH", std::env::join_paths(all).expect("a path")).env("HOME", self.directory.path());
        for name in ["FI_PROVIDER", "FI_PROVIDER_PATH", "BYWIRE_RUNTIME_DIR"] {
            shell.env_remove(name);
        }
        shell.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        shell
    }

    fn run(&self, script: &str) -> String {
        succeeded(script, self.shell(script).output())
    }
}

/// What `./x install` puts below a prefix, of it what MPI programs need. crates/bywire-capi/tests/suite/install.rs holds the installer
/// to these places.
fn install(prefix: &Path) {
    let tests = std::env::current_exe().expect("this test");
    for (built, place) in [
        (Path::new(env!("CARGO_BIN_EXE_bywire")), "bin/bywire"),
        (&tests.with_file_name("libbywire_fi.so"), "lib/bywire/libfabric/libbywire-fi.so"),
    ] {
        let place = prefix.join(place);
        fs::create_dir_all(place.parent().expect("a directory")).expect("made");
        fs::copy(built, &place).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    }
}

fn succeeded(script: &str, output: std::io::Result<Output>) -> String {
    let output = output.expect("it runs");
    assert!(output.status.success(), "{script}\n{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mpi.md");
    fs::read_to_string(page).expect("docs/mpi.md")
}

/// The command of the page's blocks that begins with `words`, and has others behind them.
fn command(words: &str) -> String {
    let page = page().replace("\\\n", " ");
    let blocks = page.split("```").skip(1).step_by(2);
    let mut found = blocks.flat_map(str::lines).filter(|line| line.starts_with(words));
    let command = found.next().unwrap_or_else(|| panic!("no command begins with {words}"));
    assert!(found.next().is_none(), "several commands begin with {words}");
    command.to_owned()
}

impl Mpi {
    /// The page's command that starts two ranks of one machine.
    fn start(self) -> String {
        match self {
            Self::Open => command("mpirun -n 2 ./program"),
            // It is in the text.
            Self::Mpich => {
                let words = "mpiexec -n 2 ./program";
                assert!(page().contains(&format!("`{words}`")), "{words}");
                words.to_owned()
            }
        }
    }
}

/// Runs a command whose libfabric logs, and looks whether the log tells of Bywire.
fn logged(start: &str, is_ours: bool) -> String {
    let found = "grep -q ':bywire:.*endpoint' log";
    let look = if is_ours { found.to_owned() } else { format!("if {found}; then exit 1; fi") };
    format!("FI_LOG_LEVEL=info {start} 2>log\n{look}")
}

#[test]
fn programs_of_one_machine_use_the_fabric_by_the_printed_commands_until_these_are_taken_back() {
    for mpi in [Mpi::Open, Mpi::Mpich] {
        let Some(home) = Home::with(mpi) else { continue };
        let start = mpi.start();
        let script = [
            home.own_ports(),
            command("eval \"$(bywire mpi env)\""),
            logged(&start, true),
            command("eval \"$(bywire mpi env --unset)\""),
            "if env | grep -E '^(FI_|OMPI_MCA|MPIR_|I_MPI_|BYWIRE_MPI)'; then exit 1; fi".to_owned(),
            logged(&start, false),
            // The same by hand, for a shell without the command.
            command("eval \"$(bywire mpi env)\""),
            command("unset FI_PROVIDER_PATH "),
            "if env | grep -E '^(FI_|OMPI_MCA|MPIR_|I_MPI_|BYWIRE_MPI)'; then exit 1; fi".to_owned(),
        ];
        assert_eq!(home.run(&script.join("\n")), "exchanged\nexchanged\n", "{mpi:?}");
    }
}

#[test]
fn programs_use_the_fabric_by_settings_that_are_made_by_hand() {
    for (mpi, words) in [(Mpi::Open, "mpirun -n 2 --mca "), (Mpi::Mpich, "MPIR_CVAR_CH4_NETMOD=ofi ")] {
        let Some(home) = Home::with(mpi) else { continue };
        let script = [home.own_ports(), command("export FI_PROVIDER_PATH="), logged(&command(words), true)];
        assert_eq!(home.run(&script.join("\n")), "exchanged\n", "{mpi:?}");
    }
}

#[test]
fn the_printed_log_tells_whether_a_job_uses_the_fabric() {
    let Some(home) = Home::with(Mpi::Open) else { return };
    let look =
        format!("{} 2>log\ngrep -c 'closes, .*messages taken: ' log || true", command("FI_LOG_LEVEL=info "));
    let script = [home.own_ports(), look.clone(), command("eval \"$(bywire mpi env)\""), look];
    assert_eq!(home.run(&script.join("\n")), "exchanged\n0\nexchanged\n2\n");
}

#[test]
fn open_mpi_opens_no_way_of_its_own_to_other_machines_beside_the_fabric() {
    let Some(home) = Home::with(Mpi::Open) else { return };
    let by_hand = format!("{}\n{}", command("export FI_PROVIDER_PATH="), command("mpirun -n 2 --mca "));
    let printed = format!("{}\n{}", command("eval \"$(bywire mpi env)\""), Mpi::Open.start());
    for start in [by_hand, printed] {
        let script = format!(
            "{}\nexport OMPI_MCA_btl_base_verbose=100\n{start} 2>log\nsed -n 's/.*components_open: found loaded component //p' log",
            home.own_ports()
        );
        let said = home.run(&script);
        let (exchanged, opened) = said.split_once('\n').expect("lines");
        assert_eq!(exchanged, "exchanged");
        // Windows of one machine use these.
        let is_of_machine = |name: &str| ["self", "sm", "vader"].contains(&name);
        assert!(!opened.is_empty() && opened.lines().all(is_of_machine), "{said}");
    }
}

#[test]
fn an_installation_moves_no_job_that_has_not_asked() {
    for mpi in [Mpi::Open, Mpi::Mpich] {
        let Some(home) = Home::with(mpi) else { continue };
        // Told where providers are, libfabric loads ours and is offered nothing by it.
        let script = [
            home.own_ports(),
            logged(&mpi.start(), false),
            "export FI_PROVIDER_PATH=\"$HOME/.bywire/lib/bywire/libfabric\"".to_owned(),
            mpi.start(),
            "test -z \"$(ls -A /run/bywire)\"".to_owned(),
        ];
        assert_eq!(home.run(&script.join("\n")), "exchanged\nexchanged\n", "{mpi:?}");
    }
}

#[test]
fn a_container_needs_no_shared_memory_and_no_right_to_trace() {
    let Some(home) = Home::with(Mpi::Open) else { return };
    let printed = command("podman run ");
    let (_, inside) = printed.split_once(" IMAGE sh -c '").expect("a command in a container");
    let inside = inside.strip_suffix('\'').expect("the end of it");
    let alone = "mount -t tmpfs -o size=4k none /dev/shm; exec setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace";
    let script = format!("{}; {alone} sh -ec '{inside}'", home.own_ports());
    assert_eq!(home.run(&script), "exchanged\n");
}

/// A machine's own names of hosts and runtime directory, in a mount namespace of its own.
fn machine(home: &Home, machine: &Machine) -> String {
    let (hosts, runtime) = (home.path("hosts"), machine.runtime());
    let (hosts, runtime) = (hosts.display(), runtime.display());
    format!(
        "mount --bind {hosts} /etc/hosts; mount -t tmpfs none /run; mkdir /run/bywire; mount --bind {runtime} /run/bywire"
    )
}

#[test]
fn programs_of_two_machines_use_the_fabric_by_the_printed_commands() {
    for (mpi, words) in [(Mpi::Open, "mpirun $BYWIRE_MPI"), (Mpi::Mpich, "mpiexec -n 2 -hosts")] {
        let Some(home) = Home::with(mpi) else { continue };
        let Some(network) = TestNetwork::up(2) else { return };
        let [here, there] = &network.machines[..] else { unreachable!() };
        let hosts = format!("127.0.0.1 localhost\n{} web1\n{} web2\n", here.address.ip(), there.address.ip());
        fs::write(home.path("hosts"), hosts).expect("written");
        // In place of ssh.
        let agent = format!(
            "#!/bin/sh\n[ \"$1\" != -x ] || shift\nshift\nexec nsenter --net={} unshare -m --uts sh -c '{}; echo web2 >/proc/sys/kernel/hostname; eval \"$0\"' \"$*\"\n",
            path(&there.namespace),
            machine(&home, there)
        );
        fs::write(home.path("agent"), agent).expect("written");
        fs::set_permissions(home.path("agent"), PermissionsExt::from_mode(0o700)).expect("executable");
        let script = [
            machine(&home, here),
            "echo web1 >/proc/sys/kernel/hostname".to_owned(),
            command("eval \"$(bywire mpi env)\""),
            command(words),
        ];
        let mut shell = home.shell(&script.join("\n"));
        shell.env("OMPI_MCA_plm_rsh_agent", home.path("agent")).env("OMPI_MCA_oob_tcp_if_include", "eth0");
        shell.env("HYDRA_LAUNCHER", "ssh").env("HYDRA_LAUNCHER_EXEC", home.path("agent"));
        shell.env("HYDRA_IFACE", "eth0");
        let output = here.namespace.run(|| shell.output()).expect("inside");
        assert_eq!(succeeded(words, output), "exchanged\n", "{mpi:?}");
    }
}

#[test]
fn the_doctor_says_of_each_mpi_whether_it_loads_the_provider() {
    for (mpi, name) in [(Mpi::Open, "Open MPI"), (Mpi::Mpich, "MPICH")] {
        let Some(home) = Home::with(mpi) else { continue };
        let printed = home.run(&format!("{}; bywire doctor --json", home.own_ports()));
        let found: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        let findings = found["findings"].as_array().expect("findings");
        let of = |name: &str| {
            let mut named = findings.iter().filter(|finding| finding["group"] == "MPI programs");
            named.find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name}: {printed}"))
        };
        assert_eq!(of("provider")["works"], true, "{printed}");
        assert_eq!(of(name)["works"], true, "{printed}");
        let found = of(name)["found"].as_str().expect("text");
        assert!(found.contains("loads it, by libfabric "), "{found}");
    }
}

#[test]
fn the_doctor_names_an_mpi_without_libfabric() {
    let Some(home) = Home::with(Mpi::Open) else { return };
    // It calls itself MPICH, and its compiler makes programs that know no libfabric.
    fs::create_dir(home.path("own")).expect("made");
    for (name, script) in [
        (
            "mpirun.mpich",
            "[ \"$1\" != --version ] || { echo HYDRA; echo '    Version:  4.0.2'; exit; }\nshift 2; exec \"$@\"",
        ),
        (
            "mpicc.mpich",
            "while [ \"$1\" != -o ]; do shift; done\nprintf '#!/bin/sh\\necho libfabric 0.0 none\\n' >\"$2\"; chmod +x \"$2\"",
        ),
    ] {
        let path = home.path("own").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("executable");
    }
    let printed = home.run("PATH=\"$HOME/own:$PATH\" bywire doctor --all");
    let line = printed.lines().find(|line| line.contains("MPICH") && line.contains("4.0.2"));
    assert!(
        line.is_some_and(|line| line.contains("NO") && line.contains("built without libfabric")),
        "{printed}"
    );
    assert!(printed.contains("pip install mpich"), "{printed}");
}

#[test]
fn a_provider_that_is_not_installed_is_reported_with_what_to_do() {
    let prefix = tempfile::tempdir().expect("a directory");
    let command = prefix.path().join("bin/bywire");
    fs::create_dir(prefix.path().join("bin")).expect("made");
    fs::copy(env!("CARGO_BIN_EXE_bywire"), &command).expect("copied");
    let measure = ["measure", "mpi", "latency", "--link", "bywire", "--time", "0.005"];
    for words in [&["mpi", "env"][..], &measure] {
        let output = Command::new(&command).args(words).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout.is_empty() && output.status.code() == Some(1), "{output:?}");
        if said.contains("Open MPI is not installed") {
            println!("not run: {words:?}: {said}");
            continue;
        }
        assert!(said.contains("libbywire-fi.so") && said.contains("./x install"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
