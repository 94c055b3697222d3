//! `bywire doctor`: what this machine offers to each level, found by trying, and what to do about the rest.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use bywire::{Event, Port, PortOptions, Priority};
use bywire_command::provider;
use bywire_measure::memory;
use bywire_measure::mpi::{Implementation, Tools};
use bywire_measure::namespaces::Namespaces;
use bywire_measure::{environment, pin};
use bywire_node::client::{self, ClientError};
use bywire_node::{configuration, fabric};
use bywire_pairing::launch;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::Socket;
use bywire_wire::service::status::Entry;
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;

use crate::carried_units::{self, Loaded};
use crate::{count, mpi_loading, reachability};

/// Arguments of `bywire doctor`.
#[derive(clap::Args, Debug)]
pub struct DoctorArgs {
    /// Find out why these nodes cannot be reached
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Do so for all other nodes of the fabric
    #[arg(long, conflicts_with = "nodes")]
    fabric: bool,
    /// Show everything that was tried, and what measurements and the tests need
    #[arg(long, conflicts_with_all = ["nodes", "fabric"])]
    all: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What something is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Purpose {
    /// Using Bywire and measuring its own levels.
    Use,
    /// Measuring other levels, and rivals beside them.
    Measure,
    /// Running the tests.
    Test,
}

impl Purpose {
    const ALL: [Self; 3] = [Self::Use, Self::Measure, Self::Test];

    fn title(self) -> &'static str {
        match self {
            Self::Use => "To use it",
            Self::Measure => "To measure everything",
            Self::Test => "To run the tests",
        }
    }
}

/// What came of trying something.
#[derive(Debug)]
enum Tried {
    Works(String),
    /// The user has not set it up, and may not want it.
    Off(String),
    /// It does not work, for this reason.
    Lacks(String),
}

impl From<Result<String, String>> for Tried {
    fn from(result: Result<String, String>) -> Self {
        result.map_or_else(Self::Lacks, Self::Works)
    }
}

/// One thing that was tried.
#[derive(Debug, Serialize)]
struct Finding {
    purpose: Purpose,
    group: &'static str,
    name: &'static str,
    /// Nothing has to be done: it works, or is off.
    works: bool,
    /// The user has not set it up, and may not want it.
    off: bool,
    /// The result, or why it does not work.
    found: String,
    /// What needs it: levels, tests or options.
    used_by: &'static str,
    /// What to do; only where it does not work.
    remedy: Option<String>,
    /// It is an implementation of MPI.
    #[serde(skip)]
    implements_mpi: bool,
}

