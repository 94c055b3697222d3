//! PHP's workers behind nginx: each request talks to a further server through PHP's sockets extension, which is loaded
//! with `RTLD_DEEPBIND`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::languages::{serve, source};
use super::{Fabric, Running, await_listener, port, said, start, write};
use crate::packages::{Service, have};
use bywire_testing::eventually;

const REQUESTS: usize = 40;
/// Longer than what happens under load takes on a busy machine.
const LOAD_SECONDS: u32 = 100;
/// Digests that an answer repeats.
const LENGTHS: [usize; 3] = [0, 100, 30_000];

struct Site<'a> {
    fabric: &'a Fabric,
    web: u16,
    workers: u16,
}

impl Site<'_> {
    fn start_workers(&self, service: &Service, echo: &str) -> Running {
        let place = |name: &str| self.fabric.place(name);
        let user = if rustix::process::geteuid().is_root() { "user = nobody\ngroup = nogroup" } else { "" };
        let configuration = format!(
            "[global]\nerror_log = {}\npid = {}\nprocess_control_timeout = 10s\n\
             [www]\nlisten = 127.0.0.1:{}\n{user}\npm = static\npm.max_children = 4\npm.max_requests = 100\n\
             env[ECHO_PORT] = {echo}\n",
            place("workers.log"),
            place("workers.pid"),
            self.workers,
        );
        write(place("workers.conf"), configuration);
        fs::create_dir(place("ini")).expect("a directory");
        write(place("ini/sockets.ini"), "extension=sockets\n");
        let program = service.program.display().to_string();
        let mut command = self.fabric.carried(&[&program, "-F", "-R", "-y", &place("workers.conf")]);
        command.env("LD_LIBRARY_PATH", &service.libraries).env("PHP_INI_SCAN_DIR", place("ini"));
        let running = start(command.env("BYWIRE_LOG", place("log")));
        await_listener(self.workers);
        running
    }

    fn start_web(&self, service: &Service) -> Running {
        let place = |name: &str| self.fabric.place(name);
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|kind| format!("{kind}_temp_path {};", place(kind))).concat();
        let user = if rustix::process::geteuid().is_root() { "user nobody nogroup;" } else { "" };
        let configuration = format!(
            "daemon off; worker_processes 1; {user} pid {}; error_log {} warn;
            events {{ worker_connections 512; }}
            http {{
                access_log off; keepalive_requests 1000000; {temporary}
                upstream workers {{ server 127.0.0.1:{}; keepalive 4; }}
                server {{
                    listen 127.0.0.1:{};
                    location / {{
                        fastcgi_pass workers; fastcgi_keep_conn on;
                        fastcgi_param SCRIPT_FILENAME {}; fastcgi_param QUERY_STRING $query_string;
                        fastcgi_param REQUEST_METHOD $request_method;
                    }}
                }}
            }}",
            place("web.pid"),
            place("web.log"),
            self.workers,
            self.web,
            place("fpm.php"),
        );
        write(place("web.conf"), configuration);
        let program = service.program.display().to_string();
        let mut command = self.fabric.carried(&[&program, "-c", &place("web.conf")]);
        let running = start(command.env("LD_LIBRARY_PATH", &service.libraries));
        await_listener(self.web);
        running
    }

    fn url(&self, seed: usize) -> String {
        format!("http://127.0.0.1:{}/?seed={seed}&length={}", self.web, LENGTHS[seed % LENGTHS.len()])
    }

    /// Answers to many requests on one connection, by a carried curl.
    fn fetch(&self) -> String {
        let urls: Vec<String> = (0..REQUESTS).map(|seed| self.url(seed)).collect();
        let mut words = vec!["curl", "-s", "-S", "--fail"];
        words.extend(urls.iter().map(String::as_str));
        said(self.fabric.carried(&words))
    }

    /// Load that goes on for so long, or until an interrupt.
    fn load(&self, seconds: u32) -> Command {
        self.fabric.carried(&["wrk", "-t", "1", "-c", "8", "-d", &format!("{seconds}s"), &self.url(1)])
    }

    /// Signals a master that has written its number there.
    fn signal(&self, place: &str, signal: &str) {
        let pid = fs::read_to_string(self.fabric.place(place)).expect("the master's number");
        assert!(Command::new("kill").args(["-s", signal, pid.trim()]).status().expect("it runs").success());
    }

    /// The processes that answer requests.
    fn workers(&self) -> Vec<String> {
        let pid = fs::read_to_string(self.fabric.place("workers.pid")).expect("the master's number");
        let output = self.fabric.plain(&["pgrep", "-P", pid.trim()]).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    fn await_other_workers(&self, gone: &[String]) {
        eventually("other workers", || {
            let now = self.workers();
            now.len() == 4 && !now.iter().any(|worker| gone.contains(worker))
        });
    }

    /// The connections of the workers that were carried and have this port at one of their ends.
    fn carried_at(&self, port: &str) -> usize {
        let log = fs::read_to_string(self.fabric.place("log")).expect("a log");
        let ending = format!(":{port}");
        log.lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .filter(|words| words.get(1) == Some(&"carried"))
            .filter(|words| words.iter().skip(2).take(2).any(|address| address.ends_with(&ending)))
            .count()
    }
}

