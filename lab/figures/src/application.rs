//! Programs with and without `bywire run`, with a pairing service and cores for each end; and servers of other projects under
//! their own load generators.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bywire_measure::interrupt::{Leader, awaited};
use bywire_measure::namespaces::Killed;
use bywire_pairing::launch::{self, Launch};
use bywire_pairing::protocol::SPIN_VARIABLE;
use bywire_pairing::status;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use crate::contestant::{Contestant, Unit};
use crate::crowd;
use crate::process::{self, End, PART, Player, find, positive, proportional_bytes};

/// A program that runs longer is killed.
const TIMEOUT: Duration = Duration::from_secs(30);
/// PostgreSQL must accept connections within this time.
const RECOVERY: Duration = Duration::from_secs(20);
/// The user that PostgreSQL runs as if this is root.
const NOBODY: u32 = 65_534;

/// How the two ends are connected, and which of them run under `bywire run`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By the kernel's TCP. Neither end.
    Plain,
    /// By the kernel's Unix socket, if the program has one. Neither end.
    Unix,
    /// By TCP. Both ends.
    Carried,
    /// By TCP. Both ends, which sleep without spinning before.
    Asleep,
    /// By TCP. Only the server.
    Half,
    /// By a Unix socket. Both ends.
    CarriedUnix,
    /// By a Unix socket. Both ends, which sleep without spinning before.
    AsleepUnix,
}

impl Mode {
    fn is_carried(self) -> bool {
        matches!(self, Self::Carried | Self::CarriedUnix) || self.is_asleep()
    }

    /// Returns whether the ends sleep without spinning before.
    fn is_asleep(self) -> bool {
        matches!(self, Self::Asleep | Self::AsleepUnix)
    }

    /// Returns whether the client connects to the server's Unix socket.
    fn is_unix(self) -> bool {
        matches!(self, Self::Unix | Self::CarriedUnix | Self::AsleepUnix)
    }
}

/// The directory of both ends and, if an end is carried, its pairing service. The target is the server.
pub struct Testbed {
    mode: Mode,
    launch: Launch,
    service: Option<Killed>,
    directory: tempfile::TempDir,
}

impl Testbed {
    /// With a fresh directory, which every user may enter.
    pub fn new(mode: Mode) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777))?;
        let launch = Launch::new(directory.path(), &launch::find_library()?)?;
        let service = match mode {
            Mode::Plain | Mode::Unix => None,
            _ => Some(Killed(launch.start_service(Command::new(std::env::current_exe()?))?)),
        };
        if service.is_some() {
            // For servers that may not run as root: the service's socket, and the tokens of cores.
            let tokens = directory.path().join("pairing.cores");
            fs::write(&tokens, [])?;
            for path in [launch.service(), &tokens] {
                fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
            }
        }
        Ok(Self { mode, launch, service, directory })
    }

    /// A path in the directory.
    fn place(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// A program as that end, on the end's own core if `pinned`.
    pub fn command(&self, end: End, pinned: bool, line: &str) -> Result<Command> {
        let mut command = process::command(None, pinned.then(|| process::core(end)), line)?;
        if self.mode.is_carried() || (self.mode == Mode::Half && end == End::Target) {
            self.launch.prepare(&mut command);
        }
        if self.mode.is_asleep() {
            command.env(SPIN_VARIABLE, "0");
        }
        Ok(command)
    }

    /// Starts a server. It listens when this returns. Dropping it kills its whole process group, because workers outlive the process
    /// that started them.
    fn serve(&self, pinned: bool, line: &str, port: u16) -> Result<Leader> {
        let answers = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        awaited_server(&mut self.command(End::Target, pinned, line)?, answers)
    }

    /// Runs `clients` at the same time until they exit. Returns the sum of the rates in their output. All `connections` are to be
    /// carried, if both ends are.
    fn ask(
        &self,
        pinned: bool,
        line: &str,
        [clients, connections]: [u64; 2],
        rate: fn(&str) -> Result<f64>,
    ) -> Result<f64> {
        let run = || {
            let start = |_| process::start_piped(&mut self.command(End::Source, pinned, line)?);
            let running = (0..clients).map(start).collect::<Result<Vec<_>>>()?;
            running.into_iter().map(|client| rate(&client.printed("a client", TIMEOUT)?)).sum()
        };
        self.checked(connections, run)
    }

    /// The result of `run`. All its `connections` are to be carried, if both ends are.
    fn checked(&self, connections: u64, run: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let before = self.carried_ever()?;
        let rate = run()?;
        let carried = self.carried_ever()? - before;
        if self.mode.is_carried() && carried < connections {
            let status = status::query(self.launch.service())?;
            bail!("{carried} of {connections} connections were carried: {:?}", status.not_carried);
        }
        ensure!(self.mode.is_carried() || carried == 0, "{carried} connections were carried");
        Ok(rate)
    }

    /// Writes the configuration of nginx with one worker and these servers.
    fn configure_nginx(&self, servers: &str) -> Result<()> {
        let configuration = nginx_configuration(self.directory.path(), servers);
        Ok(fs::write(self.place("configuration"), configuration)?)
    }

    fn carried_ever(&self) -> Result<u64> {
        match &self.service {
            Some(_) => Ok(status::query(self.launch.service())?.carried_ever),
            None => Ok(0),
        }
    }
}

