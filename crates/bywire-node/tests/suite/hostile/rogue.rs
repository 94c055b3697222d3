//! A program of another user that attacks the service of its machine in one way.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywire_sys::limits;
use bywire_sys::socket::Socket;
use bywire_sys::udp::UdpSocket;
use bywire_testing::actor::Context;
use bywire_testing::test_network::{FakePort, TIMEOUT, introduction};
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::Security;
use bywire_wire::service::status::Position;
use bywire_wire::service::{Kept, Notice, PACKET_BYTES_MAX, Refusal, Request, VERSION, to_bytes};

use super::honest::become_user;

/// Sockets of a rogue that attacks over many at once.
const SOCKETS: usize = 64;
/// The most connections that a rogue keeps.
const KEPT_MAX: usize = 4000;
/// Ports that a rogue registers.
const PORTS: usize = 16;
/// The most requests that a rogue sends before it looks at the time.
const AT_ONCE: usize = 64;

/// Attacks until the time, and returns how often.
type Manner = fn(&mut Rogue, Instant) -> u64;

/// Every manner, by name, and the ports that a rogue registers for it.
pub const MANNERS: [(&str, usize, Manner); 10] = [
    ("connections that end at once", 0, connections),
    ("connections that say nothing", 0, idlers),
    ("packets that are wrong", 0, garbage),
    ("registrations", PORTS, registrations),
    ("questions for the status, whose answers are not read", 0, questions),
    ("echo requests", 0, echoes),
    ("requests of ports", PORTS, requests),
    ("requests of ports that read nothing", PORTS, unread),
    ("forged ends", PORTS, forgeries),
    ("descriptors", 0, descriptors),
];

pub struct Rogue {
    runtime: PathBuf,
    /// Which of several rogues that attack at the same time.
    number: usize,
    /// The key of the other node.
    node: PublicKey,
    ports: Vec<FakePort>,
    sockets: Vec<Socket>,
    next: u32,
}

/// The role: its user, its number, the key of the other node in hexadecimal digits, the place of its manner, and for how many
/// milliseconds it attacks. It reports that it is ready, starts on a command, and reports the number of its attacks. All rogues
/// start together, because they are one user, and an attack uses up the places of that user.
pub fn attack(context: &mut Context) {
    become_user(context.argument(0));
    let _ = limits::raise_descriptor_limit(8192);
    let key: String = context.argument(2);
    let byte = |at: usize| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).expect("a digit");
    let node = PublicKey(std::array::from_fn(byte));
    let mut rogue = Rogue {
        runtime: context.directory.clone(),
        number: context.argument(1),
        node,
        ports: Vec::new(),
        sockets: Vec::new(),
        next: 0,
    };
    let (_, ports, manner) = MANNERS[context.argument::<usize>(3)];
    rogue.open_ports(ports);
    context.tell("ready");
    let _go = context.hear();
    let until = Instant::now() + Duration::from_millis(context.argument(4));
    context.tell(manner(&mut rogue, until));
    // What it has opened stays until it is killed.
    let _none = context.hear();
}

impl Rogue {
    fn call(&self) -> Option<Socket> {
        let socket = Socket::connect_entry(&self.runtime.join("node"));
        if socket.is_err() {
            // The queue of the service is full, or this process has run out of descriptors.
            std::thread::sleep(Duration::from_micros(100));
        }
        socket.ok()
    }

    /// Reads everything that its ports were told.
    fn read_all(&mut self) {
        for port in &mut self.ports {
            while port.next_within(Duration::ZERO).is_some() {}
        }
    }

    fn udp(&self) -> UdpSocket {
        UdpSocket::bind_everywhere(0).expect("bound")
    }

    fn open_ports(&mut self, count: usize) {
        for number in 0..count {
            let name = format!("rogue{}.{number}", self.number);
            let mut port = FakePort::unregistered(&self.runtime, &name, self.udp());
            port.register(Vec::new());
            let told = port.next_within(TIMEOUT);
            assert!(matches!(told, Some(Notice::Registered { .. })), "{told:?} instead of a registration");
            self.ports.push(port);
        }
    }

