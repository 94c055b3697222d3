//! Machines for tests: network namespaces with a service each, connected by a bridge, and fake ports that speak the service's
//! protocol. Dropping the values removes everything.
pub mod stopwatch;
pub mod usage;

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywire::{Port, PortOptions};
use bywire_node::fabric::{FILE_NAME, Fabric, Node};
use bywire_node::service::{Options, Service, ServiceError};
use bywire_node::{client, file, key};
use bywire_sys::namespace::Namespace;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::udp::UdpSocket;
use bywire_wire::handshake::PublicKey;
use bywire_wire::service::status::Entry;
use bywire_wire::service::{self, Introduction, Kept, Notice, PACKET_BYTES_MAX, Request, Terms, VERSION};

use crate::eventually;
use crate::here::namespace;

/// Whatever a test waits for comes within this time, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Machines on one bridge, numbered from 0. Their names are `a`, `b` and so on.
pub struct TestNetwork {
    pub machines: Vec<Machine>,
    bridge: Namespace,
}

/// One machine.
pub struct Machine {
    pub name: String,
    pub namespace: Namespace,
    pub address: SocketAddr,
    pub key: PublicKey,
    /// With the configuration in `etc` and the runtime directory in `run`.
    pub directory: tempfile::TempDir,
    pub boot_id: [u8; 16],
    pub service: Option<Running>,
}

/// A service on a thread of its own, inside its machine's namespace.
pub struct Running {
    stop: Option<UnixStream>,
    reload: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// Its log.
    said: Mutex<mpsc::Receiver<String>>,
}

impl TestNetwork {
    /// This many machines that know each other, without services. `None` where this machine cannot make them, after the
    /// reason has been printed.
    pub fn without_services(count: usize) -> Option<Self> {
        let bridge = namespace()?;
        ip(&bridge, "link add br0 type bridge");
        ip(&bridge, "link set br0 up");
        let machines: Vec<Machine> = (0..count).map(|number| Machine::new(&bridge, number)).collect();
        let network = Self { machines, bridge };
        let all = network.fabric();
        network.machines.iter().for_each(|machine| machine.write(&all));
        Some(network)
    }

    /// The same, with a service on each.
    pub fn up(count: usize) -> Option<Self> {
        Self::up_with(count, true)
    }

    /// The same, encrypted or plain.
    pub fn up_with(count: usize, is_encrypted: bool) -> Option<Self> {
        let mut network = Self::without_services(count)?;
        let fabric = Fabric { is_encrypted, ..network.fabric() };
        network.machines.iter().for_each(|machine| machine.write(&fabric));
        network.machines.iter_mut().for_each(Machine::start);
        Some(network)
    }

    /// Takes the link of a machine up or down.
    pub fn set_cable(&self, number: usize, is_in: bool) {
        ip(&self.bridge, &format!("link set to{number} {}", if is_in { "up" } else { "down" }));
    }

    /// From now on the link of a machine silently drops packets that are longer than this.
    pub fn shorten_packets(&self, number: usize, bytes: usize) {
        // Otherwise the kernel would pass coalesced packets whole.
        self.machines.iter().for_each(|machine| ip(&machine.namespace, "link set eth0 gso_max_segs 1"));
        ip(&self.bridge, &format!("link set to{number} mtu {bytes}"));
    }

    /// The fabric of all.
    pub fn fabric(&self) -> Fabric {
        let nodes = self.machines.iter().map(|machine| Node {
            name: machine.name.clone(),
            addresses: vec![machine.address.to_string().parse().expect("an address")],
            key: machine.key,
            is_bridge: false,
        });
        Fabric { name: "lab".to_owned(), serial: 1, keeper: None, is_encrypted: true, nodes: nodes.collect() }
    }
}

