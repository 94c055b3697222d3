//! Ways for a TCP connection from a program in one namespace to one in another: in clear, and encrypted by an engine of Bywire,
//! by a network below, or by a tunnel of other programs.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bywire_measure::ethernet::{FrameLink, Wire};
use bywire_measure::fabric_pair::FabricPair;
use bywire_measure::interrupt::{Leader, awaited};
use bywire_pairing::launch;
use bywire_results::message_link::Security;
use bywire_sys::process::user;

use crate::application::{gets_per_second, nginx_configuration, requests_per_second};
use crate::contestant::{Contestant, Unit};
use crate::crowd;
use crate::ethernet::{joined, received, report};
use crate::process::{self, End, Place, find};
use crate::tunnel::{RIVALS_BETWEEN_MACHINES, WIRE_MTU_BYTES};

/// What is started is ready within this time.
const TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The port of the server, and the local one at which a tunnel begins.
const PORT: u16 = 7100;
const TUNNEL_PORT: u16 = 7101;
/// The port at which a tunnel crosses the wire.
const WIRE_PORT: u16 = 7102;

/// A way, with everything that runs for it.
pub struct Way {
    place: Place,
    /// What comes before the command of each end.
    prefixes: [String; 2],
    /// The address at which the client calls.
    called: (String, u16),
    /// The address at which the server listens.
    served: String,
    _running: Vec<Leader>,
    _nodes: Option<FabricPair>,
    _directory: Option<tempfile::TempDir>,
}

/// Opens a way.
pub type Open = Rc<dyn Fn() -> Result<Way>>;

/// All ways, by their names in the tables.
pub fn ways() -> Vec<(&'static str, Open)> {
    let encrypted = Wire { mtu_bytes: WIRE_MTU_BYTES, security: Security::Encrypted };
    let ethernet = joined(FrameLink::between_nodes(encrypted));
    let nebula =
        RIVALS_BETWEEN_MACHINES.iter().find(|rival| rival.name == "nebula").map(|rival| rival.join());
    let mut ways: Vec<(&'static str, Open)> = vec![
        ("clear", Rc::new(|| Way::over(Place::wire()?))),
        ("engine", Rc::new(engine)),
        ("ethernet", Rc::new(move || Way::over(ethernet()?))),
        ("stunnel", Rc::new(stunnel)),
        ("ssh", Rc::new(ssh)),
    ];
    if let Some(nebula) = nebula {
        ways.push(("nebula", Rc::new(move || Way::over(nebula()?))));
    }
    ways
}

impl Way {
    /// The network itself carries the connection.
    fn over(place: Place) -> Result<Self> {
        let address = place.address(End::Target).to_string();
        Ok(Self {
            place,
            prefixes: Default::default(),
            called: (address.clone(), PORT),
            served: address,
            _running: Vec::new(),
            _nodes: None,
            _directory: None,
        })
    }

    /// Programs at both ends carry it, from a local port of the client's to a local one of the server's.
    fn through(place: Place, running: Vec<Leader>, directory: tempfile::TempDir) -> Result<Self> {
        let local = "127.0.0.1".to_owned();
        Ok(Self {
            called: (local.clone(), TUNNEL_PORT),
            served: local,
            _running: running,
            _directory: Some(directory),
            ..Self::over(place)?
        })
    }

    /// The output of a client that talks to a server. Both lines are made of the address and the port of its end.
    fn converse(
        &self,
        name: &str,
        server: impl Fn(&str, u16) -> String,
        client: impl Fn(&str, u16) -> String,
    ) -> Result<String> {
        let [before_client, before_server] = &self.prefixes;
        let server = format!("{before_server} {}", server(&self.served, PORT));
        let client = format!("{before_client} {}", client(&self.called.0, self.called.1));
        self.place.converse_by(name, [&server, &client])
    }
}

/// A stream of iperf3 in sends of this many bytes, for a second: received bytes per second.
pub fn stream(open: Open, size_bytes: u32) -> Contestant {
    let options = format!("-l {size_bytes} -t 1 -C cubic -J");
    Contestant::of_value(&format!("iperf3 -c TARGET {options}"), Unit::BytesPerSecond, move || {
        let (way, iperf3) = (open()?, find("iperf3", "iperf3")?);
        let printed = way.converse(
            "iperf3",
            |address, port| format!("{iperf3} -s -1 -B {address} -p {port}"),
            |address, port| format!("{iperf3} -c {address} -p {port} {options}"),
        )?;
        received(&report(&printed)?)
    })
}

