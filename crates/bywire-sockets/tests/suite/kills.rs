//! Killing either end of a carried connection, also during its cut-over, or the service causes no wrong byte, no hang
//! and no lost connection.
//!
//! Random: `BYWIRE_ROUNDS`, 40, and 1,000 in a soak; of the service 12 and 120.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywire_testing::repetitions;

use crate::test_service::roles::in_role;
use crate::test_service::{self, TestService};

/// A survivor that takes longer hangs: it checks the kernel at least once a second.
const TIMEOUT: Duration = Duration::from_secs(40);
/// The test that has all roles.
const TEST: &str = "a_killed_end_causes_no_wrong_byte_and_no_hang";
/// The exit status of a survivor that has seen a wrong byte.
const WRONG: i32 = 42;
/// The exit status of a talker that lost its peer before it had sent everything.
const LOST: i32 = 43;

#[test]
fn a_killed_end_causes_no_wrong_byte_and_no_hang() {
    if test_service::plays(&[("echo", echo), ("talk", talk), ("pair", pair)]) {
        return;
    }
    let pairing = TestService::new();
    let rounds = repetitions("BYWIRE_ROUNDS", [40, 40, 1000]);
    let mut carried = 0;
    for round in 0..rounds {
        let (mut server, port) = start_echo(&pairing, round % 5);
        let mut client = role(&pairing, "talk", port, round % 5);
        let mut delay_us = 8000 + round * 7919 % 40_000;
        if round % 4 < 2 {
            // These were certainly carried.
            test_service::eventually("it is carried", || pairing.status().carried_ever > carried);
            delay_us %= 5000;
        }
        std::thread::sleep(Duration::from_micros(delay_us));
        let (killed, survivor) =
            if round % 2 == 0 { (&mut server, &mut client) } else { (&mut client, &mut server) };
        killed.kill().expect("killed");
        killed.wait().expect("gone");
        // A server whose client was killed before it connected would wait for one, and then for its end. The port of a
        // killed server is free for others.
        if round % 2 == 1 {
            drop(TcpStream::connect(("127.0.0.1", port)));
        }
        ends_well(survivor, round);
        carried = pairing.status().carried_ever;
    }
    let status = pairing.status();
    println!("{} of {rounds} rounds were carried", status.carried_ever);
    assert!(status.carried_ever > rounds / 4, "too few were carried for this to prove anything: {status:?}");
    test_service::eventually("nobody is left", || pairing.status().processes == 0);
}

#[test]
fn a_writer_killed_during_the_cut_over_ends_its_stream() {
    let pairing = TestService::new();
    let Some(torn) = pairing.compiled("torn.c", "torn.so", &["-shared", "-fPIC"]) else { return };
    for round in 0..5 {
        let (mut server, port) = start_echo(&pairing, round);
        let preloaded = format!("{} {}", TestService::library().display(), torn.display());
        let mut client =
            command(&pairing, "talk", port, round).env("LD_PRELOAD", preloaded).spawn().expect("an end");
        assert_eq!(end_of(&mut client, round).signal(), Some(libc::SIGKILL), "round {round}");
        ends_well(&mut server, round);
    }
}

