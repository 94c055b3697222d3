//! Redis and its own load generator.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bywire_testing::eventually;

use super::{Fabric, Running, await_listener, port, said, start, text, write};
use crate::packages::Service;

struct Redis<'a> {
    fabric: &'a Fabric,
    service: &'a Service,
    port: String,
}

impl Redis<'_> {
    fn start(&self) -> Running {
        let program = self.service.program.display().to_string();
        let directory = self.fabric.directory.path().display().to_string();
        let words = [
            &program,
            "--port",
            &self.port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            &directory,
        ];
        let mut command = self.fabric.carried(&words);
        let running = start(command.env("LD_LIBRARY_PATH", &self.service.libraries));
        await_listener(self.port.parse().expect("a port"));
        running
    }

    fn command(&self, program: &str, words: &[&str], is_carried: bool) -> Command {
        let program = self.service.program.with_file_name(program).display().to_string();
        let words = [&[&program, "-p", &self.port], words].concat();
        let mut command = if is_carried { self.fabric.carried(&words) } else { self.fabric.plain(&words) };
        command.env("LD_LIBRARY_PATH", &self.service.libraries);
        command
    }

    fn ask(&self, words: &[&str]) -> String {
        said(self.command("redis-cli", words, false))
    }

    fn load(&self, words: &[&str]) -> Command {
        self.command("redis-benchmark", words, true)
    }

    /// The server's clients, except the one that asks.
    fn clients(&self) -> u64 {
        let told = self.ask(&["info", "clients"]);
        let line = told.lines().find_map(|line| line.strip_prefix("connected_clients:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).expect("a count") - 1
    }
}

#[test]
fn redis_serves_forks_stops_and_is_killed() {
    let Some(service) = Service::find("redis-server", "redis-server") else { return };
    let fabric = &Fabric::new();
    let redis = Redis { fabric, service: &service, port: port().to_string() };
    let mut server = redis.start();

    let told = said(redis.load(&["-q", "-n", "5000", "-c", "20", "-t", "ping,set,get,lpush"]));
    assert!(told.contains("GET:") && !told.contains("rror"), "{told}");
    said(redis.load(&["-q", "-n", "20000", "-c", "20", "-P", "16", "-t", "set,get"]));
    let carried = fabric.carried_ever();
    assert!(carried >= 20, "{carried} were carried: {}", fabric.status());

    bytes_are_right(&redis);
    the_save_of_a_forked_child_succeeds_under_load(&redis);
    killed_clients_are_forgotten(&redis);
    redis.ask(&["config", "set", "maxclients", "200"]);
    let _ends_the_connection = redis.command("redis-cli", &["shutdown", "nosave"], false).output();
    assert!(server.end("redis ends in order").success());

    let server = redis.start();
    let mut load = start(&mut redis.load(&["-q", "-n", "100000000", "-c", "5", "-t", "get"]));
    eventually("clients of the second server", || redis.clients() >= 5);
    server.signal("KILL");
    // Its server is gone. Whatever the client does then, it does not wait forever.
    load.end("the clients of a killed server end");
    eventually("both are forgotten", || fabric.status()["processes"] == 0);
}

fn bytes_are_right(redis: &Redis) {
    const TIMES: usize = 40;
    let value = text(7, 150_000);
    let file = redis.fabric.place("value");
    write(&file, &value);
    let mut setting = redis.command("redis-cli", &["-x", "set", "key"], true);
    setting.stdin(std::fs::File::open(Path::new(&file)).expect("a file"));
    said(setting);
    let got = said(redis.command("redis-cli", &["-r", &TIMES.to_string(), "get", "key"], true));
    let line = [value, b"\n".to_vec()].concat();
    assert!(got.as_bytes() == line.repeat(TIMES), "{} bytes came, or others", got.len());
}

fn the_save_of_a_forked_child_succeeds_under_load(redis: &Redis) {
    let mut load =
        start(&mut redis.load(&["-q", "-n", "40000", "-c", "10", "-t", "set", "-d", "500", "-r", "1000"]));
    redis.ask(&["config", "set", "rdbcompression", "no"]);
    redis.ask(&["bgsave"]);
    eventually("the child has saved", || {
        redis.ask(&["info", "persistence"]).contains("rdb_bgsave_in_progress:0")
    });
    assert!(redis.ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    assert!(load.end("the load ends").success());
}

fn killed_clients_are_forgotten(redis: &Redis) {
    let load = start(&mut redis.load(&["-q", "-n", "100000000", "-c", "10", "-t", "get"]));
    eventually("clients", || redis.clients() >= 10);
    std::thread::sleep(Duration::from_millis(100));
    load.signal("KILL");
    eventually("killed clients are gone", || redis.clients() == 0);
}
