//! Either end killed at any moment: no byte is wrong, and nobody waits for ever.

mod world;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use world::World;

const ROUNDS: u64 = 100;
/// A survivor that takes longer hangs: it looks at the kernel once a second at the latest.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a survivor that has seen a wrong byte ends with.
const WRONG: i32 = 42;

#[test]
fn a_killed_end_costs_nobody_a_wrong_byte_or_a_hang() {
    match std::env::var("BYWIRE_TEST_ROLE").as_deref() {
        Ok("echo") => return echo(),
        Ok("talk") => return talk(),
        _ => {}
    }
    let world = World::new();
    let rounds = std::env::var("BYWIRE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    for round in 0..rounds {
        let mut server = role(&world, "echo", 0, round % 5);
        let mut line = String::new();
        let mut output = BufReader::new(server.stdout.take().expect("piped"));
        while !line.starts_with("port ") {
            line.clear();
            assert!(output.read_line(&mut line).expect("the server says its port") > 0);
        }
        let port: u16 = line.trim_start_matches("port ").trim().parse().expect("a port");
        let mut client = role(&world, "talk", port, round % 5);
        std::thread::sleep(Duration::from_micros(8000 + round * 7919 % 40_000));
        let (killed, survivor) =
            if round % 2 == 0 { (&mut server, &mut client) } else { (&mut client, &mut server) };
        killed.kill().expect("killed");
        killed.wait().expect("gone");
        let status = end_of(survivor, round);
        assert!(status.code() != Some(WRONG), "round {round}: a wrong byte");
    }
    let status = world.status();
    println!("{} of {rounds} rounds were carried", status.carried_ever);
    assert!(status.carried_ever > rounds / 4, "too few were carried for this to prove anything: {status:?}");
    assert_eq!(status.processes, 0, "nobody is left");
}

fn role(world: &World, role: &str, port: u16, calls: u64) -> Child {
    world
        .command(std::env::current_exe().expect("this test"), Some(calls))
        .args(["--exact", "a_killed_end_costs_nobody_a_wrong_byte_or_a_hang", "--nocapture"])
        .env("BYWIRE_TEST_ROLE", role)
        .env("BYWIRE_TEST_PORT", port.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("an end")
}

fn end_of(survivor: &mut Child, round: u64) -> std::process::ExitStatus {
    let end = Instant::now() + PATIENCE;
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

/// Gives back what it gets, and ends with its peer.
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

/// Sends a stream whose every byte is known, and checks what comes back.
fn talk() {
    let port = std::env::var("BYWIRE_TEST_PORT").expect("a port").parse::<u16>().expect("a number");
    let Ok(mut peer) = TcpStream::connect(("127.0.0.1", port)) else { return };
    let byte = |position: u64| (position.wrapping_mul(0x9E37_79B9) >> 13) as u8;
    let mut position = 0u64;
    for round in 1u64.. {
        let length = [1, 60, 5000, 30_000][round as usize % 4];
        let sent: Vec<u8> = (position..position + length).map(byte).collect();
        if peer.write_all(&sent).is_err() {
            return;
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
            return;
        }
        position += length;
    }
}