/// The answers, computed here.
fn due() -> String {
    let script = "import hashlib, sys\n\
        md5 = lambda text: hashlib.md5(text.encode()).hexdigest()\n\
        for seed in range(int(sys.argv[1])):\n\
        \x20   digest = ''\n\
        \x20   for turn in range(30):\n\
        \x20       digest = md5(digest + (md5(f'{seed}{turn}') * 200)[: 1 + turn * 211])\n\
        \x20   print(digest + '\\n' + digest * int(sys.argv[2 + seed % 3]), end='')";
    let words = [REQUESTS, LENGTHS[0], LENGTHS[1], LENGTHS[2]].map(|number| number.to_string());
    let words = words.iter().map(String::as_str);
    said(Fabric::new().plain(&["python3", "-c", script].into_iter().chain(words).collect::<Vec<_>>()))
}

#[test]
fn phps_workers_behind_nginx_answer_reload_and_stop() {
    if !have(&[("php", "php-cli"), ("wrk", "wrk"), ("curl", "curl"), ("python3", "python3")]) {
        return;
    }
    let fabric = &Fabric::new();
    let version = said(fabric.plain(&["php", "-n", "-r", "echo PHP_MAJOR_VERSION, '.', PHP_MINOR_VERSION;"]));
    let (Some(web), Some(workers)) = (
        Service::find("nginx", "nginx-light"),
        Service::find(&format!("php-fpm{version}"), &format!("php{version}-fpm")),
    ) else {
        return;
    };
    fs::set_permissions(fabric.directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
    write(fabric.place("log"), "");
    fs::set_permissions(fabric.place("log"), fs::Permissions::from_mode(0o666)).expect("set");
    fs::copy(source("fpm.php"), fabric.place("fpm.php")).expect("copied");
    let echo = source("echo.py");
    let (_echo, echo) = serve(fabric, &["python3", &echo, "serve", "ThreadingTCPServer", "echo"], true);
    let site = Site { fabric, web: port(), workers: port() };
    let mut pool = site.start_workers(&workers, &echo);
    let mut server = site.start_web(&web);
    let due = due();
    let check = |when: &str| {
        let got = site.fetch();
        assert!(got == due, "{when}: {} of {} bytes came, or others", got.len(), due.len());
    };
    check("at first");
    let told = said(site.load(1));
    assert!(told.contains("Requests/sec") && !told.contains("Socket errors"), "{told}");
    assert!(!told.contains("Non-2xx"), "{told}");

    let before = site.workers();
    let mut load = site.fabric.start_load(&mut site.load(LOAD_SECONDS));
    // The master executes itself again, with the listener that it has.
    site.signal("workers.pid", "USR2");
    site.await_other_workers(&before);
    assert!(load.interrupt("the load ends").success());
    check("after a reload");

    let mut load = site.fabric.start_load(&mut site.load(LOAD_SECONDS));
    let killed = eventually("a worker is killed", || {
        // It may end by itself, as it answers so many requests only.
        let worker = site.workers().into_iter().next()?;
        let kill = Command::new("kill").args(["-s", "KILL", &worker]).status().expect("it runs");
        kill.success().then_some(worker)
    });
    site.await_other_workers(&[killed]);
    load.interrupt("the load ends");
    check("after a worker was killed");

    site.signal("workers.pid", "QUIT");
    assert!(pool.end("the workers end in order").success());
    // From nginx, which keeps few and has many requests on each, and to the echo server by the extension's functions.
    for (what, port, carried_min) in [("nginx", site.workers.to_string(), 2), ("the echo server", echo, 20)] {
        let carried = site.carried_at(&port);
        assert!(carried >= carried_min, "{carried} connections with {what}: {}", fabric.status());
    }
    site.signal("web.pid", "QUIT");
    assert!(server.end("nginx ends in order").success());
}
