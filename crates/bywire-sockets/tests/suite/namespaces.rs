//! Network namespaces that a bridge joins are carried only if the service's configuration says that their addresses
//! mean the same, and a third one with the same addresses gets nothing. Needs root.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bywire_pairing::protocol::{SERVICE_VARIABLE, Verdict};
use bywire_pairing::space::Spaces;
use bywire_testing::protocol_client::ProtocolClient;

use crate::test_service::{self, Running, TestService};

const ROUNDS: u32 = 800;
const CLIENT: [u8; 4] = [10, 99, 0, 1];
const SERVER: [u8; 4] = [10, 99, 0, 2];
/// The number of the network's use is added: ended connections hold their addresses for a while.
const CLIENT_PORT: u16 = 5000;
const SERVER_PORT: u16 = 6000;
/// Set before `bind`.
const REUSE: i32 = libc::SO_REUSEADDR;

/// A network namespace that exists as long as this value.
struct Apart(Child);

impl Drop for Apart {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

impl Apart {
    fn new() -> Option<Self> {
        let inside = "echo; exec sleep 600";
        let child =
            Command::new("unshare").args(["--net", "sh", "-c", inside]).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                println!("not run: `unshare` of util-linux: {error}");
                return None;
            }
        };
        let said = child.stdout.take().expect("piped").read(&mut [0]).expect("read");
        let apart = Self(child);
        if said == 0 {
            println!("not run: no network namespace can be made here");
            return None;
        }
        apart.run("ip link set lo up").then_some(apart)
    }

    fn number(&self) -> String {
        self.0.id().to_string()
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.number(), "--"]);
        command
    }

    /// `false`, with a message: not possible here.
    fn run(&self, words: &str) -> bool {
        let output = self.enter().args(words.split(' ')).output();
        let is_done = output.as_ref().is_ok_and(|output| output.status.success());
        if !is_done {
            println!("not run: `{words}`: {output:?}");
        }
        is_done
    }

    /// Runs a role of this test in this namespace, with the library.
    fn role(&self, pairing: &TestService, role: &str) -> Command {
        let this = pairing.program(role, Some(4));
        let mut command = self.enter();
        for (name, value) in this.get_envs() {
            if let Some(value) = value
                && name != "LD_PRELOAD"
            {
                command.env(name, value);
            }
        }
        // `nsenter` itself must not have it.
        command.arg("env").arg(format!("LD_PRELOAD={}", TestService::library().display()));
        command.arg(this.get_program()).args(this.get_args()).stdin(Stdio::piped());
        command
    }
}

/// Two hosts on a bridge, and a third one with the same addresses.
fn network() -> Option<[Apart; 4]> {
    let hosts = [Apart::new()?, Apart::new()?, Apart::new()?, Apart::new()?];
    let [client, server, stranger, bridge] = &hosts;
    let mut is_done = bridge.run("ip link add br0 type bridge") && bridge.run("ip link set br0 up");
    for (name, host, address) in [("one", client, CLIENT), ("other", server, SERVER)] {
        let address = SocketAddr::from((address, 0)).ip();
        is_done = is_done
            && bridge.run(&format!("ip link add {name} type veth peer name eth0 netns {}", host.number()))
            && bridge.run(&format!("ip link set {name} master br0 up"))
            && host.run(&format!("ip addr add {address}/24 dev eth0"))
            && host.run("ip link set eth0 up");
        is_done = is_done && stranger.run(&format!("ip addr add {address}/32 dev lo"));
    }
    is_done.then_some(hosts)
}