/// The configuration of nginx with one worker and these servers, which has its own files in `directory`.
pub fn nginx_configuration(directory: &Path, servers: &str) -> String {
    let place = |name: &str| directory.join(name).display().to_string();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|kind| format!("{kind}_temp_path {};", place(kind))).concat();
    let user = if geteuid().is_root() { "user root;" } else { "" };
    format!(
        "daemon off; worker_processes 1; {user} pid {}; error_log {} crit; events {{ worker_connections 512; }}
        http {{
            access_log off; sendfile on; keepalive_requests 100000000; {temporary}
            {servers}
        }}",
        place("pid"),
        place("error"),
    )
}

/// Starts a server, and waits until it `answers`.
fn awaited_server(command: &mut Command, answers: impl Fn() -> bool) -> Result<Leader> {
    let mut server = process::start(command)?;
    let listening = awaited(Duration::from_millis(5), TIMEOUT, || {
        ensure!(server.child.try_wait()?.is_none(), "{command:?} ended before it listened");
        Ok(answers().then_some(()))
    })?;
    listening.with_context(|| format!("{command:?} does not listen"))?;
    Ok(server)
}

/// A port without a listener, outside the kernel's range for connecting sockets.
fn port() -> Result<u16> {
    let own = std::process::id() as u16 % 9000;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..2000).map(|at| 21_000 + (own + at) % 11_000).find(free).context("no port is free")
}

/// Redis under `clients` load generators of `connections` connections each: GETs per second of all together.
pub fn redis(mode: Mode, clients: u64, connections: u64) -> Contestant {
    let words = format!("-t get -c {connections} -n {} --csv", 100_000 / clients);
    let pinned = clients == 1;
    let socket = if mode.is_unix() { "-s SOCKET " } else { "" };
    let command = match pinned {
        true => format!("redis-benchmark {socket}{words}"),
        false => format!("{clients} × redis-benchmark {socket}{words}, ends not pinned"),
    };
    Contestant::of_value(&command, Unit::TransactionsPerSecond, move || {
        let (server, benchmark) =
            (find("redis-server", "redis-server")?, find("redis-benchmark", "redis-tools")?);
        let (testbed, port) = (Testbed::new(mode)?, port()?);
        let directory = testbed.place("");
        let socket = testbed.place("redis");
        let serve = format!(
            "{server} --port {port} --bind 127.0.0.1 --unixsocket '{socket}' --save '' --appendonly no --dir '{directory}'"
        );
        let _server = testbed.serve(pinned, &serve, port)?;
        let address = if mode.is_unix() { format!("-s '{socket}'") } else { format!("-p {port}") };
        let ask = format!("{benchmark} {address} {words}");
        testbed.ask(pinned, &ask, [clients, connections], gets_per_second)
    })
}