    /// Each port sends as many requests as its socket takes. Returns their number.
    fn ask(&mut self, request: impl Fn(u32, usize) -> Request) -> u64 {
        let mut count = 0;
        for port in &self.ports {
            for at in 0..AT_ONCE {
                self.next = self.next.wrapping_add(1);
                let packet = to_bytes(&request(self.next, at)).expect("it fits");
                if port.socket.send(&packet, &[]).is_err() {
                    break;
                }
                count += 1;
            }
        }
        if count == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        count
    }
}

/// Attacks again and again until the time. Each attack gets the number of those before, and returns its own.
fn repeat(until: Instant, mut attack: impl FnMut(u64) -> u64) -> u64 {
    let mut count = 0;
    while Instant::now() < until {
        count += attack(count);
    }
    count
}

fn connections(rogue: &mut Rogue, until: Instant) -> u64 {
    repeat(until, |_| u64::from(rogue.call().is_some()))
}

fn idlers(rogue: &mut Rogue, until: Instant) -> u64 {
    repeat(until, |_| {
        let called = rogue.call();
        let count = u64::from(called.is_some());
        rogue.sockets.extend(called);
        if rogue.sockets.len() >= KEPT_MAX {
            rogue.sockets.drain(..KEPT_MAX / 4);
        }
        count
    })
}

/// A registration of a port, with its connections.
fn registration(name: &str, incarnation: u64, kept: Vec<Kept>) -> Vec<u8> {
    let request = Request::Register {
        version: VERSION,
        port: name.to_owned(),
        incarnation,
        is_reachable: true,
        udp_port: 4000,
        kept,
        is_last: true,
    };
    to_bytes(&request).expect("it fits")
}

/// Complete packets, truncated ones, and random bytes, each on its own connection.
fn garbage(rogue: &mut Rogue, until: Instant) -> u64 {
    let valid = registration("nobody", 1, vec![kept(rogue, 1); 8]);
    repeat(until, |count| {
        let Some(socket) = rogue.call() else { return 0 };
        let sent = match count % 3 {
            0 => socket.send(&valid[..1 + count as usize % (valid.len() - 1)], &[]),
            1 => socket.send(&[0xff; 4096], &[]),
            _ => socket.send(&valid, &[]),
        };
        u64::from(sent.is_ok())
    })
}

/// Repeated registrations of a few ports, each on its own connection.
fn registrations(rogue: &mut Rogue, until: Instant) -> u64 {
    let udp = rogue.udp();
    repeat(until, |count| {
        let Some(socket) = rogue.call() else { return 0 };
        let port = &rogue.ports[count as usize % rogue.ports.len()];
        let kept = (0..20).map(|number| kept(rogue, number)).collect();
        let packet = to_bytes(&port.registration(kept)).expect("it fits");
        let sent = u64::from(socket.send(&packet, &[udp.as_fd()]).is_ok());
        // The first registration of a port ends, so that another one can take its place.
        if (count + sent) % 4 == 0 {
            let place = (count + sent) as usize / 4 % rogue.ports.len();
            rogue.ports[place].socket = socket;
        }
        sent
    })
}

/// Attacks over each of many sockets, as long as there is room in one.
fn over_sockets(rogue: &mut Rogue, until: Instant, mut attack: impl FnMut(&Socket, &mut u64) -> bool) -> u64 {
    repeat(until, |before| {
        let mut count = before;
        while rogue.sockets.len() < SOCKETS && Instant::now() < until {
            rogue.sockets.extend(rogue.call());
        }
        rogue.sockets.retain(|socket| attack(socket, &mut count));
        if count == before {
            std::thread::sleep(Duration::from_micros(200));
        }
        count - before
    })
}

fn questions(rogue: &mut Rogue, until: Instant) -> u64 {
    let question = to_bytes(&Request::Status { version: VERSION, from: Position::Start }).expect("short");
    over_sockets(rogue, until, |socket, count| {
        let mut sent = socket.send(&question, &[]);
        while sent.is_ok() {
            *count += 1;
            sent = socket.send(&question, &[]);
        }
        sent == Err(bywire_sys::Errno::AGAIN)
    })
}