impl Machine {
    fn new(bridge: &Namespace, number: usize) -> Self {
        let namespace = Namespace::fresh().expect("another one");
        let path = path(&namespace);
        ip(bridge, &format!("link add to{number} type veth peer name eth0 netns {path}"));
        ip(bridge, &format!("link set to{number} master br0 up"));
        let address = SocketAddr::from(([10, 78, 0, number as u8 + 1], 7248));
        ip(&namespace, "link set lo up");
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("etc")).expect("made");
        std::fs::create_dir(directory.path().join("run")).expect("made");
        let key = key::make(&directory.path().join("etc").join(key::FILE_NAME)).expect("a key").public();
        let name = char::from(b'a' + number as u8).to_string();
        let boot_id = [number as u8; 16];
        let machine = Self { name, namespace, address, key, directory, boot_id, service: None };
        machine.configure_interface();
        machine
    }

    /// Configures the address of its interface `eth0`.
    pub fn configure_interface(&self) {
        ip(&self.namespace, &format!("address add {}/24 dev eth0", self.address.ip()));
        ip(&self.namespace, "link set eth0 up");
    }

    /// Adds an address that the fabric file does not know.
    pub fn add_address(&self, address: std::net::IpAddr) {
        ip(&self.namespace, &format!("address add {address}/24 dev eth0"));
    }

    /// Removes its interface `eth0`.
    pub fn take_out_cable(&self) {
        ip(&self.namespace, "link delete eth0");
    }

    /// Has its firewall let only answers in: packets of this machine have left for their sender before. Returns `false` where no
    /// rules can be made, after the reason has been printed.
    pub fn lets_only_answers_in(&self) -> bool {
        let rules = "table inet filter {\n chain input {\n type filter hook input priority 0; policy drop;\n \
                     ct state established accept\n }\n}\n";
        let path = self.directory.path().join("rules");
        std::fs::write(&path, rules).expect("written");
        let nft = || Command::new("nft").arg("-f").arg(&path).status();
        let is_done = self.namespace.run(nft).expect("inside").is_ok_and(|status| status.success());
        if !is_done {
            println!("not run: no rules can be made here: apt-get install nftables");
        }
        is_done
    }

    pub fn runtime(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    pub fn configuration(&self) -> PathBuf {
        self.directory.path().join("etc")
    }

    /// Replaces its fabric file.
    pub fn write(&self, fabric: &Fabric) {
        self.write_text(&fabric.to_string());
    }

    /// Replaces its fabric file by this text.
    pub fn write_text(&self, text: &str) {
        file::replace(&self.configuration().join(FILE_NAME), text).expect("written");
    }

    /// Starts its service.
    pub fn start(&mut self) {
        let options = Options {
            configuration: self.configuration(),
            runtime_directory: Some(self.runtime()),
            udp_port: self.address.port(),
            boot_id: self.boot_id,
        };
        let (stop, stopped) = UnixStream::pair().expect("a pair");
        let (reload, reloaded) = UnixStream::pair().expect("a pair");
        let (say, said) = mpsc::channel();
        let (begun, beginning) = mpsc::channel();
        let namespace = self.namespace.as_fd().try_clone_to_owned().expect("a copy");
        let path = format!("/proc/self/fd/{}", namespace.as_raw_fd());
        let thread = std::thread::spawn(move || {
            let place = bywire_sys::namespace::NamespaceName::Path(path.into());
            let inside = Namespace::open(&place).expect("it is open");
            drop(namespace);
            let serve = || {
                let say = |line: &str| drop(say.send(line.to_owned()));
                let service = started(&options, &say);
                begun.send(()).expect("the test waits");
                service.run(&stopped, &reloaded).expect("it ends well");
            };
            inside.run(serve).expect("it is a namespace");
        });
        beginning.recv_timeout(TIMEOUT).expect("it begins");
        self.service =
            Some(Running { stop: Some(stop), reload, thread: Some(thread), said: Mutex::new(said) });
    }

    /// Ends its service.
    pub fn stop(&mut self) {
        self.service.take().expect("it runs");
    }

    /// Makes its service read the fabric file again. Returns the line in its log.
    pub fn reload(&self) -> String {
        let service = self.service.as_ref().expect("it runs");
        (&service.reload).write_all(b"!").expect("it listens");
        service.said.lock().expect("nobody panicked").recv_timeout(TIMEOUT).expect("it says what it has read")
    }

    /// The lines that its service has logged since they were last read.
    pub fn said(&self) -> Vec<String> {
        let service = self.service.as_ref().expect("it runs");
        service.said.lock().expect("nobody panicked").try_iter().collect()
    }

    /// The entries that `bywire status` gets.
    pub fn status(&self) -> Vec<Entry> {
        client::status(Some(&self.runtime())).expect("a status")
    }

    /// Its status of another node.
    pub fn status_of(&self, node: &str) -> service::status::Node {
        let found = self.status().into_iter().find_map(|entry| match entry {
            Entry::Node(found) if found.name == node => Some(found),
            _ => None,
        });
        found.expect("it is in the fabric")
    }

    /// A counter of another node.
    pub fn count_of(&self, node: &str, counter: &str) -> u64 {
        let counters = self.status_of(node).counters;
        counters.iter().find(|(name, _)| name == counter).expect("there is one").1
    }

    /// A counter of packets from unknown senders.
    pub fn strangers(&self, counter: &str) -> u64 {
        let Some(Entry::Service(found)) = self.status().into_iter().next() else { panic!("it comes first") };
        found.strangers.iter().find(|(name, _)| name == counter).expect("there is one").1
    }
}

