//! PostgreSQL, which forks for each connection, and pgbench over TCP.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

use bywire_testing::eventually;

use super::{Fabric, await_listener, library, port, said, start};
use crate::packages::Service;

/// PostgreSQL refuses to run as root.
const NOBODY: &str = "65534";

struct PostgreSql<'a> {
    fabric: &'a Fabric,
    service: &'a Service,
    port: String,
}

impl PostgreSql<'_> {
    fn words<'a>(&self, words: &[&'a str]) -> Vec<&'a str> {
        let become_nobody = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
        let prefix = if rustix::process::geteuid().is_root() { &become_nobody[..] } else { &[] };
        [prefix, words].concat()
    }

    /// As a user who may run the server, with a copy of the library and the command that this user can read.
    fn command(&self, program: &str, words: &[&str], is_carried: bool) -> Command {
        let program = self.service.program.with_file_name(program).display().to_string();
        let bywire = self.fabric.place("bywire");
        let run = if is_carried { &[&bywire, "run", "--"][..] } else { &[] };
        let all = [run, &[&program], words].concat();
        let mut command = self.fabric.plain(&self.words(&all));
        command.env("LD_LIBRARY_PATH", &self.service.libraries).current_dir(self.fabric.directory.path());
        command.env("BYWIRE_SOCKETS_LIBRARY", self.fabric.place("libbywire_sockets.so")).env("LC_ALL", "C");
        command
    }

    fn client(&self, program: &str, words: &[&str]) -> String {
        let place = ["-h", "127.0.0.1", "-p", &self.port, "-U", "tester"];
        said(self.command(program, &[&place, words, &["postgres"]].concat(), true))
    }

    fn status(&self) -> serde_json::Value {
        let bywire = self.fabric.place("bywire");
        let told = said(self.fabric.plain(&self.words(&[&bywire, "status", "--json"])));
        serde_json::from_str(&told).expect("JSON")
    }

    fn data(&self) -> PathBuf {
        self.fabric.directory.path().join("data")
    }
}

#[test]
fn postgresql_serves_reloads_stops_and_is_killed() {
    let Some(service) = Service::find("postgres", "postgresql") else { return };
    let fabric = &Fabric::new();
    if rustix::process::geteuid().is_root() {
        // The runtime directory must belong to the programs' user.
        let nobody: u32 = NOBODY.parse().expect("a number");
        chown(fabric.directory.path(), Some(nobody), Some(nobody)).expect("given away");
    }
    for file in [PathBuf::from(env!("CARGO_BIN_EXE_bywire")), library()] {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        fs::copy(&file, fabric.place(&name)).expect("copied");
    }
    let server = PostgreSql { fabric, service: &service, port: port().to_string() };
    let data = server.data().display().to_string();
    said(server.command(
        "initdb",
        &["-D", &data, "-U", "tester", "-A", "trust", "-N", "--no-instructions"],
        false,
    ));
    serve(&server, &data);
}

fn serve(server: &PostgreSql, data: &str) {
    let place = server.fabric.directory.path().display().to_string();
    let words = ["-D", data, "-p", &server.port, "-h", "127.0.0.1", "-k", &place, "-c", "fsync=off"];
    let begin = || {
        let running = start(&mut server.command("postgres", &words, true));
        await_listener(server.port.parse().expect("a port"));
        eventually("it accepts", || {
            let words = ["-h", "127.0.0.1", "-p", &server.port];
            let ready = server.command("pg_isready", &words, false).output().expect("it runs");
            ready.status.success()
        });
        running
    };
    let mut running = begin();
    server.client("pgbench", &["-i", "-q", "-s", "1"]);
    let told = server.client("pgbench", &["-S", "-n", "-c", "4", "-T", "2"]);
    assert!(told.contains("failed transactions: 0") || !told.contains("failed"), "{told}");
    let told = server.client("pgbench", &["-n", "-c", "4", "-t", "50"]);
    assert!(told.contains("200/200"), "{told}");
    let status = server.status();
    assert!(status["carried_ever"].as_u64() >= Some(8), "{status}");

    // A long answer of known bytes.
    let query = "select string_agg(md5(n::text), '') from generate_series(1, 100000) n";
    let summed = format!("select md5(string) from ({query}) as t(string)");
    let due = server.client("psql", &["-At", "-c", &summed]);
    let got = server.client("psql", &["-At", "-c", "select 1", "-c", "select 2", "-c", query]);
    let body = got.lines().nth(2).expect("three answers");
    assert_eq!(body.len(), 3_200_000);
    let file = server.fabric.place("body");
    super::write(&file, body);
    assert!(said(server.fabric.plain(&["md5sum", &file])).starts_with(due.trim()), "other bytes came");

    server.client("psql", &["-At", "-c", "alter system set work_mem = '7MB'"]);
    said(server.command("pg_ctl", &["-D", data, "reload"], false));
    eventually("the new configuration", || {
        server.client("psql", &["-At", "-c", "show work_mem"]).trim() == "7MB"
    });
    said(server.command("pg_ctl", &["-D", data, "stop", "-m", "fast"], false));
    assert!(running.end("it ends in order").success());

    let running = begin();
    let pgbench = [
        "-h",
        "127.0.0.1",
        "-p",
        &server.port,
        "-U",
        "tester",
        "-S",
        "-n",
        "-c",
        "4",
        "-T",
        "600",
        "postgres",
    ];
    let before = server.status()["carried_ever"].as_u64();
    let mut load = start(&mut server.command("pgbench", &pgbench, true));
    eventually("clients are carried", || server.status()["carried_ever"].as_u64() > before);
    running.signal("KILL");
    assert!(!load.end("clients of a killed server end").success());
}
