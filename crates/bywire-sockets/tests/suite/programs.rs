//! curl and Python, unmodified, over carried connections and against plain peers. Python's `subprocess` and asyncio
//! keep connections carried and handlers set.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use bywire_testing::Guarded;

use crate::test_service::{self, TestService};

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        println!("not run: {program} is not installed");
    }
    found
}

/// The first line that a program writes.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    line
}

fn python(pairing: &TestService, script: &str, arguments: &[&str]) -> Command {
    let mut command = pairing.command("python3", Some(2));
    command.args(["-u", "-c", script]).args(arguments).stdout(Stdio::piped());
    command
}

#[test]
fn curl_fetches_files_from_pythons_server() {
    if !has("curl") || !has("python3") {
        return;
    }
    let pairing = TestService::new();
    let directory = tempfile::tempdir().expect("a directory");
    let bytes: Vec<u8> = (0..20_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(directory.path().join("file"), &bytes).expect("a file");
    let script = "import http.server as h, functools\n\
        s = h.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(h.SimpleHTTPRequestHandler))\n\
        print(s.server_port)\ns.serve_forever()";
    let mut server = python(&pairing, script, &[]);
    let mut server =
        Guarded(server.current_dir(directory.path()).stderr(Stdio::null()).spawn().expect("a server"));
    let port = first_line(&mut server.0).trim().to_owned();
    let fetch = |calls| {
        let mut client = pairing.command("curl", calls);
        let output = client.args(["-s", &format!("http://127.0.0.1:{port}/file")]).output().expect("curl");
        assert!(output.status.success() && output.stdout == bytes, "{calls:?}: {}", output.stdout.len());
    };
    [Some(0), Some(3), None].into_iter().for_each(fetch);
    // A service that is slow for a moment has missed them.
    test_service::eventually("one is carried", || {
        (pairing.status().carried_ever > 0).then_some(()).or_else(|| {
            fetch(Some(0));
            None
        })
    });
}

#[test]
fn pythons_event_loop_talks_to_threads_that_block() {
    if !has("python3") {
        return;
    }
    let pairing = TestService::new();
    let serve = "import asyncio\n\
        async def one(r, w):\n\
        \x20   while d := await r.read(65536):\n\
        \x20       w.write(d)\n\
        \x20       await w.drain()\n\
        \x20   w.close()\n\
        async def main():\n\
        \x20   s = await asyncio.start_server(one, '127.0.0.1', 0)\n\
        \x20   print(s.sockets[0].getsockname()[1])\n\
        \x20   await s.serve_forever()\n\
        asyncio.run(main())";
    let talk = "import socket, sys, threading, os\n\
        bad = []\n\
        def one(n):\n\
        \x20   c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        \x20   told = lambda: c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)\n\
        \x20   kernels = lambda: (told()[200:208], told()[128:136])\n\
        \x20   for i in range(200000):\n\
        \x20       before = kernels()\n\
        \x20       m = os.urandom((i * 7919 * n) % 9000 + 1)\n\
        \x20       c.sendall(m)\n\
        \x20       g = b''\n\
        \x20       while len(g) < len(m):\n\
        \x20           g += c.recv(65536)\n\
        \x20       if g != m: bad.append(n)\n\
        \x20       if i > 300 and kernels() == before: break\n\
        \x20   c.shutdown(socket.SHUT_WR)\n\
        \x20   if c.recv(1) != b'': bad.append(n)\n\
        t = [threading.Thread(target=one, args=(n,)) for n in range(1, 9)]\n\
        [x.start() for x in t]; [x.join() for x in t]\n\
        print('bad', bad)";
    let mut server = Guarded(python(&pairing, serve, &[]).spawn().expect("a server"));
    let port = first_line(&mut server.0).trim().to_owned();
    let output = python(&pairing, talk, &[&port]).output().expect("clients");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "bad []");
    assert_eq!(pairing.status().carried_ever, 8, "{:?}", pairing.status());
}

/// Python makes the processes of `subprocess` by `vfork`, closes their files and resets their handlers.
#[test]
fn a_program_that_starts_others_keeps_its_connection_and_its_handlers() {
    if !has("python3") {
        return;
    }
    let pairing = TestService::new();
    let serve = "import socket\nl = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1])\n\
        c, _ = l.accept()\n\
        while d := c.recv(100): c.sendall(d)";
    let talk = "import asyncio, os, signal, socket, subprocess, sys\n\
        c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        told = lambda: c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)\n\
        kernels = lambda: (told()[200:208], told()[128:136])\n\
        for i in range(200000):\n\
        \x20   before = kernels()\n\
        \x20   c.sendall(b'ping')\n\
        \x20   assert c.recv(100) == b'ping'\n\
        \x20   if i > 50 and kernels() == before: break\n\
        seen = []\n\
        signal.signal(signal.SIGUSR1, lambda *_: seen.append('handled'))\n\
        signal.signal(signal.SIGPIPE, lambda *_: seen.append('handled'))\n\
        for i in range(5):\n\
        \x20   p = subprocess.run(['sh', '-c', 'read a; echo $a; exit 3'], input=b'word\\n', stdout=subprocess.PIPE)\n\
        \x20   assert (p.returncode, p.stdout) == (3, b'word\\n')\n\
        try: subprocess.run(['/nowhere/at/all'])\n\
        except FileNotFoundError: seen.append('not found')\n\
        async def start():\n\
        \x20   p = await asyncio.create_subprocess_exec('cat', stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n\
        \x20   assert (await p.communicate(b'word'))[0] == b'word'\n\
        asyncio.run(start())\n\
        os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGPIPE)\n\
        c.sendall(b'pong')\n\
        assert c.recv(100) == b'pong'\n\
        print(*seen, 'carried' if kernels() == before else 'not carried', sep=', ')";
    let mut server = Guarded(python(&pairing, serve, &[]).spawn().expect("a server"));
    let port = first_line(&mut server.0).trim().to_owned();
    let output = python(&pairing, talk, &[&port]).output().expect("a client");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "not found, handled, handled, carried");
}