#[test]
fn only_namespaces_that_are_named_together_are_carried() {
    if test_service::plays(&[("serve", serve), ("talk", talk), ("steal", steal)]) || !test_service::is_root()
    {
        return;
    }
    let Some([client, server, stranger, _bridge]) = network() else { return };
    let place = |apart: &Apart| format!("pid:{}", apart.number()).parse().expect("a place");
    let named = vec![vec![place(&client), place(&server)]];
    let apart = vec![vec![place(&client)], vec![place(&server)]];
    for (round, (joined, carried)) in [(named, 1), (apart, 0), (vec![], 0)].into_iter().enumerate() {
        let pairing = TestService::of_machine(Spaces::new(joined).expect("spaces"));
        // It comes first, with a connection of the same addresses.
        let start = |place: &Apart, role| {
            let mut command = place.role(&pairing, role);
            command.env("BYWIRE_TEST_ROUND", round.to_string());
            Running::start(command.env("BYWIRE_TEST_CARRIED", carried.to_string()))
        };
        let mut thief = start(&stranger, "steal");
        assert_eq!(thief.hear(), "there");
        let mut serving = start(&server, "serve");
        assert_eq!(serving.hear(), "listens");
        let mut talking = start(&client, "talk");
        assert_eq!(talking.hear(), "right");
        let found = pairing.status();
        assert_eq!((found.carried, found.carried_ever), (carried, carried), "{found:?}");
        drop(thief.child.stdin.take());
        assert_eq!(thief.hear(), "nothing");
        drop(talking.child.stdin.take());
        assert!(talking.end().success() && serving.end().success());
    }
}

fn serve() {
    let listener = listening();
    test_service::say("listens");
    let (mut peer, _) = listener.accept().expect("accept");
    test_service::give_back(&mut peer, || true);
}

fn talk() {
    let mut peer = connected();
    test_service::converse(&mut peer, ROUNDS);
    if test_service::told("BYWIRE_TEST_CARRIED") != "0" {
        test_service::until_carried(peer.as_raw_fd(), || test_service::converse(&mut peer, 1));
    }
    test_service::say("right");
    let _end = std::io::stdin().read(&mut [0]);
}

/// Has a connection of the same two addresses, and offers both of its ends.
fn steal() {
    let listener = listening();
    let near = connected();
    let (far, _) = listener.accept().expect("accept");
    let service = test_service::told(SERVICE_VARIABLE);
    // Offers the mirror of either end of the other connection, one after the other: together they would be a pair.
    let mut offered = None;
    for end in [&near, &far] {
        drop(offered);
        let stranger = ProtocolClient::new(Path::new(&service));
        stranger.offer(1, end.as_fd());
        assert_eq!(stranger.verdict(1), Verdict::Waiting);
        offered = Some(stranger);
    }
    test_service::say("there");
    let _told = std::io::stdin().read(&mut [0]);
    let heard = offered.expect("the last one").look();
    assert!(heard.is_none(), "not even a word: {heard:?}");
    test_service::say("nothing");
}

fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: (port + test_service::told("BYWIRE_TEST_ROUND").parse::<u16>().expect("a number")).to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
        sin_zero: [0; 8],
    }
}

fn bound(ip: [u8; 4], port: u16) -> i32 {
    let (ours, one) = (address(ip, port), 1i32);
    // SAFETY: live structures of the lengths given.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        libc::setsockopt(fd, libc::SOL_SOCKET, REUSE, (&raw const one).cast(), 4);
        assert_eq!(libc::bind(fd, (&raw const ours).cast(), size_of_val(&ours) as u32), 0, "{ip:?}:{port}");
        fd
    }
}

fn listening() -> TcpListener {
    let listener = bound(SERVER, SERVER_PORT);
    // SAFETY: a bound socket of ours.
    unsafe {
        assert_eq!(libc::listen(listener, 8), 0);
        TcpListener::from_raw_fd(listener)
    }
}

fn connected() -> TcpStream {
    let (fd, theirs) = (bound(CLIENT, CLIENT_PORT), address(SERVER, SERVER_PORT));
    // SAFETY: a live structure of the length given; the descriptor is nobody else's.
    unsafe {
        assert_eq!(libc::connect(fd, (&raw const theirs).cast(), size_of_val(&theirs) as u32), 0);
        TcpStream::from_raw_fd(fd)
    }
}
