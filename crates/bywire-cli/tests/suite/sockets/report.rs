//! `bywire run --explain`, `BYWIRE_LOG` and `bywire status` tell the truth, and `--explain` leaves nothing behind.
//! Errors about unusable variables and directories say what to do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use bywire_testing::eventually;

use super::groups::Group;
use super::{Fabric, SLOW_SERVER, await_listener, ended, groups, port, start, text, write};
use crate::packages::have;

const FILE_BYTES: usize = 300_000;

#[test]
fn outcomes_of_connections_are_printed_on_standard_error_only() {
    if !have(&[("python3", "python3"), ("curl", "curl")]) {
        return;
    }
    let fabric = Fabric::new();
    write(fabric.place("file"), text(3, FILE_BYTES));
    let port = port();
    let _server =
        start(&mut fabric.carried(&["python3", "-c", SLOW_SERVER, &port.to_string(), &fabric.place("")]));
    await_listener(port);
    let url = format!("http://127.0.0.1:{port}/file");
    let log = fabric.place("log");
    let asked = |times: usize| {
        let words = [&["curl", "-s", "-S"][..], &vec![url.as_str(); times]].concat();
        ended(fabric.explained(&words).env("BYWIRE_LOG", &log))
    };

    let many = asked(20);
    assert!(many.status.success() && many.stdout.len() == 20 * FILE_BYTES, "{many:?}");
    let told = String::from_utf8_lossy(&many.stderr);
    assert!(told.starts_with("bywire: 1 of this program's connections was carried, 0 were not\n"), "{told}");
    assert!(told.contains(&format!("to 127.0.0.1:{port}: ")) && told.contains("in memory"), "{told}");

    // The requested log stays, and another run reports only itself.
    assert!(fs::read_to_string(&log).expect("a log").contains(" carried 127.0.0.1:"));
    let closed = ended(&mut fabric.explained(&["curl", "-s", "http://127.0.0.1:1/"]));
    assert_eq!(closed.status.code(), Some(7), "curl's own: {closed:?}");
    assert!(String::from_utf8_lossy(&closed.stderr).contains("0 of this program's"), "{closed:?}");

    let killed = ended(&mut fabric.explained(&["sh", "-c", "kill -9 $$"]));
    assert_eq!(killed.status.signal(), Some(9));
    // Signals to it reach the program, which exits as it chooses.
    let ends = ["sh", "-c", "trap 'exit 3' USR1 INT; kill -USR1 $PPID; while :; do sleep 0.1; done"];
    let told = ended(&mut fabric.explained(&ends));
    assert_eq!(told.status.code(), Some(3), "{told:?}");
    // Nothing is printed without the option.
    let silent = ended(&mut fabric.carried(&["curl", "-s", "-o", "/dev/null", &url]));
    assert!(silent.status.success() && silent.stderr.is_empty(), "{silent:?}");
}

#[test]
fn a_program_that_cannot_run_ends_with_the_shells_status_and_one_that_cannot_be_preloaded_is_refused() {
    let fabric = Fabric::new();
    let runs = |words: &[&str]| {
        let output = ended(&mut fabric.bywire(&[&["run"], words].concat()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.lines().count() == 1 && said.starts_with("bywire: "), "{words:?}: {said}");
        (output.status.code(), said)
    };
    let directory = fabric.place("");
    for explained in [&["--explain", "--"][..], &["--"]] {
        assert_eq!(runs(&[explained, &["no-such-program"]].concat()).0, Some(127));
        assert_eq!(runs(&[explained, &[directory.as_str()]].concat()).0, Some(126));
    }
    for foreign in ["/etc/passwd", "/bin/true", "/no/such/library"] {
        let (code, said) = runs(&["--library", foreign, "--", "true"]);
        assert!(code == Some(2) && said.contains(foreign), "{said}");
    }
    for foreign in ["/bin/true", "/no/such/library"] {
        let output = ended(fabric.carried(&["true"]).env("BYWIRE_SOCKETS_LIBRARY", foreign));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
        assert!(said.contains("BYWIRE_SOCKETS_LIBRARY") && said.contains(foreign), "{said}");
    }
    for name in ["a blank", "a:colon", "$LIB"] {
        let place = fabric.place(name);
        fs::create_dir(&place).expect("a directory");
        let output = ended(fabric.carried(&["true"]).env("BYWIRE_RUNTIME_DIR", &place));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("cannot be named in LD_PRELOAD"), "{said}");
    }
}