#[test]
fn a_killed_service_ends_no_connection() {
    let pairing = TestService::without_service();
    let rounds = repetitions("BYWIRE_ROUNDS", [12, 12, 120]);
    let mut carried = 0;
    for round in 0..rounds {
        let mut service = role(&pairing, "pair", 0, 0);
        let end = Instant::now() + TIMEOUT;
        while bywire_pairing::status::query(&pairing.service).is_err() {
            assert!(Instant::now() < end, "round {round}: no service");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut server, port) = start_echo(&pairing, round % 5);
        let mut client = command(&pairing, "talk", port, round % 5)
            .env("BYWIRE_TEST_TALKS", "600")
            .spawn()
            .expect("an end");
        std::thread::sleep(Duration::from_micros(2000 + round * 7919 % 40_000));
        let mut is_carried = false;
        while !is_carried {
            let is_over = client.try_wait().expect("ours").is_some();
            is_carried =
                bywire_pairing::status::query(&pairing.service).is_ok_and(|status| status.carried_ever > 0);
            if is_over || round % 2 == 0 {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        carried += u32::from(is_carried);
        service.kill().expect("killed");
        service.wait().expect("gone");
        ends_well(&mut client, round);
        ends_well(&mut server, round);
    }
    println!("{carried} of {rounds} rounds were carried before the service was killed");
    assert!(carried > 0, "none was carried, which proves nothing");
}

fn start_echo(pairing: &TestService, calls: u64) -> (Child, u16) {
    let mut server = role(pairing, "echo", 0, calls);
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().expect("piped"));
    while !line.starts_with("port ") {
        line.clear();
        assert!(output.read_line(&mut line).expect("the server says its port") > 0);
    }
    // It continues to write, and would fail without a reader.
    server.stdout = Some(output.into_inner());
    let port = line.trim_start_matches("port ").trim().parse().expect("a port");
    (server, port)
}

/// The service itself, until it is killed.
fn pair() {
    let path = std::env::var_os("BYWIRE_TEST_SERVICE").expect("a path");
    let mut service =
        bywire_pairing::service::Service::start(path.as_ref(), bywire_pairing::user::Scope::User)
            .expect("a service");
    service.serve(Duration::from_secs(600)).expect("served");
}

fn role(pairing: &TestService, role: &str, port: u16, calls: u64) -> Child {
    command(pairing, role, port, calls).spawn().expect("an end")
}

fn command(pairing: &TestService, role: &str, port: u16, calls: u64) -> Command {
    // The service runs without the library.
    let calls = (role != "pair").then_some(calls);
    let mut command = pairing.command(std::env::current_exe().expect("this test"), calls);
    in_role(&mut command, TEST, role)
        .env("BYWIRE_TEST_PORT", port.to_string())
        .env("BYWIRE_TEST_SERVICE", &pairing.service)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn end_of(survivor: &mut Child, round: u64) -> std::process::ExitStatus {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = survivor.try_wait().expect("ours") {
            return status;
        }
        if Instant::now() > end {
            survivor.kill().expect("killed");
            panic!("round {round}: the survivor hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// It has seen no wrong byte, and was not killed.
fn ends_well(survivor: &mut Child, round: u64) {
    let status = end_of(survivor, round);
    assert!(status.code() != Some(WRONG), "round {round}: a wrong byte");
    assert_eq!(status.code(), Some(0), "round {round}: {status}");
}

/// Echoes what it gets, and exits with its peer.
fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    println!("\nport {}", listener.local_addr().expect("an address").port());
    std::io::stdout().flush().expect("said");
    let (mut peer, _) = listener.accept().expect("accept");
    let mut buffer = vec![0; 40_000];
    while let Ok(received @ 1..) = peer.read(&mut buffer) {
        if peer.write_all(&buffer[..received]).is_err() {
            return;
        }
    }
}

/// Sends a stream of known bytes, and checks the echo.
fn talk() {
    let port = test_service::told_port();
    let Ok(mut peer) = TcpStream::connect(("127.0.0.1", port)) else { return };
    let byte = |position: u64| (position.wrapping_mul(0x9E37_79B9) >> 13) as u8;
    let mut position = 0u64;
    let talks = std::env::var("BYWIRE_TEST_TALKS").ok().map(|talks| talks.parse::<u64>().expect("a number"));
    let give_up = || {
        if talks.is_some() {
            std::process::exit(LOST)
        }
    };
    for round in 1u64.. {
        if talks.is_some_and(|talks| round > talks) {
            return;
        }
        let length = [1, 60, 5000, 30_000][round as usize % 4];
        let sent: Vec<u8> = (position..position + length).map(byte).collect();
        if peer.write_all(&sent).is_err() {
            return give_up();
        }
        let mut got = vec![0; length as usize];
        let mut filled = 0;
        while filled < got.len() {
            match peer.read(&mut got[filled..]) {
                Ok(received @ 1..) => filled += received,
                _ => break,
            }
        }
        if got[..filled] != sent[..filled] {
            std::process::exit(WRONG);
        }
        if filled < got.len() {
            return give_up();
        }
        position += length;
    }
}
