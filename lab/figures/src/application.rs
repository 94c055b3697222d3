//! Servers of other projects under their own load generators, over plain TCP and carried.

use std::cell::RefCell;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_results::cell::Unit;
use rustix::process::geteuid;

use crate::carried::{End, Mode, Testbed, find, port};
use crate::contestant::Contestant;

/// PostgreSQL must accept connections within this time.
const RECOVERY: Duration = Duration::from_secs(20);

/// The user that PostgreSQL runs as if this is root.
const NOBODY: &str = "65534";

/// Redis under `clients` load generators of `connections` connections each: GETs per second of all together.
pub fn redis(mode: Mode, clients: usize, connections: u32) -> Contestant {
    let requests = 100_000 / clients;
    let words = format!("redis-benchmark -t get -c {connections} -n {requests} --csv");
    let command = if clients > 1 { format!("{clients} × {words}, ends not pinned") } else { words };
    contestant(&command, move || {
        let (server, benchmark) =
            (find("redis-server", "redis-server")?, find("redis-benchmark", "redis-tools")?);
        let (server, benchmark) = (server.display().to_string(), benchmark.display().to_string());
        let (testbed, port, pinned) = (Testbed::new(mode)?, port()?, clients == 1);
        let port_word = port.to_string();
        let words = [
            &server,
            "--port",
            &port_word,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            &testbed.place(""),
        ];
        let _server = testbed.serve(testbed.command(End::Server, pinned, &words), port)?;
        let (connections, requests) = (connections.to_string(), requests.to_string());
        let ask = [&benchmark, "-p", &port_word, "-t", "get", "-c", &connections, "-n", &requests, "--csv"];
        let commands = (0..clients).map(|_| testbed.command(End::Client, pinned, &ask)).collect();
        let printed = testbed.ask(commands, connections.parse()?)?;
        printed.iter().map(|printed| gets_per_second(printed)).sum()
    })
}

/// nginx with one worker and a file of 1 KB under wrk with 16 connections: requests per second. Where connections are not
/// kept, each serves one request.
pub fn nginx(mode: Mode, keeps: bool) -> Contestant {
    let close: &[&str] = if keeps { &[] } else { &["-H", "Connection: close"] };
    let command = format!("wrk -t 1 -c 16 -d 1s {}", close.join(" "));
    contestant(command.trim(), move || {
        let (nginx, wrk) = (find("nginx", "nginx-light")?, find("wrk", "wrk")?);
        let (nginx, wrk) = (nginx.display().to_string(), wrk.display().to_string());
        let (testbed, port) = (Testbed::new(mode)?, port()?);
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|kind| format!("{kind}_temp_path {};", testbed.place(kind))).concat();
        let user = if geteuid().is_root() { "user root;" } else { "" };
        let configuration = format!(
            "daemon off; worker_processes 1; {user} pid {}; error_log {} crit; events {{ worker_connections 512; }}
            http {{
                access_log off; sendfile on; keepalive_requests 100000000; {temporary}
                server {{ listen 127.0.0.1:{port} backlog=1024; root {}; }}
            }}",
            testbed.place("pid"),
            testbed.place("error"),
            testbed.place(""),
        );
        fs::write(testbed.place("configuration"), configuration)?;
        fs::write(testbed.place("file"), [b'x'; 1024])?;
        let words = [nginx.as_str(), "-c", &testbed.place("configuration")];
        let _server = testbed.serve(testbed.command(End::Server, true, &words), port)?;
        let url = format!("http://127.0.0.1:{port}/file");
        let ask = [&[wrk.as_str(), "-t", "1", "-c", "16", "-d", "1s"], close, &[url.as_str()]].concat();
        // A connection of one request ends before carrying it pays.
        let connections = if keeps { 16 } else { 0 };
        let printed = testbed.ask(vec![testbed.command(End::Client, true, &ask)], connections)?;
        requests_per_second(&printed[0])
    })
}