/// The time of a round trip on a few busy connections, beside this many idle ones.
pub fn crowd(mode: Mode, idle: usize) -> Contestant {
    Contestant::of_value(&crowd::command(idle), Unit::Nanoseconds, move || {
        let (testbed, port, lines) = (Testbed::new(mode)?, port()?, crowd::Lines::new()?);
        let _server = testbed.serve(true, &lines.server("127.0.0.1", port), port)?;
        let ask = lines.client("127.0.0.1", port, idle);
        testbed.ask(true, &ask, [1, (idle + crowd::BUSY) as u64], crowd::round_trip)
    })
}

/// nginx with one worker and a file of 1 KB under wrk with 16 connections: requests per second. Where connections are not
/// kept, each serves one request.
pub fn nginx(mode: Mode, keeps: bool) -> Contestant {
    let words = "-t 1 -c 16 -d 1s";
    let close = if keeps { "" } else { " -H 'Connection: close'" };
    Contestant::of_value(&format!("wrk {words}{close}"), Unit::TransactionsPerSecond, move || {
        let (nginx, wrk) = (find("nginx", "nginx-light")?, find("wrk", "wrk")?);
        let (testbed, port) = (Testbed::new(mode)?, port()?);
        let server =
            format!("server {{ listen 127.0.0.1:{port} backlog=1024; root {}; }}", testbed.place(""));
        testbed.configure_nginx(&server)?;
        fs::write(testbed.place("file"), [b'x'; 1024])?;
        let serve = format!("{nginx} -c '{}'", testbed.place("configuration"));
        let _server = testbed.serve(true, &serve, port)?;
        let ask = format!("{wrk} {words}{close} http://127.0.0.1:{port}/file");
        // A connection of one request ends before carrying it pays.
        let connections = if keeps { 16 } else { 0 };
        testbed.ask(true, &ask, [1, connections], requests_per_second)
    })
}

/// The workers of php-fpm, and the connections that nginx keeps to them and wrk to nginx.
const WORKERS: u64 = 8;