impl Finding {
    /// Something that is for another purpose than use.
    fn only(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    fn new(
        group: &'static str,
        name: &'static str,
        used_by: &'static str,
        tried: impl Into<Tried>,
        remedy: &str,
    ) -> Self {
        let (works, off, found) = match tried.into() {
            Tried::Works(found) => (true, false, found),
            Tried::Off(found) => (true, true, found),
            Tried::Lacks(reason) => (false, false, reason),
        };
        let remedy = (!works && !remedy.is_empty()).then(|| remedy.to_owned());
        Self { purpose: Purpose::Use, group, name, works, off, found, used_by, remedy, implements_mpi: false }
    }
}

impl DoctorArgs {
    /// Tries everything and prints the results.
    ///
    /// # Errors
    /// Those of printing, as what does not work here is a finding, and those of [`reachability::run`].
    pub fn run(self) -> Result<()> {
        if self.fabric || !self.nodes.is_empty() {
            return reachability::run(&self.nodes, self.json);
        }
        let findings: Vec<Finding> =
            [cores(), privileges(), kernel(), resources(), mpi_programs(), tools(), mpi()]
                .into_iter()
                .flatten()
                .collect();
        let text = if self.json {
            serde_json::to_string_pretty(
                &serde_json::json!({ "schema": "bywire-doctor/1", "findings": findings }),
            )? + "\n"
        } else if self.all {
            table(&findings)
        } else {
            summary(&findings)
        };
        bywire_command::output::print(&text)
    }
}

/// Each use of Bywire, and the findings that it needs, the most telling one first.
const USES: [(&str, &[&str]); 6] = [
    ("bywire run", &["sockets library", "carried services"]),
    ("messages", &["message ports", "sealed memory", "peer process watch", "descriptors"]),
    ("messages to other machines", &["node service"]),
    ("MPI programs", &["provider", NO_MPI, "Open MPI", "MPICH", "this shell"]),
    ("bywire eth", &["TUN/TAP device", "CAP_NET_ADMIN", "CAP_SYS_ADMIN", "ip"]),
    ("bywire bench", &["two cores", "futex between cores"]),
];

/// The finding of a machine without MPI.
const NO_MPI: &str = "MPI";

/// One line for each use.
fn summary(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (name, needs) in USES {
        let named = |name: &&str| {
            findings.iter().find(|finding| finding.purpose == Purpose::Use && finding.name == *name)
        };
        let of_it: Vec<&Finding> = needs.iter().filter_map(named).collect();
        let (mark, found) = state(&of_it);
        let _ = writeln!(text, "{mark} {name:<27} {found}");
    }
    text + "`bywire doctor --all` shows everything that was tried, and what measurements and the tests need.\n"
}

/// Whether a use works, and the finding that decides it.
fn state(of_it: &[&Finding]) -> (&'static str, String) {
    // One implementation of MPI is enough.
    let is_mpi = |finding: &Finding| finding.implements_mpi;
    let has_mpi = of_it.iter().any(|finding| is_mpi(finding) && finding.works && !finding.off);
    let counts = |finding: &&&Finding| !(has_mpi && is_mpi(finding));
    if let Some(lack) = of_it.iter().filter(counts).find(|finding| !finding.works) {
        let remedy = lack.remedy.as_ref().map(|remedy| format!("; to have it: {remedy}"));
        return ("NO ", format!("{}: {}{}", lack.name, lack.found, remedy.unwrap_or_default()));
    }
    let shown = of_it.iter().find(|finding| finding.works && !finding.off && (is_mpi(finding) || !has_mpi));
    match (shown, of_it.first()) {
        // The one that is off decides, where the other ones only prepare it.
        (Some(_), _) if of_it.iter().any(|finding| finding.name == NO_MPI) => {
            let none = of_it.iter().find(|finding| finding.name == NO_MPI);
            ("off", none.map(|finding| finding.found.clone()).unwrap_or_default())
        }
        (Some(works), _) => ("yes", works.found.clone()),
        (None, Some(off)) => ("off", off.found.clone()),
        (None, None) => ("off", "not tried".to_owned()),
    }
}

fn table(findings: &[Finding]) -> String {
    let mut text = String::new();
    for purpose in Purpose::ALL {
        let of_it = || findings.iter().filter(|finding| finding.purpose == purpose);
        let counted = || of_it().filter(|finding| !finding.off);
        let (works, all) = (counted().filter(|finding| finding.works).count(), counted().count());
        if all > 0 {
            let _ = writeln!(text, "{}: {works} of {all}", purpose.title());
        }
        let mut group = "";
        for finding in of_it() {
            if finding.group != group {
                group = finding.group;
                let _ = writeln!(text, "  {group}");
            }
            describe(finding, &mut text);
        }
    }
    let lacks = |purpose| findings.iter().any(|finding| finding.purpose == purpose && !finding.works);
    let verdict = match lacks(Purpose::Use) {
        true => "Some uses lack something here: the lines with NO say what, and what to do.",
        false => "Everything that its uses need is here.",
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn describe(finding: &Finding, text: &mut String) {
    let mark = match (finding.works, finding.off) {
        (true, false) => "yes",
        (true, true) => "off",
        (false, _) => "NO ",
    };
    let _ = writeln!(text, "    {mark} {:<20} {}", finding.name, finding.found);
    if !finding.works {
        let _ = writeln!(text, "        {:<20} needed by: {}", "", finding.used_by);
    }
    if let Some(remedy) = &finding.remedy {
        let _ = writeln!(text, "        {:<20} to have it: {remedy}", "");
    }
}

fn cores() -> Vec<Finding> {
    let allowed = pin::allowed_cores();
    let (source, target) = pin::two_cores();
    let shared = environment::shared(&[source, target]).join(", ");
    let two = if source == target {
        Err(format!("only core {source} may be used: both ends would take turns on it"))
    } else {
        Ok(format!(
            "{source} and {target} of {allowed:?}; they share: {}",
            if shared.is_empty() { "nothing known" } else { &shared }
        ))
    };
    let virtual_machine = environment::cpu_flag("hypervisor");
    let noise = if virtual_machine { "a virtual machine: watch for steal" } else { "not a virtual machine" };
    vec![
        Finding::new(
            "cores",
            "two cores",
            "every measurement between two processes",
            two,
            "give this machine or container a second core",
        ),
        Finding::new(
            "cores",
            "kind of machine",
            "how far to trust small differences",
            Ok(noise.to_owned()),
            "",
        ),
    ]
}

fn privileges() -> Vec<Finding> {
    let root = rustix::process::geteuid().is_root();
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let wanted = [
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN, "bywire eth, level eth"),
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN, "bywire eth, level eth: entering namespaces"),
    ];
    let user = if root {
        "root"
    } else {
        "not root: fine for memory, msg, unix, tcp, sock, udp, web and mpi between processes"
    };
    let mut findings =
        vec![Finding::new("privileges", "user", "installing what is missing", Ok(user.to_owned()), "")];
    findings.extend(wanted.map(|(name, capability, used_by)| {
        let held = effective.contains(capability);
        let tried = if held { Ok("held".to_owned()) } else { Err("not held".to_owned()) };
        // Containers start root without them.
        let remedy = match root {
            true => "start the container with --cap-add NET_ADMIN --cap-add SYS_ADMIN",
            false => "run as root",
        };
        Finding::new("privileges", name, used_by, tried, remedy)
    }));
    findings
}

fn kernel() -> Vec<Finding> {
    let finding = |name, used_by, tried, remedy| Finding::new("kernel", name, used_by, tried, remedy);
    vec![
        finding("sealed memory", "level msg", sealed_memory(), "a kernel of 5.1 or newer"),
        finding(
            "peer process watch",
            "level msg",
            peer_watch(),
            "a kernel of 5.3 or newer (6.5 across containers)",
        ),
        finding("futex between cores", "level memory", futex(), "a sandbox that allows futex(2)"),
        finding(
            "network namespaces",
            "--between namespaces",
            network_namespaces(),
            "what CAP_SYS_ADMIN and ip need, which are listed here too",
        ),
        finding(
            "TUN/TAP device",
            "bywire eth, level eth",
            tap(),
            "as root: `modprobe tun`; in a container: --device /dev/net/tun",
        ),
    ]
}

/// The provider for libfabric, and each MPI that could load it.
fn mpi_programs() -> Vec<Finding> {
    let finding =
        |name, used_by, tried: Tried, remedy| Finding::new("MPI programs", name, used_by, tried, remedy);
    let directory = provider::directory().map(|path| path.display().to_string());
    let directory = directory.map_err(|error| format!("{error:#}")).into();
    let installed =
        finding("provider", "bywire mpi env, level mpi over link bywire", directory, "./x install");
    let implementations = mpi_loading::of_this_machine();
    if implementations.is_empty() {
        let none = "none is installed with its compiler: there is nothing to load the provider".to_owned();
        return vec![installed, finding(NO_MPI, "bywire mpi env", Tried::Off(none), "")];
    }
    let each = implementations.into_iter().map(|loading| {
        let (name, remedy) = match loading.implementation {
            Implementation::OpenMpi => ("Open MPI", OPEN_MPI),
            Implementation::Mpich => ("MPICH", MPICH),
        };
        let found = loading.found;
        let tried = match loading.loads {
            Ok(how) => Tried::Works(format!("{found} {how}")),
            Err(reason) => Tried::Lacks(format!("{found}: {reason}")),
        };
        Finding { implements_mpi: true, ..finding(name, "bywire mpi env", tried, remedy) }
    });
    let shell = finding("this shell", "MPI programs", this_shell(), "eval \"$(bywire mpi env)\"");
    [installed, shell].into_iter().chain(each).collect()
}

/// How to get implementations with libfabric.
const OPEN_MPI: &str = "apt-get install openmpi-bin libopenmpi-dev";
const MPICH: &str = "python3 -m venv ~/.cache/bywire/mpich && ~/.cache/bywire/mpich/bin/pip install mpich (of Debian's, one with libfabric)";

/// Whether the variables of this environment send MPI programs through the provider.
fn this_shell() -> Tried {
    let Ok(directory) = provider::directory() else {
        return Tried::Off("no provider is installed".to_owned());
    };
    let set = |name: &str| std::env::var_os(name);
    let (wanted, mut names) = (provider::variables(&directory), provider::names());
    if names.all(|name| set(name).is_none()) {
        return Tried::Off(
            "its MPI programs do not use the provider: `eval \"$(bywire mpi env)\"` changes that".to_owned(),
        );
    }
    let differs = |(name, value): &&(&str, String)| set(name).is_none_or(|set| set != **value);
    match wanted.iter().find(differs) {
        None => Tried::Works(
            "its MPI programs use the provider, unless their launcher's options say otherwise".to_owned(),
        ),
        Some((name, value)) => Tried::Lacks(match set(name) {
            Some(other) => format!("{name} is {other:?} instead of {value:?}"),
            None => format!("{name} is not set, and other variables of `bywire mpi env` are"),
        }),
    }
}

fn mpi() -> Vec<Finding> {
    let version = |implementation| Tools::of(implementation).map(|tools| tools.version);
    let here = |implementation| version(implementation).map_err(|error| format!("{error:#}"));
    let finding =
        |name, implementation, remedy| Finding::new("mpi", name, "level mpi", here(implementation), remedy);
    let both = [
        finding("Open MPI", Implementation::OpenMpi, OPEN_MPI),
        finding("MPICH", Implementation::Mpich, MPICH),
    ];
    both.map(|finding| finding.only(Purpose::Measure)).into()
}

fn sealed_memory() -> Result<String, String> {
    // Sealed against shrinking, growing and future writers, as every segment of the message layer is.
    let made = Mapping::create("bywire-doctor", 4096);
    made.map(|_| "memfd with all seals".to_owned()).map_err(|error| error.to_string())
}

fn peer_watch() -> Result<String, String> {
    let (ours, _theirs) = Socket::pair().map_err(|error| error.to_string())?;
    ours.watch_process().map(|_| "a peer's end is seen".to_owned()).map_err(|error| error.to_string())
}

fn futex() -> Result<String, String> {
    let spec = memory::Spec::new(memory::Test::Futex);
    let hand_off = || -> Result<f64> {
        let mut target = memory::Target::create(&spec, None)?;
        let mut source = memory::Source::open(&spec, Some(&target.address()))?;
        std::thread::spawn(move || target.serve());
        Ok(source.block(Duration::from_millis(1))?.value)
    };
    hand_off().map(|_| "hands over between two threads".to_owned()).map_err(|error| format!("{error:#}"))
}

fn network_namespaces() -> Result<String, String> {
    match Namespaces::veth_pair(1500) {
        Ok(pair) if pair.nodes[0].is_unprivileged() => {
            Ok("two joined by veth, in a user namespace".to_owned())
        }
        Ok(_) => Ok("two joined by veth".to_owned()),
        Err(reason) => Err(format!("{reason:#}")),
    }
}

fn tap() -> Result<String, String> {
    // Opening makes no device yet.
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    opened.map(|_| "/dev/net/tun opens".to_owned()).map_err(|error| format!("/dev/net/tun: {error}"))
}

fn resources() -> Vec<Finding> {
    let descriptors = bywire_sys::limits::descriptor_limit();
    let enough = if descriptors >= 1024 {
        Ok(format!("{descriptors} may be open"))
    } else {
        Err(format!("only {descriptors} may be open"))
    };
    vec![
        Finding::new(
            "resources",
            "message ports",
            "level msg",
            message_layer(),
            "what the reason says; BYWIRE_RUNTIME_DIR chooses where ports are kept",
        ),
        Finding::new("resources", "descriptors", "many connections", enough, "`ulimit -n 4096`"),
        Finding::new(
            "resources",
            "node service",
            "messages to other machines",
            node_service(),
            "`bywire up`, or at each start of the machine `systemctl enable --now bywire-node`",
        ),
    ]
}

/// The service of this machine, which only a machine with a fabric file needs.
fn node_service() -> Tried {
    let directory = configuration::directory(None);
    let is_set_up = directory.is_some_and(|directory| directory.join(fabric::FILE_NAME).exists());
    match client::status(None) {
        Ok(entries) => {
            let nodes = entries.iter().filter(|entry| matches!(entry, Entry::Node(_))).count();
            Tried::Works(format!("answers; {} in the fabric", count::of(nodes as u64, "node", "nodes")))
        }
        Err(ClientError::Absent | ClientError::Runtime(_)) if !is_set_up => {
            Tried::Off("not set up: `bywire init` begins a fabric, and `bywire join` enters one".to_owned())
        }
        Err(error) => Tried::Lacks(error.to_string()),
    }
}

/// Sends a message between two ports of this process, and its answer back.
fn message_layer() -> Result<String, String> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let echo = || -> Result<()> {
        let mut server = Port::open(PortOptions::default())?;
        let mut client = Port::open(PortOptions::default())?;
        let address = server.address();
        let serving = std::thread::spawn(move || -> Result<()> {
            while let Some(event) = server.wait(Some(TIMEOUT))? {
                match event {
                    Event::Message(message) => {
                        server.send(message.peer, message.priority, &message.payload)?
                    }
                    Event::Disconnected { .. } => break,
                    _ => {}
                }
            }
            Ok(())
        });
        let peer = client.connect(&address, TIMEOUT)?;
        client.send(peer, Priority::Low, b"doctor")?;
        let answered = loop {
            match client.wait(Some(TIMEOUT))? {
                Some(Event::Message(message)) => break message.payload[..] == *b"doctor",
                Some(_) => {}
                None => break false,
            }
        };
        drop(client);
        serving.join().map_err(|_| anyhow!("the answering port failed"))??;
        ensure!(answered, "a message was sent, but no answer came");
        Ok(())
    };
    echo().map(|()| "two ports talk".to_owned()).map_err(|error| format!("{error:#}"))
}