/// Echo requests of every length to a node that answers, one that is down and one that does not exist. Few replies are read.
fn echoes(rogue: &mut Rogue, until: Instant) -> u64 {
    let mut packet = [0; PACKET_BYTES_MAX];
    over_sockets(rogue, until, |socket, count| {
        let node = ["b", "c", "nowhere", "a"][*count as usize % 4].to_owned();
        let bytes = (*count as u16).wrapping_mul(257);
        let request = Request::Ping { version: VERSION, node, request: *count as u32, bytes };
        let sent = socket.send(&to_bytes(&request).expect("short"), &[]);
        *count += u64::from(sent.is_ok());
        if count.is_multiple_of(3) {
            // A reply, or the end of the socket, which the next round finds.
            let _ = socket.receive(&mut packet);
        }
        sent.is_ok() || sent == Err(bywire_sys::Errno::AGAIN)
    })
}

/// Requests of ports: connects to a port that accepts, to a missing port, to a node that is down and to one that does not exist;
/// ends of connections; inquiries about connections.
fn request(number: u32, at: usize) -> Request {
    let connect = |node: &str, port: &str| Request::Connect {
        request: number,
        node: node.to_owned(),
        port: port.to_owned(),
        introduction: introduction(number),
    };
    match at % 8 {
        0 | 1 => connect("b", "accomplice"),
        2 => connect("b", "nobody"),
        3 => connect("c", "nobody"),
        4 => connect("nowhere", "nobody"),
        // Some of the latest connections.
        5 => Request::Release { connection: number.wrapping_sub(256) },
        _ => Request::Inquire { connection: number.wrapping_sub(16 + number % 64) },
    }
}

fn requests(rogue: &mut Rogue, until: Instant) -> u64 {
    repeat(until, |_| {
        let count = rogue.ask(request);
        rogue.read_all();
        count
    })
}

fn unread(rogue: &mut Rogue, until: Instant) -> u64 {
    repeat(until, |_| rogue.ask(request))
}

/// Ends of other ports' connections and offers, by every number, and claims to connections of others.
fn forgeries(rogue: &mut Rogue, until: Instant) -> u64 {
    repeat(until, |_| {
        let mut count = rogue.ask(|number, at| match at % 5 {
            0 => Request::Release { connection: number },
            1 => Request::Accept { offer: number % 4096, introduction: introduction(number) },
            2 => Request::Decline { offer: number % 4096, refusal: Refusal::NotAdmitted },
            3 => Request::Inquire { connection: number },
            _ => Request::Release { connection: number.swap_bytes() },
        });
        for port in &rogue.ports {
            let kept = (0..32).map(|number| kept(rogue, number)).collect();
            let sent = port.socket.send(&registration(&port.name, port.incarnation, kept), &[]);
            count += u64::from(sent.is_ok());
        }
        rogue.read_all();
        count
    })
}

/// Descriptors of several kinds with packets of every kind, on connections that stay open and are never read.
fn descriptors(rogue: &mut Rogue, until: Instant) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let tcp = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (udp, (pipe, _other)) = (rogue.udp(), rustix::pipe::pipe().expect("a pipe"));
    let question = to_bytes(&Request::Status { version: VERSION, from: Position::Start }).expect("short");
    let registration = registration("nobody", 1, Vec::new());
    repeat(until, |before| {
        let Some(socket) = rogue.call() else { return 0 };
        let files = [tcp.as_fd(), udp.as_fd(), pipe.as_fd(), listener.as_fd()];
        let mut count = 0;
        for at in 0..8 {
            let packet = if at % 2 == 0 { &registration } else { &question };
            let first = (before + count) as usize + at;
            let files: Vec<_> = (0..=at % 4).map(|more| files[(first + more) % 4]).collect();
            if socket.send(packet, &files).is_err() {
                break;
            }
            count += 1;
        }
        rogue.sockets.push(socket);
        if rogue.sockets.len() >= SOCKETS {
            rogue.sockets.drain(..SOCKETS / 2);
        }
        count
    })
}

/// A connection that another port may have with the port `echo`.
fn kept(rogue: &Rogue, number: u32) -> Kept {
    Kept {
        connection: number,
        security: Security::Aes256Gcm,
        node: rogue.node,
        peer_port: "echo".to_owned(),
        peer_user: "root".to_owned(),
        peer_incarnation: number.into(),
        peer_connection: number,
        path: std::net::IpAddr::from([10, 78, 0, 2]).into(),
    }
}

/// The key of a node for the command line of a rogue.
pub fn digits(key: &PublicKey) -> String {
    key.0.iter().map(|byte| format!("{byte:02x}")).collect()
}
