//! Two processes of which one answers the other: where a rival's run, each pinned to a core, and this program's own ends in two
//! namespaces.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire_measure::interrupt::Leader;
use bywire_measure::namespaces::{INTERFACE, Namespace, Namespaces, PREFIX_LENGTH};
use bywire_measure::pin;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Where both processes run.
#[derive(Clone)]
pub enum Place {
    /// On this machine, where they find each other at 127.0.0.1.
    Machine,
    /// The client in the source namespace, the server in the target's.
    Wire(Arc<Namespaces>),
}

impl Place {
    /// Two fresh namespaces in which TCP uses CUBIC, whatever this system's default is.
    ///
    /// # Errors
    /// Why this machine cannot make them.
    pub fn wire() -> Result<Self> {
        let namespaces = Namespaces::veth_pair(1500)?;
        for side in [&namespaces.source, &namespaces.target] {
            let (address, network) = (side.address(), Ipv4Addr::from_bits(side.address().to_bits() & !0xff));
            side.configure(&format!(
                "route replace {network}/{PREFIX_LENGTH} dev {INTERFACE} src {address} congctl cubic\n"
            ))?;
        }
        Ok(Self::Wire(Arc::new(namespaces)))
    }

    /// Do packets cross a wire?
    pub fn is_wire(&self) -> bool {
        matches!(self, Self::Wire(_))
    }

    /// The server's address.
    pub fn address(&self) -> String {
        match self {
            Self::Machine => "127.0.0.1".to_owned(),
            Self::Wire(namespaces) => namespaces.target.address().to_string(),
        }
    }

    /// What `client` prints, which is started once `server` listens at a TCP port.
    ///
    /// # Errors
    /// One of the two cannot be started, fails, or does not end.
    pub fn run(&self, server: Command, client: Command, port: u16) -> Result<String> {
        let (source_core, target_core) = pin::two_cores();
        let (source, target) = match self {
            Self::Machine => (None, None),
            Self::Wire(namespaces) => (Some(&namespaces.source), Some(&namespaces.target)),
        };
        let program = client.get_program().display().to_string();
        let mut serving = start(server, target_core, target)?;
        await_listener(&program, port, &mut serving)?;
        start(client, source_core, source)?.printed(&program, TIMEOUT)
    }
}

/// What the source end of this program prints. It is started with the words that `source` makes of the first line of the target
/// end.
///
/// # Errors
/// An end cannot be started, or fails, or does not end within `timeout`.
pub fn ends(
    namespaces: &Namespaces,
    target: Vec<String>,
    source: impl FnOnce(&str) -> Vec<String>,
    timeout: Duration,
) -> Result<String> {
    let start = |namespace: &Namespace, words: Vec<String>| -> Result<Leader> {
        let mut command = Command::new("/proc/self/exe");
        namespace.enter(&mut command)?;
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Leader::start(&mut command)?)
    };
    let mut answering = start(&namespaces.target, target)?;
    let said = answering.child.stdout.take().context("the target has no output")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    if line.is_empty() {
        answering.printed("the target", timeout)?;
        bail!("the target has not begun");
    }
    start(&namespaces.source, source(line.trim()))?.printed("the source", timeout)
}

/// Starts this program with the arguments `part` and `directory`. Its standard output is piped to this process.
///
/// # Errors
/// No process can be started.
pub fn start_part(part: &str, directory: &Path) -> Result<Leader> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(part).arg(directory).stdout(Stdio::piped());
    Leader::start(&mut command).with_context(|| format!("cannot start a process as {part}"))
}

/// Programs such as UCX look for interfaces in `/sys`, which shows those of the namespace that it was mounted in.
const WITH_OWN_SYS: &str = "mount -t sysfs sysfs /sys && exec \"$@\"";

fn start(command: Command, core: u32, namespace: Option<&Namespace>) -> Result<Leader> {
    let core = core.to_string();
    let mut words: Vec<&OsStr> = ["taskset", "-c", &core].map(OsStr::new).to_vec();
    if namespace.is_some() {
        words.splice(0..0, ["unshare", "--mount", "sh", "-c", WITH_OWN_SYS, "sh"].map(OsStr::new));
    }
    words.push(command.get_program());
    words.extend(command.get_args());
    let mut pinned = Command::new(words[0]);
    pinned.args(&words[1..]).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    namespace.map_or(Ok(()), |namespace| namespace.enter(&mut pinned))?;
    pinned.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Leader::start(&mut pinned).context("cannot start a rival by taskset (util-linux)")
}

/// Until the server listens: an attempt to connect would be its only client.
fn await_listener(program: &str, port: u16, server: &mut Leader) -> Result<()> {
    let started = Instant::now();
    let is_listening = |table: &str| {
        // "sl local_address rem_address st …", the address as hexadecimal IP:PORT; 0A is LISTEN.
        let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        sockets.any(|fields| {
            fields.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
                && fields.get(3) == Some(&"0A")
        })
    };
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{}/net/{table}", server.child.id()));
    while !tables.iter().any(|table| fs::read_to_string(table).is_ok_and(|text| is_listening(&text))) {
        ensure!(server.child.try_wait()?.is_none(), "the server of {program} has ended before it listened");
        ensure!(started.elapsed() < TIMEOUT, "the server of {program} does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
