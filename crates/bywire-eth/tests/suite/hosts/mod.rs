//! Hosts: unnamed network namespaces, each with one interface of the fabric. They disappear when the test ends.
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bywire_eth::address::MacAddress;
use bywire_eth::interface::Plan;
use bywire_eth::network::{Launch, Network};
use bywire_eth::order::{CarrierSettings, PeerReport};
use bywire_sys::namespace::{Namespace, NamespaceName};
use bywire_testing::eventually;
use bywire_testing::here::{has_taps, namespace};

/// The name of every interface.
pub const INTERFACE: &str = "by0";
/// The timeout of every step.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// The default settings.
pub const SETTINGS: CarrierSettings =
    CarrierSettings { coalesce: true, spin_us: 50, storm_frames_per_second: 50_000, hold_back_ms: 50 };

/// A network namespace.
pub struct Host {
    /// The namespace, kept open.
    pub namespace: Namespace,
    /// Its number among the hosts, from 1.
    pub number: u8,
}

/// Makes `count` hosts. Returns `None`, with the reason printed, if this machine cannot.
pub fn hosts(count: u8) -> Option<Vec<Host>> {
    if !has_taps() {
        return None;
    }
    (1..=count).map(|number| Some(Host { namespace: namespace()?, number })).collect()
}

/// Makes interfaces in all hosts, in one process.
pub fn connect(hosts: &[Host], mtu_bytes: u32, settings: CarrierSettings) -> Network {
    connect_with(hosts, mtu_bytes, settings, 1)
}

/// Carries them with this number of loops. Each interface has a queue for each loop.
pub fn connect_with(hosts: &[Host], mtu_bytes: u32, settings: CarrierSettings, loops: usize) -> Network {
    let mut network = Network::start(&Launch::Thread, loops, settings).expect("a network");
    for host in hosts {
        network.add(host.plan(mtu_bytes)).expect("an interface");
    }
    network
}

/// A network with one interface that connects to the other networks of the same test.
pub fn node(host: &Host, mtu_bytes: u32, directory: &Path, loops_count: usize) -> Network {
    let mut network = Network::start(&Launch::Thread, loops_count, SETTINGS).expect("a network");
    network.add(host.plan(mtu_bytes)).expect("an interface");
    network.join("test", &format!("node{}", host.number), directory).expect("joined");
    network
}

/// The peers, as soon as `count` of them have introduced themselves to every loop of the network.
pub fn met(network: &mut Network, count: usize) -> Vec<PeerReport> {
    eventually("all have introduced themselves", || {
        let peers = network.peers().expect("an answer");
        let is_told =
            |peer: &&PeerReport| !peer.interfaces.is_empty() && peer.loops_count == network.loops_count();
        (peers.iter().filter(is_told).count() == count).then_some(peers)
    })
}

/// The processes that carry frames between hosts.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// One process.
    Within,
    /// A process for each host.
    Between,
}

/// Interfaces in all hosts. They exist as long as this value.
pub struct Joined {
    /// One network, or one for each host.
    pub networks: Vec<Network>,
    _directory: tempfile::TempDir,
}

/// Connects all hosts.
pub fn join(hosts: &[Host], link: Link, mtu_bytes: u32) -> Joined {
    let directory = tempfile::tempdir().expect("a directory");
    let mut networks = match link {
        Link::Within => vec![connect(hosts, mtu_bytes, SETTINGS)],
        Link::Between => hosts.iter().map(|host| node(host, mtu_bytes, directory.path(), 1)).collect(),
    };
    if let Link::Between = link {
        for network in &mut networks {
            met(network, hosts.len() - 1);
        }
    }
    Joined { networks, _directory: directory }
}

impl Host {
    /// The plan of its interface, with an IPv4 address, and an IPv6 address if the MTU allows.
    pub fn plan(&self, mtu_bytes: u32) -> Plan {
        let addresses = [format!("10.77.0.{}/24", self.number), format!("fd77::{}/64", self.number)];
        let usable = if mtu_bytes < 1280 { &addresses[..1] } else { &addresses[..] };
        Plan {
            namespace: NamespaceName::Path(
                format!("/proc/self/fd/{}", self.namespace.as_fd().as_raw_fd()).into(),
            ),
            name: INTERFACE.to_owned(),
            mac: MacAddress::of_node(&format!("host {}", self.number)),
            addresses: usable.iter().map(|text| text.parse().expect("a cidr")).collect(),
            mtu_bytes,
            bridge: None,
            queues_count: 1,
            reaches_machines: false,
        }
    }

