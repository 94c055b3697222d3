//! What `bywire run --explain`, `BYWIRE_LOG` and `bywire status` tell.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use crate::packages::have;
use crate::{Fabric, await_listener, ended, port, start, text, write};

const FILE_BYTES: usize = 300_000;

#[test]
fn what_became_of_connections_is_told_on_standard_error_and_nowhere_else() {
    if !have(&[("python3", "python3"), ("curl", "curl")]) {
        return;
    }
    let fabric = Fabric::new();
    write(fabric.place("file"), text(3, FILE_BYTES));
    let port = port();
    let server =
        ["python3", "-m", "http.server", "-b", "127.0.0.1", "--protocol", "HTTP/1.1", &port.to_string()];
    let _server = start(fabric.carried(&server).current_dir(fabric.directory.path()));
    await_listener(port);
    let url = format!("http://127.0.0.1:{port}/file");
    let log = fabric.place("log");
    let bywire = [env!("CARGO_BIN_EXE_bywire"), "run", "--explain", "--"];
    let asked = |times: usize| {
        let words = [&bywire[..], &["curl", "-s", "-S"], &vec![url.as_str(); times]].concat();
        ended(fabric.plain(&words).env("BYWIRE_LOG", &log))
    };

    let many = asked(20);
    assert!(many.status.success() && many.stdout.len() == 20 * FILE_BYTES, "{many:?}");
    let told = String::from_utf8_lossy(&many.stderr);
    assert!(
        told.starts_with("bywire: 1 of this program's ends of connections were carried, 0 were not\n"),
        "{told}"
    );
    assert!(told.contains(&format!("to 127.0.0.1:{port}: ")) && told.contains("in memory"), "{told}");

    // The log that was asked for stays, and another run tells of itself alone.
    assert!(fs::read_to_string(&log).expect("a log").contains(" carried 127.0.0.1:"));
    let closed = ended(&mut fabric.plain(&[&bywire[..], &["curl", "-s", "http://127.0.0.1:1/"]].concat()));
    assert_eq!(closed.status.code(), Some(7), "curl's own: {closed:?}");
    assert!(String::from_utf8_lossy(&closed.stderr).contains("0 of this program's"), "{closed:?}");

    let killed = ended(&mut fabric.plain(&[&bywire[..], &["sh", "-c", "kill -9 $$"]].concat()));
    assert_eq!(killed.status.signal(), Some(9));
    // What it is sent reaches the program, which ends as it likes.
    let ends = ["sh", "-c", "trap 'exit 3' USR1 INT; kill -USR1 $PPID; while :; do sleep 0.1; done"];
    let told = ended(&mut fabric.plain(&[&bywire[..], &ends].concat()));
    assert_eq!(told.status.code(), Some(3), "{told:?}");
    // Nothing is said unless it is asked for.
    let silent = ended(&mut fabric.carried(&["curl", "-s", "-o", "/dev/null", &url]));
    assert!(silent.status.success() && silent.stderr.is_empty(), "{silent:?}");
}

#[test]
fn what_cannot_be_run_ends_as_shells_end_it_and_what_cannot_be_loaded_is_refused() {
    let fabric = Fabric::new();
    let runs = |words: &[&str]| {
        let output = ended(&mut fabric.plain(&[&[env!("CARGO_BIN_EXE_bywire"), "run"], words].concat()));
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
    for name in ["a blank", "a:colon", "$LIB"] {
        let place = fabric.place(name);
        fs::create_dir(&place).expect("a directory");
        let words = [env!("CARGO_BIN_EXE_bywire"), "run", "--", "true"];
        let output = ended(fabric.plain(&words).env("BYWIRE_RUNTIME_DIR", &place));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("cannot be told to the loader"), "{said}");
    }
}

#[test]
fn an_end_that_saw_a_reset_is_told_as_well() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let fabric = Fabric::new();
    let port = port();
    // It answers, and then closes with bytes unread.
    let server = format!(
        "import socket\nl=socket.create_server(('127.0.0.1',{port}))\nl.accept()[0].close()\nc=l.accept()[0]\n\
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
    let words = [env!("CARGO_BIN_EXE_bywire"), "run", "--explain", "--", "python3", "-c", &client];
    let told = ended(&mut fabric.plain(&words));
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success() && said.contains(" bytes sent, "), "{said}");
}