#[test]
fn an_end_that_saw_a_reset_is_reported() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let fabric = Fabric::new();
    let port = port();
    // It answers, and then closes with unread bytes.
    let server = format!(
        "import socket\nl=socket.create_server(('127.0.0.1',{port}))\nc=l.accept()[0]\n\
         for _ in range(200): c.sendall(c.recv(100))\nc.close()\nl.accept()"
    );
    let _server = start(&mut fabric.carried(&["python3", "-c", &server]));
    await_listener(port);
    let client = format!(
        "import socket,time\nc=socket.create_connection(('127.0.0.1',{port}))\n\
         for _ in range(199): c.sendall(b'x'); c.recv(100)\n\
         c.sendall(b'x'); c.sendall(b'y'*1000)\n\
         try:\n  while c.recv(1000): time.sleep(0.01); c.sendall(b'z')\nexcept OSError: pass\nc.close()"
    );
    let told = ended(&mut fabric.explained(&["python3", "-c", &client]));
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success() && said.contains(" bytes sent, "), "{said}");
}

/// A program without the C library that exits with 0: ELF headers, and three instructions.
fn static_program() -> Vec<u8> {
    let words = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let start = 0x40_0000;
    [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec(),
        words(&[start + 120, 64, 0]),
        b"\0\0\0\0\x40\0\x38\0\x01\0\0\0\0\0\0\0".to_vec(),
        // Loadable, readable and executable.
        words(&[1 | 5 << 32, 0, start, start, 129, 129, 4096]),
        // exit(0)
        b"\xb8\x3c\0\0\0\x31\xff\x0f\x05".to_vec(),
    ]
    .concat()
}

#[test]
fn a_program_that_never_loads_the_library_is_reported_with_the_reason() {
    let fabric = Fabric::new();
    let program = fabric.place("static");
    write(&program, static_program());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    let explained = |words: &[&str]| {
        let output = ended(&mut fabric.explained(words));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.lines().count() == 1, "{words:?}: {said}");
        said
    };
    let said = explained(&[&program]);
    assert!(said.contains("never loaded") && said.contains("linked statically"), "{said}");
    // A program that is started by another one is not reported: the first one had the library.
    let said = explained(&["sh", "-c", &format!("{program}; true")]);
    assert!(said.contains("0 of this program's connections were carried, 0 were not"), "{said}");
    assert_eq!(explained_places(&fabric), Vec::<String>::new());
}

/// A program in Go that uses the C library, for instance for its resolver or a database, and makes system calls by
/// itself.
const GO: &str = r#"package main

import "C"
import (
	"net"
	"os"
)

func main() {
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	go func() {
		end, _ := listener.Accept()
		word := make([]byte, 100)
		for {
			length, err := end.Read(word)
			if err != nil {
				return
			}
			end.Write(word[:length])
		}
	}()
	end, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		os.Exit(1)
	}
	word := make([]byte, 50)
	for index := 0; index < 1000; index++ {
		end.Write(word)
		end.Read(word)
	}
}
"#;

#[test]
fn a_program_in_go_that_loads_the_library_is_reported_with_the_reason() {
    if !have(&[("go", "golang-go"), ("gcc", "gcc")]) {
        return;
    }
    let fabric = Fabric::new();
    let [source, program] = ["echo.go", "echo"].map(|name| fabric.place(name));
    write(&source, GO);
    let mut build = fabric.plain(&["go", "build", "-ldflags=-linkmode=external", "-o", &program, &source]);
    build.env("CGO_ENABLED", "1").env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"));
    let built = ended(&mut build);
    assert!(built.status.success(), "{built:?}");
    // Directly, and through another program.
    for words in [&[program.as_str()][..], &["sh", "-c", &format!("{program}; exit $?")]] {
        let output = ended(&mut fabric.explained(words));
        let said = String::from_utf8_lossy(&output.stderr);
        let wanted = ": a program or library in Go calls the kernel by itself, and all of its connections are the kernel's";
        assert!(output.status.success() && said.contains(wanted), "{words:?}: {said}");
        assert!(said.starts_with("bywire: 0 of this program's connections were carried, 0 were not\n"));
        assert_eq!(said.lines().count(), 2, "{said}");
    }
    assert_eq!(fabric.status()["not_carried"]["Go"], 2);
}