/// A PHP page of one line behind nginx, which keeps its connections to php-fpm's Unix socket: requests per second under wrk.
/// nginx and wrk, which is plain, share a core. php-fpm has the other one.
pub fn php(mode: Mode) -> Contestant {
    let words = format!("-t 1 -c {WORKERS} -d 1s");
    let command = format!("wrk {words}, on the core of nginx");
    Contestant::of_value(&command, Unit::TransactionsPerSecond, move || {
        let (nginx, wrk, php) = (find("nginx", "nginx-light")?, find("wrk", "wrk")?, php_fpm()?);
        let (testbed, port) = (Testbed::new(mode)?, port()?);
        let [socket, page] = ["php", "page.php"].map(|name| testbed.place(name));
        fs::write(&page, "<?php echo 'page';\n")?;
        let user = if geteuid().is_root() { "user = root\ngroup = root\n" } else { "" };
        let pool = format!(
            "[global]\nerror_log = {}\n[pool]\nlisten = {socket}\n{user}pm = static\npm.max_children = {WORKERS}\n",
            testbed.place("log"),
        );
        fs::write(testbed.place("pool"), pool)?;
        testbed.configure_nginx(&format!(
            "upstream php {{ server unix:{socket}; keepalive {WORKERS}; }}
            server {{
                listen 127.0.0.1:{port} backlog=1024;
                location / {{
                    fastcgi_pass php; fastcgi_keep_conn on;
                    fastcgi_param SCRIPT_FILENAME {page}; fastcgi_param REQUEST_METHOD $request_method;
                }}
            }}"
        ))?;
        let workers = format!("{php} -F -R -y '{}'", testbed.place("pool"));
        let workers = &mut testbed.command(End::Target, true, &workers)?;
        let _workers = awaited_server(workers, || UnixStream::connect(&socket).is_ok())?;
        let serve = format!("{nginx} -c '{}'", testbed.place("configuration"));
        let serve = &mut testbed.command(End::Source, true, &serve)?;
        let _server = awaited_server(serve, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        let ask = format!("{wrk} {words} http://127.0.0.1:{port}/");
        testbed.checked(WORKERS, || {
            let mut ask = process::command(None, Some(process::core(End::Source)), &ask)?;
            requests_per_second(&process::start_piped(&mut ask)?.printed("wrk", TIMEOUT)?)
        })
    })
}

/// The path of php-fpm, whose name ends with its version in Debian.
fn php_fpm() -> Result<String> {
    let programs = fs::read_dir("/usr/sbin").into_iter().flatten().flatten();
    let names = programs.filter_map(|program| program.file_name().into_string().ok());
    let newest = names.filter(|name| name.starts_with("php-fpm")).max();
    find(newest.as_deref().unwrap_or("php-fpm"), "php-fpm")
}

/// PostgreSQL under `pgbench -S` with so many `clients`: transactions per second.
pub fn postgresql(mode: Mode, clients: u64) -> Contestant {
    let cluster: RefCell<Option<tempfile::TempDir>> = RefCell::new(None);
    let host = if mode.is_unix() { "DIRECTORY" } else { "127.0.0.1" };
    let words = format!("-S -n -c {clients} -T 1");
    let command = format!("pgbench {words} -h {host}");
    Contestant::of_value(&command, Unit::TransactionsPerSecond, move || {
        let postgres = find("postgres", "postgresql")?;
        let pgbench = find("pgbench", "postgresql")?;
        let (testbed, port) = (Testbed::new(mode)?, port()?);
        let is_new = cluster.borrow().is_none();
        if is_new {
            *cluster.borrow_mut() = Some(make_cluster()?);
        }
        let cluster = cluster.borrow();
        let data = cluster.as_ref().context("just made")?.path().join("data");
        let (data, sockets) = (data.display(), testbed.place(""));
        let host = if mode.is_unix() { &sockets } else { "127.0.0.1" };
        let serve = format!("{postgres} -D '{data}' -p {port} -h 127.0.0.1 -k '{sockets}' -c fsync=off");
        let _server = testbed.serve(true, &as_nobody(&serve), port)?;
        await_ready(port)?;
        let ask = |words: &str, connections: u64, rate: fn(&str) -> Result<f64>| {
            let line = format!("{pgbench} -h '{host}' -p {port} -U tester {words} postgres");
            testbed.ask(true, &as_nobody(&line), [1, connections], rate)
        };
        if is_new {
            ask("-i -q -s 1", 0, |_| Ok(0.0))?;
        }
        ask(&words, clients, transactions_per_second)
    })
}

/// Waits until the server has recovered: one that was killed listens before that.
fn await_ready(port: u16) -> Result<()> {
    let asked = find("pg_isready", "postgresql")?;
    let line = format!("{asked} -q -h 127.0.0.1 -p {port} -U tester -d postgres");
    let ready = awaited(Duration::from_millis(20), RECOVERY, || {
        Ok(process::command(None, None, &line)?.status()?.success().then_some(()))
    })?;
    ready.context("PostgreSQL listens and accepts nobody")
}

fn make_cluster() -> Result<tempfile::TempDir> {
    let initdb = find("initdb", "postgresql")?;
    let place = tempfile::tempdir()?;
    if geteuid().is_root() {
        chown(place.path(), Some(NOBODY), Some(NOBODY))?;
    }
    let line = as_nobody(&format!("{initdb} -D data -U tester -A trust -N"));
    let mut command = process::command(None, None, &line)?;
    process::start_piped(command.current_dir(place.path()).env("LC_ALL", "C"))?.printed("initdb", TIMEOUT)?;
    Ok(place)
}

fn as_nobody(line: &str) -> String {
    match geteuid().is_root() {
        true => format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {line}"),
        false => line.to_owned(),
    }
}

/// The rate of GET in the output of `redis-benchmark --csv`.
/// The rate in the output of redis-benchmark.
pub fn gets_per_second(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("\"GET\",\""));
    positive(line.and_then(|line| line.split('"').next()), "redis-benchmark prints no rate of GET")
}