/// Redis with this many connections: GETs per second.
pub fn redis(open: Open, connections: u32, requests: u32) -> Contestant {
    redis_by(open, format!("-t get -c {connections} -n {requests} --csv"))
}

/// The time of a round trip on a few busy connections, beside this many idle ones.
pub fn crowd(open: Open, idle: usize) -> Contestant {
    Contestant::of_value(&crowd::command(idle), Unit::Nanoseconds, move || {
        let (way, lines) = (open()?, crowd::Lines::new()?);
        let printed = way.converse(
            "the client",
            |address, port| lines.server(address, port),
            |address, port| lines.client(address, port, idle),
        )?;
        crowd::round_trip(&printed)
    })
}

/// Redis with a new connection for each GET, one after the other: connections per second.
pub fn redis_anew(open: Open, requests: u32) -> Contestant {
    redis_by(open, format!("-t get -k 0 -c 1 -n {requests} --csv"))
}

/// nginx with one worker and a file of 1 KB under wrk with 16 connections: requests per second.
pub fn nginx(open: Open) -> Contestant {
    let words = "-t 1 -c 16 -d 1s";
    Contestant::of_value(&format!("wrk {words}"), Unit::TransactionsPerSecond, move || {
        let (nginx, wrk) = (find("nginx", "nginx-light")?, find("wrk", "wrk")?);
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        fs::write(directory.path().join("file"), [b'x'; 1024])?;
        let (way, configuration) = (open()?, directory.path().join("configuration"));
        let root = directory.path().display();
        let server = format!("server {{ listen {}:{PORT} backlog=1024; root {root}; }}", way.served);
        fs::write(&configuration, nginx_configuration(directory.path(), &server))?;
        let printed = way.converse(
            "wrk",
            |_, _| format!("{nginx} -c '{}'", configuration.display()),
            |address, port| format!("{wrk} {words} http://{address}:{port}/file"),
        )?;
        requests_per_second(&printed)
    })
}

fn redis_by(open: Open, words: String) -> Contestant {
    Contestant::of_value(&format!("redis-benchmark {words}"), Unit::TransactionsPerSecond, move || {
        let (server, benchmark) =
            (find("redis-server", "redis-server")?, find("redis-benchmark", "redis-tools")?);
        let directory = tempfile::tempdir()?;
        let way = open()?;
        let printed = way.converse(
            "redis-benchmark",
            |address, port| {
                format!(
                    "{server} --bind {address} --port {port} --protected-mode no --save '' --appendonly no --dir '{}'",
                    directory.path().display()
                )
            },
            |address, port| format!("{benchmark} -h {address} -p {port} {words}"),
        )?;
        gets_per_second(&printed)
    })
}

/// Both ends under `bywire run --engine require`, with a node, a pairing service and an engine in each namespace.
fn engine() -> Result<Way> {
    let place = Place::wire()?;
    let namespaces = place.0.clone().context("no namespaces")?;
    let nodes = FabricPair::open(Arc::clone(&namespaces), Security::Encrypted)?;
    let bywire = std::env::current_exe()?.with_file_name("bywire").display().to_string();
    let (mut running, mut prefixes) = (Vec::new(), [String::new(), String::new()]);
    let directories = nodes.runtime_directories();
    for (end, runtime) in [(End::Source, &directories.source), (End::Target, &directories.target)] {
        let sockets = runtime.join(format!("sockets-{}", user()));
        DirBuilder::new().mode(0o711).create(&sockets)?;
        let service = sockets.join("pairing");
        let environment = format!("env 'BYWIRE_RUNTIME_DIR={}' '{bywire}'", runtime.display());
        let start = |line: &str, listens_at: &Path| {
            let server = process::start(&mut process::command(place.namespace(end), None, line)?)?;
            await_file(listens_at)?;
            Ok::<_, anyhow::Error>(server)
        };
        let serve = format!("{environment} {} '{}'", launch::SERVICE, service.display());
        running.push(start(&serve, &service)?);
        running.push(start(&format!("{environment} engine up"), &sockets.join("engine"))?);
        prefixes[end as usize] = format!("{environment} run --engine require --");
    }
    // What is started last ends first.
    running.reverse();
    Ok(Way { prefixes, _running: running, _nodes: Some(nodes), ..Way::over(place)? })
}

fn await_file(path: &Path) -> Result<()> {
    let found = awaited(LOOK_AGAIN, TIMEOUT, || Ok(path.exists().then_some(())))?;
    found.with_context(|| format!("{} does not appear", path.display()))
}