/// The directories of `--explain` in its user's directory.
fn explained_places(fabric: &Fabric) -> Vec<String> {
    let names = |path: &Path| {
        let entries = fs::read_dir(path).expect("ours").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let root = fabric.directory.path();
    let own = names(root).into_iter().find(|name| name.starts_with("sockets-")).expect("one's own");
    names(&root.join(own)).into_iter().filter(|name| name.starts_with("explain")).collect()
}

/// Waits until all programs have ended, except the service.
fn await_the_end(fabric: &Fabric) {
    let is_service = |command: &String| command.contains("__pairing");
    eventually("all have ended", || groups::commands_of(fabric.directory.path()).iter().all(is_service));
}

#[test]
fn a_program_that_starts_after_the_report_leaves_nothing() {
    let fabric = Fabric::new();
    let gate = fabric.place("gate");
    assert!(ended(&mut fabric.plain(&["mkfifo", &gate])).status.success());
    // The subshell outlives the others, and starts another program.
    let late = format!("(read word < {gate}; ls; true) > /dev/null 2>&1 < /dev/null & true");
    let told = ended(&mut fabric.explained(&["sh", "-c", &late]));
    assert!(String::from_utf8_lossy(&told.stderr).contains("0 of this program's"), "{told:?}");
    write(&gate, "now\n");
    await_the_end(&fabric);
    assert_eq!(explained_places(&fabric), Vec::<String>::new());
}

#[test]
fn the_next_run_removes_files_of_killed_runs_and_keeps_those_of_running_ones() {
    let fabric = Fabric::new();
    let waiting = |name: &str| {
        let [gate, here] = ["gate", "here"].map(|what| fabric.place(&format!("{name}-{what}")));
        assert!(ended(&mut fabric.plain(&["mkfifo", &gate])).status.success());
        let script = format!(": > {here}; read word < {gate}; true");
        let running =
            fabric.explained(&["sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let running = running.expect("it starts");
        let group = Group::of(&running);
        eventually("it runs", || fs::exists(&here).expect("looked"));
        (running, group, gate)
    };
    let (mut killed, killed_group, _) = waiting("killed");
    let (living, _, gate) = waiting("living");
    let before = explained_places(&fabric);
    assert_eq!(before.len(), 2, "{before:?}");
    killed_group.end();
    assert_eq!(killed.wait().expect("ours").signal(), Some(9));
    assert!(ended(&mut fabric.explained(&["true"])).status.success());
    let after = explained_places(&fabric);
    assert!(after.len() == 1 && before.contains(&after[0]), "{before:?}, {after:?}");
    write(&gate, "now\n");
    let told = living.wait_with_output().expect("its output");
    assert!(String::from_utf8_lossy(&told.stderr).contains("0 of this program's"), "{told:?}");
    assert_eq!(explained_places(&fabric), Vec::<String>::new());
    await_the_end(&fabric);
}

#[test]
fn wrong_settings_are_refused_before_the_program_starts() {
    let fabric = Fabric::new();
    let started = fabric.place("started");
    let run = |variable: &str, value: &str| {
        let mut command = fabric.carried(&["touch", &started]);
        ended(command.env(variable, value))
    };
    let link = fabric.place("link");
    std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
    let (directory, long) = (fabric.place(""), fabric.place(&"long".repeat(80)));
    for (variable, value, wanted) in [
        ("BYWIRE_SOCKETS_SPIN", "perhaps", "0 forbids to spin before sleeping, and 1 allows it"),
        ("BYWIRE_SOCKETS_IO_URING", "yes", "1 lets the program use io_uring"),
        ("BYWIRE_SOCKETS_CALLS", "few", "the number of calls after which a connection is offered"),
        ("BYWIRE_LOG", &directory, "name a file that you may write, or a new one"),
        ("BYWIRE_LOG", &link, "name a file that you may write, or a new one"),
        ("BYWIRE_LOG", "/no/such/log", "name a file that you may write, or a new one"),
        ("BYWIRE_LOG", &long, "at most 255 bytes"),
    ] {
        let output = run(variable, value);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{variable}={value}")) && said.contains(wanted), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!fs::exists(&started).expect("looked"), "{variable}={value}: the program has run");
    }
    for (variable, value) in [
        ("BYWIRE_SOCKETS_SPIN", ""),
        ("BYWIRE_SOCKETS_SPIN", "0"),
        ("BYWIRE_SOCKETS_SPIN", "1"),
        ("BYWIRE_SOCKETS_IO_URING", "0"),
        ("BYWIRE_SOCKETS_IO_URING", "1"),
        ("BYWIRE_SOCKETS_CALLS", ""),
        ("BYWIRE_SOCKETS_CALLS", "0"),
        ("BYWIRE_LOG", ""),
        ("BYWIRE_LOG", "/dev/null"),
        ("BYWIRE_LOG", &fabric.place("log")),
    ] {
        let output = run(variable, value);
        assert!(output.status.success() && output.stderr.is_empty(), "{variable}={value}: {output:?}");
        fs::remove_file(&started).expect("the program has run");
    }
}

#[test]
fn an_unusable_runtime_directory_is_reported_with_advice() {
    let fabric = Fabric::new();
    let [file, open] = ["file", "open"].map(|name| fabric.place(name));
    write(&file, "");
    fs::create_dir(&open).expect("made");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("chmod");
    let mut relative = fabric.carried(&["sh", "-c", "cd / && ls > /dev/null; true"]);
    let (parent, name) =
        fabric.directory.path().parent().zip(fabric.directory.path().file_name()).expect("both");
    relative.env("BYWIRE_RUNTIME_DIR", name).current_dir(parent);
    let output = ended(&mut relative);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    groups::end_processes_of(std::path::Path::new(name));
    let long = fabric.place(&"long".repeat(25));
    fs::create_dir(&long).expect("made");
    let output = ended(fabric.carried(&["true"]).env("BYWIRE_RUNTIME_DIR", &long));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains(&long) && said.contains("set BYWIRE_RUNTIME_DIR"),
        "{said}"
    );
    // Nothing can be made in the last one, as in a read-only mount.
    for place in [&fabric.place("no/such/directory"), &file, &open, "/proc/sys"] {
        for words in [&["run", "--", "true"][..], &["status"], &["status", "--json"]] {
            let output = ended(fabric.bywire(words).env("BYWIRE_RUNTIME_DIR", place));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
            assert!(
                said.contains(&format!(" {place}")) && said.contains("set BYWIRE_RUNTIME_DIR to"),
                "{said}"
            );
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}

#[test]
fn status_says_that_there_is_no_service() {
    let fabric = Fabric::new();
    let status = |words: &[&str], place: Option<&str>| {
        let mut command = fabric.bywire(&[&["status"], words].concat());
        place.map(|place| command.env("BYWIRE_PAIRING", place));
        let output = ended(&mut command);
        let [told, said] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code(), told, said)
    };
    let (code, told, said) = status(&[], None);
    assert_eq!((code, told.as_str()), (Some(1), ""), "{said}");
    let ways = "`bywire up` starts this machine's node, and `bywire run` the pairing service";
    assert!(
        said.starts_with("bywire: no service runs in /") && said.ends_with(&format!(": {ways}\n")),
        "{said}"
    );
    let (code, told, _) = status(&["--json"], None);
    assert_eq!((code, told.as_str()), (Some(1), "{\"node\":null,\"service\":\"absent\"}\n"));
    // A path that is named wrongly is reported, even if the user's own service answers.
    let place = fabric.place("nowhere");
    let (_, _, said) = status(&[], Some(&place));
    let wanted =
        format!("bywire: BYWIRE_PAIRING={place}: no pairing service listens there; name the socket of a");
    assert!(said.starts_with(&wanted) && said.lines().count() == 1, "{said}");
    assert!(ended(&mut fabric.carried(&["true"])).status.success());
    let (code, told, said) = status(&[], Some(&place));
    assert!(said.starts_with(&wanted) && said.lines().count() == 1, "{said}");
    assert!(code == Some(0) && told.starts_with("0 programs, 0 connections carried now"), "{told}");
    assert_eq!(fabric.status()["service"], "running");
}