#[test]
fn a_program_without_the_library_is_an_ordinary_peer() {
    if !has("python3") {
        return;
    }
    let pairing = TestService::new();
    let serve = "import socket\nl = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1])\n\
        c, _ = l.accept()\n\
        while d := c.recv(100): c.sendall(d)";
    let talk = "import socket, sys\nc = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        for i in range(500):\n\
        \x20   c.sendall(b'%d' % i)\n\
        \x20   assert c.recv(100) == b'%d' % i\n\
        print('fine')";
    let mut server = Guarded(python(&pairing, serve, &[]).spawn().expect("a server"));
    let port = first_line(&mut server.0).trim().to_owned();
    let mut client = Command::new("python3");
    let output = client.args(["-c", talk, &port]).output().expect("a client");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "fine");
    assert_eq!(pairing.status().carried_ever, 0);
}

/// A client that talks until the kernel counts no more bytes in either direction, then sends something and pauses. What it
/// does next follows.
const SLOW_CLIENT: &str = "import os, signal, socket, sys, time\n\
    c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
    told = lambda: c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)\n\
    kernels = lambda: (told()[200:208], told()[128:136])\n\
    for i in range(200000):\n\
    \x20   before = kernels()\n\
    \x20   c.sendall(b'ping')\n\
    \x20   assert c.recv(100) == b'ping'\n\
    \x20   if i > 50 and kernels() == before: break\n\
    c.sendall(b'stop')\n\
    c.sendall(b'early')\n\
    time.sleep(2.5)\n";

/// Exchanges bytes with the client until both ends are carried, and leaves what is sent afterwards unread.
const SERVER: &str = "import socket, subprocess, sys, time\n\
    l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1])\n\
    c, _ = l.accept()\n\
    while c.recv(4) == b'ping': c.sendall(b'ping')\n\
    time.sleep(0.3)\n\
    heir = 'import socket, sys\\ns = socket.socket(fileno=%s)\\nd = b\"\"\\n\\\n\
    while len(d) < 9: d += s.recv(100)\\ns.sendall(d)\\ns.shutdown(1)'\n";

fn inherits(script: &str) {
    if !has("python3") {
        return;
    }
    let pairing = TestService::new();
    let script = format!("{SERVER}{script}");
    let mut server = Guarded(python(&pairing, &script, &[]).spawn().expect("a server"));
    let port = first_line(&mut server.0).trim().to_owned();
    let client = format!(
        "{SLOW_CLIENT}c.sendall(b'late')\nprint(c.recv(100).decode(), c.recv(100).decode() or 'end')"
    );
    let output = python(&pairing, &client, &[&port]).output().expect("a client");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "earlylate end");
    assert_eq!(pairing.status().carried_ever, 1);
}

#[test]
fn a_program_that_is_started_inherits_a_carried_connection_while_its_peer_is_away() {
    inherits(
        "p = subprocess.Popen([sys.executable, '-c', heir % 0], stdin=c, env={'PATH': '/usr/bin:/bin'})\n\
         c.close()\np.wait()",
    );
}

#[test]
fn a_program_without_the_library_is_passed_a_carried_connection_while_its_peer_is_away() {
    inherits(
        "a, b = socket.socketpair()\n\
         take = 'import socket\\nf = socket.recv_fds(socket.socket(fileno=0), 9, 1)[1][0]\\n'\n\
         p = subprocess.Popen([sys.executable, '-c', take + heir % 'f'], stdin=b, env={'PATH': '/usr/bin:/bin'})\n\
         socket.send_fds(a, [b'x'], [c.fileno()])\n\
         c.close()\np.wait()",
    );
}

#[test]
fn bytes_that_a_killed_peer_could_not_return_cause_a_reset() {
    if !has("python3") {
        return;
    }
    let pairing = TestService::new();
    let script = format!(
        "{SERVER}\
        look = 'import socket\\ns = socket.socket(fileno=0)\\n\\\n\
        try: print(\"got\", s.recv(100))\\n\\\n\
        except ConnectionResetError: print(\"reset\")'\n\
        p = subprocess.Popen([sys.executable, '-c', look], stdin=c, env={{'PATH': '/usr/bin:/bin'}})\n\
        c.close()\np.wait()"
    );
    let mut server = Guarded(python(&pairing, &script, &[]).spawn().expect("a server"));
    let mut said = BufReader::new(server.0.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a port");
    let port = line.trim().to_owned();
    // It is killed before it can return what nobody has read.
    let client = format!("{SLOW_CLIENT}os.kill(os.getpid(), signal.SIGKILL)");
    let status = python(&pairing, &client, &[&port]).status().expect("a client");
    assert!(!status.success());
    line.clear();
    said.read_line(&mut line).expect("what the heir saw");
    assert_eq!(line.trim(), "reset");
    assert_eq!(pairing.status().carried_ever, 1);
}