/// The rate in the output of wrk, unless requests failed.
pub fn requests_per_second(printed: &str) -> Result<f64> {
    ensure!(!printed.contains("Non-2xx") && !printed.contains("Socket errors"), "wrk: {printed}");
    let line = printed.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    positive(line, "wrk prints no rate")
}

/// The rate in the output of pgbench.
fn transactions_per_second(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("tps = "));
    positive(line.and_then(|line| line.split(' ').next()), "pgbench prints no rate")
}

/// Connections whose memory is measured.
const RESIDENT_CONNECTIONS: usize = 1000;
/// Small messages each way over each of them, before it is idle.
const RESIDENT_ROUNDS: usize = 40;

/// Bytes of both ends together for each connection, over those of plain TCP: proportional set sizes, so that what both
/// have mapped counts once.
pub fn resident() -> Contestant {
    let take = || {
        let more = resident_bytes(Mode::Carried)? - resident_bytes(Mode::Plain)?;
        Ok(more / RESIDENT_CONNECTIONS as f64)
    };
    let command = format!(
        "./x figures sockets ({RESIDENT_CONNECTIONS} connections after {RESIDENT_ROUNDS} bytes each mode)"
    );
    Contestant::of_value(&command, Unit::Bytes, take)
}

/// The end that connects to a port, or the one that listens, prints its port and echoes. Either prints when it is idle.
pub fn play_resident(server: Option<&str>) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).context("too few descriptors")?;
    let peers = match server {
        Some(port) => {
            let address = ("127.0.0.1", port.parse::<u16>()?);
            (0..RESIDENT_CONNECTIONS).map(|_| TcpStream::connect(address)).collect::<Result<Vec<_>, _>>()?
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?.port());
            listener.incoming().take(RESIDENT_CONNECTIONS).collect::<Result<_, _>>()?
        }
    };
    for _ in 0..RESIDENT_ROUNDS {
        if server.is_some() {
            peers.iter().try_for_each(|mut peer| peer.write_all(&[1]))?;
        }
        for mut peer in &peers {
            let mut byte = [0];
            peer.read_exact(&mut byte)?;
            if server.is_none() {
                peer.write_all(&byte)?;
            }
        }
    }
    println!("idle");
    process::await_dismissal()
}

fn resident_bytes(mode: Mode) -> Result<f64> {
    let testbed = Testbed::new(mode)?;
    let this = std::env::current_exe()?;
    let start = |end: End, role: String| {
        let line = format!("'{}' {PART} {role}", this.display());
        Player::start(&mut testbed.command(end, true, &line)?)
    };
    let mut server = start(End::Target, "resident-server".to_owned())?;
    let port = server.line()?;
    let mut client = start(End::Source, format!("resident-client {port}"))?;
    server.expect("idle")?;
    client.expect("idle")?;
    Ok(proportional_bytes(server.id())? + proportional_bytes(client.id())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_and_other_output_is_refused() {
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"165016.50\",\"0.158\"\n";
        assert_eq!(gets_per_second(redis).unwrap(), 165_016.5);
        assert!(gets_per_second("\"SET\",\"1\"").is_err());
        let wrk = "  1024 requests in 1.00s\nRequests/sec: 127000.12\nTransfer/sec: 1MB\n";
        assert_eq!(requests_per_second(wrk).unwrap(), 127_000.12);
        assert!(requests_per_second(&format!("Socket errors: connect 1\n{wrk}")).is_err());
        for other in ["Requests/sec: nan", "Requests/sec: 0.0", ""] {
            assert!(requests_per_second(other).is_err(), "{other}");
        }
        let pgbench = "latency average = 0.1 ms\ntps = 21000.5 (without initial connection time)\n";
        assert_eq!(transactions_per_second(pgbench).unwrap(), 21_000.5);
        assert!(transactions_per_second("tps = 0").is_err());
    }
}