/// stunnel at both ends: TLS with a certificate of its own.
fn stunnel() -> Result<Way> {
    let stunnel = find("stunnel", "stunnel4")?;
    let (place, directory) = (Place::wire()?, tempfile::tempdir()?);
    let path = |name: &str| directory.path().join(name);
    let certificate = path("certificate").display().to_string();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=bench -days 2";
    run(&format!("openssl req -x509 {key} -keyout {certificate}.key -out {certificate}"))?;
    let target = place.address(End::Target);
    let common = |name: &str| {
        format!(
            "foreground = yes\npid = {}\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n",
            path(name).display()
        )
    };
    let client = format!(
        "{}client = yes\n[bench]\naccept = 127.0.0.1:{TUNNEL_PORT}\nconnect = {target}:{WIRE_PORT}\n\
         CAfile = {certificate}\nverifyPeer = yes\n",
        common("client.pid")
    );
    let server = format!(
        "{}cert = {certificate}\nkey = {certificate}.key\n[bench]\naccept = {target}:{WIRE_PORT}\n\
         connect = 127.0.0.1:{PORT}\n",
        common("server.pid")
    );
    let mut running = Vec::new();
    for (end, name, text) in [(End::Target, "server", server), (End::Source, "client", client)] {
        fs::write(path(name), text)?;
        let line = format!("{stunnel} '{}'", path(name).display());
        running.push(process::start(&mut process::command(place.namespace(end), None, &line)?)?);
        await_file(&path(&format!("{name}.pid")))?;
    }
    Way::through(place, running, directory)
}

/// A forwarded port of OpenSSH, as its own programs come.
fn ssh() -> Result<Way> {
    let (ssh, sshd) = (find("ssh", "openssh-client")?, server_of_ssh()?);
    let (place, directory) = (Place::wire()?, tempfile::tempdir()?);
    let path = |name: &str| directory.path().join(name).display().to_string();
    for name in ["host", "client"] {
        run(&format!("ssh-keygen -q -t ed25519 -N '' -f '{}'", path(name)))?;
    }
    fs::copy(path("client.pub"), path("authorized"))?;
    fs::set_permissions(path("authorized"), fs::Permissions::from_mode(0o600))?;
    // The directory that sshd wants for those of its processes that have no rights.
    let _there_already = fs::create_dir("/run/sshd");
    let target = place.address(End::Target);
    let options = format!(
        "-o HostKey={} -o AuthorizedKeysFile={} -o StrictModes=no -o UsePAM=no -o PidFile=none -o PermitRootLogin=yes",
        path("host"),
        path("authorized")
    );
    let serve = format!("{sshd} -D -f /dev/null -p {WIRE_PORT} -o ListenAddress={target} {options}");
    let server = process::start(&mut process::command(place.namespace(End::Target), None, &serve)?)?;
    let forward = format!(
        "{ssh} -N -F /dev/null -i '{}' -p {WIRE_PORT} -L 127.0.0.1:{TUNNEL_PORT}:127.0.0.1:{PORT} \
         -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectionAttempts=20 root@{target}",
        path("client")
    );
    let client = process::start(&mut process::command(place.namespace(End::Source), None, &forward)?)?;
    await_listener(client.child.id(), TUNNEL_PORT).context("`ssh -L`")?;
    Way::through(place, vec![client, server], directory)
}

/// Waits until a port is listened at in the network namespace of a process. No connection is made, as the far server may take
/// only one.
fn await_listener(process: u32, port: u16) -> Result<()> {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|address| address.ends_with(&local)) && words.nth(1) == Some(LISTEN)
    };
    let found = awaited(LOOK_AGAIN, TIMEOUT, || {
        let sockets = fs::read_to_string(format!("/proc/{process}/net/tcp")).context("it has ended")?;
        Ok(sockets.lines().any(is_it).then_some(()))
    })?;
    found.with_context(|| format!("nothing listens at port {port} after {} s", TIMEOUT.as_secs()))
}

/// sshd starts itself again, and wants to be named by its path.
fn server_of_ssh() -> Result<String> {
    let path = PathBuf::from("/usr/sbin/sshd");
    ensure!(
        path.exists(),
        "sshd is not installed: `./x figures` installs it as root, or apt-get install openssh-server"
    );
    Ok(path.display().to_string())
}

/// Runs a line by a shell.
fn run(line: &str) -> Result<()> {
    let done = Command::new("sh").args(["-c", line]).output()?;
    ensure!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}