/// PostgreSQL under `pgbench -S` over TCP with 4 clients: transactions per second.
pub fn postgresql(mode: Mode) -> Contestant {
    let cluster: RefCell<Option<tempfile::TempDir>> = RefCell::new(None);
    contestant("pgbench -S -n -c 4 -T 1 -h 127.0.0.1", move || {
        let programs = ["postgres", "pgbench", "initdb"].map(|program| find(program, "postgresql"));
        let [postgres, pgbench, initdb] = programs;
        let programs = [postgres?, pgbench?, initdb?].map(|path| path.display().to_string());
        let [postgres, pgbench, initdb] = &programs;
        let (testbed, port) = (Testbed::new(mode)?, port()?);
        let port_word = port.to_string();
        let is_new = cluster.borrow().is_none();
        if is_new {
            *cluster.borrow_mut() = Some(make_cluster(initdb)?);
        }
        let cluster = cluster.borrow();
        let data = cluster.as_ref().context("just made")?.path().join("data").display().to_string();
        let words = [
            postgres,
            "-D",
            &data,
            "-p",
            &port_word,
            "-h",
            "127.0.0.1",
            "-k",
            &testbed.place(""),
            "-c",
            "fsync=off",
        ];
        let words = as_nobody(&words);
        let _server = testbed.serve(testbed.command(End::Server, true, &words), port)?;
        await_ready(&port_word)?;
        let place = ["-h", "127.0.0.1", "-p", &port_word, "-U", "tester"];
        let ask = |words: &[&str]| {
            let words = [&[pgbench.as_str()], &place[..], words, &["postgres"]].concat();
            testbed.command(End::Client, true, &as_nobody(&words))
        };
        if is_new {
            testbed.ask(vec![ask(&["-i", "-q", "-s", "1"])], 0)?;
        }
        let printed = testbed.ask(vec![ask(&["-S", "-n", "-c", "4", "-T", "1"])], 4)?;
        transactions_per_second(&printed[0])
    })
}

/// Waits until the server has recovered: one that was killed listens before that.
fn await_ready(port: &str) -> Result<()> {
    let asked = find("pg_isready", "postgresql")?;
    let started = Instant::now();
    loop {
        let mut asking = Command::new(&asked);
        asking.args(["-q", "-h", "127.0.0.1", "-p", port, "-U", "tester", "-d", "postgres"]);
        if asking.status()?.success() {
            return Ok(());
        }
        ensure!(started.elapsed() < RECOVERY, "PostgreSQL listens and accepts nobody");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn make_cluster(initdb: &str) -> Result<tempfile::TempDir> {
    let place = tempfile::tempdir()?;
    if geteuid().is_root() {
        let nobody: u32 = NOBODY.parse()?;
        std::os::unix::fs::chown(place.path(), Some(nobody), Some(nobody))?;
    }
    let data = place.path().join("data").display().to_string();
    let words = [initdb, "-D", &data, "-U", "tester", "-A", "trust", "-N"];
    let words = as_nobody(&words);
    let output =
        Command::new(words[0]).args(&words[1..]).current_dir(place.path()).env("LC_ALL", "C").output()?;
    ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(place)
}

fn as_nobody<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let prefix = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
    let prefix = if geteuid().is_root() { &prefix[..] } else { &[] };
    [prefix, words].concat()
}

fn contestant(command: &str, measure: impl Fn() -> Result<f64> + 'static) -> Contestant {
    Contestant::of_value(command, Unit::TransactionsPerSecond, measure)
}

/// The rate of GET in the output of `redis-benchmark --csv`.
fn gets_per_second(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("\"GET\",\""));
    figure(line.and_then(|line| line.split('"').next()), "redis-benchmark prints no rate of GET")
}

/// The rate in the output of wrk.
///
/// # Errors
/// It has none, or requests failed.
pub fn requests_per_second(printed: &str) -> Result<f64> {
    ensure!(!printed.contains("Non-2xx") && !printed.contains("Socket errors"), "wrk: {printed}");
    let line = printed.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    figure(line, "wrk prints no rate")
}

/// The rate in the output of pgbench.
fn transactions_per_second(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("tps = "));
    figure(line.and_then(|line| line.split(' ').next()), "pgbench prints no rate")
}

fn figure(text: Option<&str>, otherwise: &'static str) -> Result<f64> {
    let figure: f64 = text.context(otherwise)?.trim().parse().context(otherwise)?;
    ensure!(figure.is_finite() && figure > 0.0, "a rate of {figure}");
    Ok(figure)
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