    /// Its IPv4 address with a port.
    pub fn ipv4(&self, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 77, 0, self.number], port))
    }

    /// Its IPv6 address with a port.
    pub fn ipv6(&self, port: u16) -> SocketAddr {
        SocketAddr::from(([0xfd77, 0, 0, 0, 0, 0, 0, self.number.into()], port))
    }

    /// Runs a function in the host.
    pub fn inside<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(action).expect("a thread inside")
    }

    /// Has the kernel use IPv6 addresses of later interfaces at once. It would look for duplicates for a second or two.
    pub fn trust_addresses(&self) {
        self.inside(|| std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0")).expect("allowed");
    }

    /// Runs `ip` in the host.
    pub fn ip(&self, arguments: &str) {
        if let Err(said) = self.try_ip(arguments) {
            panic!("ip {arguments}: {said}");
        }
    }

    /// Like [`Host::ip`], but returns what `ip` prints when it fails.
    pub fn try_ip(&self, arguments: &str) -> Result<(), String> {
        let output = self.inside(|| Command::new("ip").args(arguments.split(' ')).output());
        let output = output.expect("`ip` of iproute2");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
    }
}

/// A TCP connection between two hosts: its ends in `from` and in `to`.
pub fn tcp(from: &Host, to: &Host, address: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = to.inside(|| {
        // An IPv6 address is tentative for a second or two.
        persist(|| TcpListener::bind(address))
    });
    let near = from.inside(|| persist(|| TcpStream::connect_timeout(&address, Duration::from_secs(5))));
    // Connections that were given up are accepted first. A link-local address has another scope number at each end.
    let place = |address: SocketAddr| (address.ip(), address.port());
    let own = place(near.local_addr().expect("an address"));
    let mut all = listener.incoming().map(|far| far.expect("accepted"));
    let far = all.find(|far| far.peer_addr().is_ok_and(|address| place(address) == own)).expect("it comes");
    for end in [&near, &far] {
        end.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        end.set_write_timeout(Some(TIMEOUT)).expect("a time-out");
    }
    (near, far)
}

/// A UDP socket in a host.
pub fn udp(host: &Host, address: SocketAddr) -> UdpSocket {
    let socket = host.inside(|| persist(|| UdpSocket::bind(address)));
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    socket
}

/// Echoes one datagram. A datagram may be lost, so a few attempts are made.
pub fn echo(near: &UdpSocket, far: &UdpSocket, to: SocketAddr, bytes: &[u8]) {
    let mut buffer = vec![0; 65_536];
    for _ in 0..5 {
        near.send_to(bytes, to).expect("sent");
        let Ok((length, from)) = far.recv_from(&mut buffer) else { continue };
        assert_eq!(&buffer[..length], bytes);
        far.send_to(bytes, from).expect("sent back");
        let Ok((length, _)) = near.recv_from(&mut buffer) else { continue };
        return assert_eq!(&buffer[..length], bytes);
    }
    panic!("a datagram of {} bytes never came back", bytes.len());
}

/// Repeats an action until it succeeds.
pub fn persist<T>(mut action: impl FnMut() -> std::io::Result<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match action() {
            Ok(value) => return value,
            Err(error) if Instant::now() > deadline => panic!("it never worked: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Byte `index` of the stream of `seed`.
pub fn byte_at(seed: u64, index: usize) -> u8 {
    let word = (index as u64 ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word >> 56) as u8
}

/// Sends `length` bytes in both directions at once, and compares every byte.
pub fn exchange(near: &TcpStream, far: &TcpStream, length: usize) {
    std::thread::scope(|scope| {
        for (seed, from, to) in [(1, near, far), (2, far, near)] {
            scope.spawn(move || send(from, seed, length));
            scope.spawn(move || receive(to, seed, length));
        }
    });
}

/// Sends a stream.
pub fn send(mut stream: &TcpStream, seed: u64, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|index| byte_at(seed, index)).collect();
    stream.write_all(&bytes).expect("sent");
}

/// Receives a stream, and compares every byte.
pub fn receive(mut stream: &TcpStream, seed: u64, length: usize) {
    let mut buffer = vec![0; 256 * 1024];
    let mut received = 0;
    while received < length {
        let count = match stream.read(&mut buffer) {
            Ok(0) => panic!("the stream ended after {received} bytes of {length}"),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("{error} after {received} bytes of {length}"),
        };
        let wrong = (0..count).find(|index| buffer[*index] != byte_at(seed, received + index));
        assert_eq!(wrong.map(|index| received + index), None, "a byte is wrong");
        received += count;
    }
}