/// A service. A child process of a concurrent test has the sockets of the last one until its `exec`.
fn started<'a>(options: &Options, say: &'a dyn Fn(&str)) -> Service<'a> {
    let began = Instant::now();
    loop {
        match Service::start(options, say) {
            Err(ServiceError::PortTaken(_) | ServiceError::Running(_)) if began.elapsed() < TIMEOUT / 2 => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome.expect("it begins"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The service sees the end of the stream.
        self.stop.take();
        let ended = self.thread.take().expect("it is joined once").join();
        if !std::thread::panicking() {
            ended.expect("it ended well");
        }
    }
}

/// The path of a namespace for commands.
pub fn path(namespace: &Namespace) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

/// Runs `ip` inside a namespace.
pub fn ip(namespace: &Namespace, arguments: &str) {
    let run = || Command::new("ip").args(arguments.split(' ')).output().expect("`ip` runs");
    let done = namespace.run(run).expect("it is a namespace");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A port that knows the protocol and nothing else.
pub struct FakePort {
    /// Owns the name.
    _port: Port,
    pub name: String,
    pub socket: Socket,
    pub udp: UdpSocket,
    pub incarnation: u64,
    pub notices: VecDeque<Notice>,
}

impl FakePort {
    /// A port that is registered and can be reached.
    pub fn open(machine: &Machine, name: &str) -> Self {
        let udp = machine.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound");
        let mut fake_port = Self::unregistered(&machine.runtime(), name, udp);
        fake_port.register(Vec::new());
        let node = machine.name.clone();
        assert_eq!(fake_port.next(), Notice::Registered { node });
        fake_port
    }

    pub fn unregistered(runtime: &Path, name: &str, udp: UdpSocket) -> Self {
        let options = PortOptions {
            name: Some(name.parse().expect("a name")),
            runtime_directory: Some(runtime.to_owned()),
            ..PortOptions::default()
        };
        let mut incarnation = [0; 8];
        bywire_sys::process::random(&mut incarnation).expect("random numbers");
        Self {
            _port: Port::open(options).expect("open"),
            name: name.to_owned(),
            socket: call(runtime),
            udp,
            incarnation: u64::from_ne_bytes(incarnation),
            notices: VecDeque::new(),
        }
    }

    /// Registers, with its existing connections.
    pub fn register(&mut self, kept: Vec<Kept>) {
        let request = self.registration(kept);
        let packet = service::to_bytes(&request).expect("it fits");
        // A service under attack takes no descriptors before it accepts the socket.
        eventually("the service takes a descriptor", || {
            self.socket.send(&packet, &[self.udp.as_fd()]).is_ok()
        });
    }

    pub fn registration(&self, kept: Vec<Kept>) -> Request {
        Request::Register {
            version: VERSION,
            port: self.name.clone(),
            incarnation: self.incarnation,
            is_reachable: true,
            udp_port: self.udp.local_address().expect("bound").port(),
            kept,
            is_last: true,
        }
    }

    /// Connects to the next service, and registers with its existing connections.
    pub fn call_again(&mut self, machine: &Machine, kept: Vec<Kept>) {
        self.socket = call(&machine.runtime());
        self.register(kept);
        let node = machine.name.clone();
        assert_eq!(self.next(), Notice::Registered { node });
    }

    pub fn send(&self, request: &Request) {
        self.socket.send(&service::to_bytes(request).expect("it fits"), &[]).expect("sent");
    }

    pub fn connect(&self, request: u32, node: &str, port: &str, connection: u32) {
        let (node, port) = (node.to_owned(), port.to_owned());
        let introduction = introduction(connection);
        self.send(&Request::Connect { request, node, port, introduction });
    }

    /// The next notice.
    #[expect(clippy::should_implement_trait, reason = "a service that says nothing is a fault and no end")]
    pub fn next(&mut self) -> Notice {
        self.next_within(TIMEOUT).expect("a notice arrives")
    }

    /// The next notice. `None` after the timeout, or if the socket is closed.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Notice> {
        let deadline = Instant::now() + timeout;
        let mut poller = bywire_sys::poller::Poller::new().expect("a poller");
        poller.add(&self.socket, 0).expect("watched");
        loop {
            let mut packet = [0; PACKET_BYTES_MAX];
            match self.socket.receive(&mut packet).expect("received") {
                Received::Packet(length, _) => {
                    return Some(service::from_bytes(&packet[..length]).expect("a notice"));
                }
                Received::Nothing => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    poller.wait(Some(left)).expect("waited");
                }
                Received::Closed => return None,
            }
        }
    }

    /// Accepts the next offer.
    pub fn accept(&mut self, connection: u32) -> Box<Terms> {
        let Notice::Offer { offer, .. } = self.next() else { panic!("no offer") };
        self.send(&Request::Accept { offer, introduction: introduction(connection) });
        self.established()
    }

    pub fn established(&mut self) -> Box<Terms> {
        match self.next() {
            Notice::Established(terms) => terms,
            other => panic!("{other:?}"),
        }
    }

    /// A connection to another fake port.
    pub fn meet(&mut self, connection: u32, node: &str, other: &mut Self, its: u32) -> [Box<Terms>; 2] {
        self.connect(connection, node, &other.name.clone(), connection);
        let theirs = other.accept(its);
        [self.established(), theirs]
    }
}

/// A connection to a machine's service.
pub fn call(runtime: &Path) -> Socket {
    // The queue of the service may be full.
    eventually("a service", || Socket::connect_entry(&runtime.join("node")).ok())
}

pub fn introduction(connection: u32) -> Introduction {
    Introduction { connection, message_bytes_max: 1 << 20, integrity: false, windows: [1 << 16; 3] }
}

/// The description of an existing connection for the next service.
pub fn kept(connection: u32, terms: &Terms) -> Kept {
    let service::Identity { key, port, user, incarnation, .. } = terms.peer.clone();
    Kept {
        connection,
        security: terms.security,
        node: key,
        peer_port: port,
        peer_user: user,
        peer_incarnation: incarnation,
        peer_connection: terms.introduction.connection,
        path: terms.path.machines(),
    }
}
