//! nginx, its master and its workers, under load by wrk and queried by curl; also as a proxy for itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use bywire_testing::eventually;

use super::{Fabric, Running, await_listener, port, said, start, text, write};
use crate::packages::{Service, have};

const LONG_BYTES: usize = 5_000_000;
const SHORT_BYTES: usize = 1024;
/// Longer than what happens under load takes on a busy machine.
const LOAD_SECONDS: u32 = 100;

struct Nginx<'a> {
    fabric: &'a Fabric,
    service: &'a Service,
    port: u16,
    proxy: u16,
}

impl Nginx<'_> {
    /// Writes the configuration. Responses have `mark` in a header.
    fn configure(&self, user: &str, mark: &str) {
        let place = |name: &str| self.fabric.place(name);
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|kind| format!("{kind}_temp_path {};", place(kind))).concat();
        let (port, proxy, root) = (self.port, self.proxy, place("www"));
        let configuration = format!(
            "daemon off; worker_processes 2; {user} pid {}; error_log {} warn;
            events {{ worker_connections 512; }}
            http {{
                access_log off; sendfile on; keepalive_requests 1000000; {temporary}
                upstream itself {{ server 127.0.0.1:{port}; keepalive 8; }}
                server {{ listen 127.0.0.1:{port}; root {root}; add_header Mark {mark}; }}
                server {{
                    listen 127.0.0.1:{proxy};
                    location / {{
                        proxy_pass http://itself; proxy_http_version 1.1; proxy_set_header Connection \"\";
                    }}
                }}
            }}",
            place("pid"),
            place("error"),
        );
        write(place("configuration"), configuration);
    }

    fn start(&self) -> Running {
        let program = self.service.program.display().to_string();
        let mut command = self.fabric.carried(&[&program, "-c", &self.fabric.place("configuration")]);
        let running = start(command.env("LD_LIBRARY_PATH", &self.service.libraries));
        await_listener(self.port);
        await_listener(self.proxy);
        running
    }

    fn signal(&self, signal: &str) {
        let pid = fs::read_to_string(self.fabric.place("pid")).expect("the master's number");
        assert!(Command::new("kill").args(["-s", signal, pid.trim()]).status().expect("it runs").success());
    }

    /// Long and short files on one connection, by a carried curl.
    fn fetch(&self, port: u16) {
        let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
        // More requests than needed for a connection to be carried.
        let names: Vec<&str> = std::iter::repeat_n("short", 30).chain(["long"; 3]).collect();
        let urls: Vec<String> = names.iter().map(|name| url(name)).collect();
        let mut words = vec!["curl", "-s", "-S", "--fail"];
        words.extend(urls.iter().map(String::as_str));
        let got = said(self.fabric.carried(&words));
        let due: Vec<u8> =
            names.iter().flat_map(|name| if *name == "long" { long() } else { short() }).collect();
        assert!(got.as_bytes() == due, "{} of {} bytes came, or others", got.len(), due.len());
    }

    fn mark(&self) -> String {
        let url = format!("http://127.0.0.1:{}/short", self.port);
        let told = said(self.fabric.plain(&["curl", "-s", "-D", "-", "-o", "/dev/null", &url]));
        told.lines().find_map(|line| line.strip_prefix("Mark: ")).unwrap_or_default().trim().to_owned()
    }

    /// Load that goes on for so long, or until an interrupt.
    fn load(&self, seconds: u32) -> Command {
        let url = format!("http://127.0.0.1:{}/short", self.port);
        self.fabric.carried(&["wrk", "-t", "1", "-c", "16", "-d", &format!("{seconds}s"), &url])
    }
}

fn long() -> Vec<u8> {
    text(1, LONG_BYTES)
}

fn short() -> Vec<u8> {
    text(2, SHORT_BYTES)
}

#[test]
fn nginx_serves_reloads_and_stops() {
    let Some(service) = Service::find("nginx", "nginx-light") else { return };
    if !have(&[("wrk", "wrk"), ("curl", "curl")]) {
        return;
    }
    for user in users() {
        let fabric = &Fabric::new();
        fs::set_permissions(fabric.directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
        fs::create_dir(fabric.place("www")).expect("a directory");
        write(fabric.place("www/long"), long());
        write(fabric.place("www/short"), short());
        let nginx = Nginx { fabric, service: &service, port: port(), proxy: port() };
        serves_reloads_and_stops(&nginx, &user);
    }
}

/// The users of the workers, as nginx's configuration names them.
fn users() -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        println!("not run: nginx's workers as another user than its master, as only root becomes one");
        return vec![String::new()];
    }
    let group = said(Fabric::new().plain(&["id", "-gn", "nobody"]));
    vec!["user root;".to_owned(), format!("user nobody {};", group.trim())]
}

fn serves_reloads_and_stops(nginx: &Nginx, user: &str) {
    nginx.configure(user, "first");
    let mut server = nginx.start();
    nginx.fetch(nginx.port);
    nginx.fetch(nginx.proxy);
    let told = said(nginx.load(1));
    assert!(told.contains("Requests/sec") && !told.contains("Socket errors"), "{told}");
    assert!(!told.contains("Non-2xx"), "{told}");
    let carried = nginx.fabric.carried_ever();
    // Connections of workers that have changed their user too.
    assert!(carried >= 8, "{user} {carried} of 16 were carried: {}", nginx.fabric.status());

    let mut load = nginx.fabric.start_load(&mut nginx.load(LOAD_SECONDS));
    nginx.configure(user, "second");
    nginx.signal("HUP");
    eventually("the new configuration", || nginx.mark() == "second");
    assert!(load.interrupt("the load ends").success());
    nginx.fetch(nginx.port);

    kill_a_worker(nginx);
    nginx.fetch(nginx.proxy);
    nginx.signal("QUIT");
    assert!(server.end("nginx ends in order").success());
}

/// The master starts another one.
fn kill_a_worker(nginx: &Nginx) {
    let master = fs::read_to_string(nginx.fabric.place("pid")).expect("the master's number");
    let children = || said(nginx.fabric.plain(&["pgrep", "-P", master.trim()]));
    // The workers from before the reload exit after their last connection.
    let before = eventually("two workers", || Some(children()).filter(|now| now.lines().count() == 2));
    let mut load = nginx.fabric.start_load(&mut nginx.load(LOAD_SECONDS));
    let first = before.lines().next().expect("a worker").to_owned();
    assert!(Command::new("kill").args(["-s", "KILL", &first]).status().expect("it runs").success());
    eventually("another worker", || {
        let now = children();
        now.lines().count() == 2 && !now.lines().any(|worker| worker == first)
    });
    load.interrupt("the load ends");
}