/// Programs that are measured or measured with, and the Debian packages that bring them.
const TOOLS: [(Purpose, &str, &str, &str); 19] = [
    (Purpose::Use, "ip", "iproute2", "--between namespaces, level eth"),
    (Purpose::Use, "ping", "iputils-ping", "the examples of README.md and docs/ethernet.md"),
    (Purpose::Use, "tcpdump", "tcpdump", "looking at what `bywire capture` recorded"),
    (Purpose::Measure, "nginx", "nginx-light", "level web"),
    (Purpose::Measure, "apache2", "apache2-bin", "level web"),
    (Purpose::Measure, "wrk", "wrk", "./x figures web"),
    (Purpose::Measure, "iperf3", "iperf3", "./x figures ethernet"),
    (Purpose::Measure, "sockperf", "sockperf", "./x figures ethernet"),
    (
        Purpose::Measure,
        "ucx_perftest",
        "ucx-utils",
        "./x figures messages, ./x figures rivals, ./x figures links",
    ),
    (Purpose::Measure, "fi_pingpong", "libfabric-bin", "./x figures links"),
    (Purpose::Measure, "nft", "nftables", "--loss, ./x figures links"),
    (Purpose::Measure, "mpicc", "libopenmpi-dev", "level mpi, ./x figures mpi, ./x figures rivals"),
    (Purpose::Measure, "mpirun", "openmpi-bin", "level mpi, ./x figures mpi, ./x figures rivals"),
    (Purpose::Test, "valgrind", "valgrind", "instruction counts"),
    (Purpose::Test, "dnsmasq", "dnsmasq-base", "DHCP over emulated Ethernet"),
    (Purpose::Test, "busybox", "busybox", "DHCP over emulated Ethernet"),
    (Purpose::Test, "nc", "netcat-openbsd", "streams over emulated Ethernet"),
    (Purpose::Test, "ssh", "openssh-client", "ssh over emulated Ethernet"),
    (Purpose::Test, "sshd", "openssh-server", "ssh over emulated Ethernet"),
];

fn tools() -> Vec<Finding> {
    let found = TOOLS.map(|(purpose, program, package, used_by)| {
        let tried = on_path(program).map(|path| path.display().to_string()).ok_or("not installed".to_owned());
        let remedy = format!("apt-get install {package}");
        Finding::new("tools", program, used_by, tried, &remedy).only(purpose)
    });
    let library = launch::find_library().map(|path| path.display().to_string());
    let preloaded = Finding::new(
        "tools",
        "sockets library",
        "bywire run, level sock",
        library.map_err(|error| error.to_string()),
        "./x install",
    );
    found.into_iter().chain([preloaded, carried_services()]).collect()
}

/// The services that systemd starts by `bywire run`. One whose processes lack the library runs as TCP, unnoticed.
fn carried_services() -> Finding {
    let names = |units: &[carried_units::Unit], loaded| {
        let of_it = units.iter().filter(|unit| unit.loaded == loaded).map(|unit| unit.name.as_str());
        of_it.collect::<Vec<_>>().join(", ")
    };
    let tried = match carried_units::find() {
        None => Tried::Off("systemd does not answer here".to_owned()),
        Some(units) if units.is_empty() => Tried::Off("no service is started by `bywire run`".to_owned()),
        Some(units) if units.iter().any(|unit| unit.loaded == Loaded::No) => Tried::Lacks(format!(
            "started by `bywire run`, and no process of it has loaded the library, so nothing of it is carried: {}",
            names(&units, Loaded::No)
        )),
        Some(units) if units.iter().any(|unit| unit.loaded == Loaded::Unknown) => {
            Tried::Off(format!("only root can look at {}", names(&units, Loaded::Unknown)))
        }
        Some(units) => Tried::Works(format!("have loaded the library: {}", names(&units, Loaded::Yes))),
    };
    let remedy =
        "`bywire service add NAME`; `bywire service check` and `journalctl -u UNIT` may have the reason";
    Finding::new("tools", "carried services", "services under bywire run", tried, remedy)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    // Some programs live where only root looks.
    let directories = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_reported_with_its_use_and_what_to_do() {
        let mut findings = vec![
            Finding::new("tools", "present", "one", Ok("/bin/present".to_owned()), "unused"),
            Finding::new(
                "tools",
                "absent",
                "another",
                Err("not installed".to_owned()),
                "apt-get install absent",
            ),
        ];
        let text = table(&findings);
        assert!(text.contains("NO  absent") && text.contains("needed by: another"), "{text}");
        assert!(text.contains("apt-get install absent") && !text.contains("unused"), "{text}");
        assert!(text.contains("To use it: 1 of 2\n") && text.contains("lines with NO"), "{text}");
        // What the user has not set up does not count.
        findings.push(Finding::new("tools", "idle", "nobody", Tried::Off("not set up".to_owned()), "unused"));
        let text = table(&findings);
        assert!(text.contains("To use it: 1 of 2\n") && text.contains("off idle"), "{text}");
        assert!(!text.contains("nobody") && !text.contains("unused"), "{text}");
        drop(findings.pop());
        // Tools that only the tests need do not count as missing.
        let absent = findings.pop().expect("two").only(Purpose::Test);
        findings.push(absent);
        let text = table(&findings);
        assert!(
            text.contains("To use it: 1 of 1\n") && text.contains("To run the tests: 0 of 1\n"),
            "{text}"
        );
        assert!(text.ends_with("Everything that its uses need is here.\n"), "{text}");
    }

    #[test]
    fn the_summary_has_one_line_for_each_use_and_what_it_lacks() {
        let works = |name| Finding::new("", name, "", Ok(format!("{name} is here")), "");
        let lacks = |name| Finding::new("", name, "", Err("not held".to_owned()), "run as root");
        let off = |name| Finding::new("", name, "", Tried::Off("not set up".to_owned()), "");
        let mpi = |finding| Finding { implements_mpi: true, ..finding };
        let mut findings = vec![
            works("sockets library"),
            off("carried services"),
            off("node service"),
            works("provider"),
            mpi(lacks("Open MPI")),
            mpi(works("MPICH")),
            off("this shell"),
            works("ip"),
            lacks("CAP_NET_ADMIN"),
        ];
        findings.extend([lacks("wrk").only(Purpose::Measure)]);
        let text = summary(&findings);
        assert_eq!(text.lines().count(), USES.len() + 1, "{text}");
        for line in [
            "yes bywire run                  sockets library is here\n",
            "off messages to other machines  not set up\n",
            "yes MPI programs                MPICH is here\n",
            "NO  bywire eth                  CAP_NET_ADMIN: not held; to have it: run as root\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let none = summary(&[works("provider"), off(NO_MPI)]);
        assert!(none.contains("off MPI programs                not set up\n"), "{none}");
        let lacking = summary(&[works("provider"), mpi(lacks("Open MPI"))]);
        assert!(lacking.contains("NO  MPI programs                Open MPI: not held"), "{lacking}");
    }

    #[test]
    fn programs_are_searched_in_the_path() {
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program-anywhere").is_none());
    }
}
