//! The kernel's UDP. A message is a datagram, and is lost if the target is too slow.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::socket::{Framing, SocketEnd, greeting, prepare};
use super::{Transport, gone};
use crate::endpoint::{NAP, Received, TIMEOUT};
use crate::plan::{End, Plan};

/// The buffer that every datagram fits into.
const BUFFER_BYTES: usize = 65_536;
/// How long the source waits for the answer to its greeting before it sends it again.
const GREET_AGAIN: Duration = Duration::from_millis(50);

/// UDP over connected sockets.
pub struct Udp;

impl Transport for Udp {
    type Listener = Vec<UdpSocket>;
    type Endpoint = Datagrams;

    fn listen(plan: &Plan) -> Result<(Vec<UdpSocket>, String)> {
        let sockets = (0..plan.lanes())
            .map(|_| open(SocketAddr::new(plan.bind, 0), plan))
            .collect::<Result<Vec<_>>>()?;
        let addresses =
            sockets.iter().map(|socket| Ok(socket.local_addr()?.to_string())).collect::<Result<Vec<_>>>()?;
        Ok((sockets, addresses.join(",")))
    }

    fn accept(sockets: Vec<UdpSocket>, plan: &Plan) -> Result<Vec<Datagrams>> {
        sockets
            .into_iter()
            .enumerate()
            .map(|(lane, socket)| {
                let greeting = greeting(plan, lane);
                let mut buffer = [0; 128];
                loop {
                    // Receives with a time-out end early. The worker's deadline limits the whole.
                    if let Ok((length, peer)) = socket.recv_from(&mut buffer)
                        && buffer[..length] == greeting
                        && is_expected(plan, peer)
                    {
                        socket.connect(peer)?;
                        socket.send(&greeting)?;
                        return end_of(socket, plan, End::Target, lane);
                    }
                }
            })
            .collect()
    }

    fn connect(plan: &Plan, addresses: &str) -> Result<Vec<Datagrams>> {
        let addresses = addresses.split(',').enumerate();
        addresses
            .map(|(lane, address)| {
                let address: SocketAddr = address.parse().context("the target's address is invalid")?;
                let any: SocketAddr =
                    if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
                let socket = open(any, plan)?;
                socket.connect(address)?;
                greet(&socket, &greeting(plan, lane), address)?;
                end_of(socket, plan, End::Source, lane)
            })
            .collect()
    }
}

/// Returns whether this is the expected source. Without this check, a program that knows the cookie could make a target
/// flood a machine that never asked for it.
fn is_expected(plan: &Plan, peer: SocketAddr) -> bool {
    plan.source.is_none_or(|source| source.to_canonical() == peer.ip().to_canonical())
}

fn open(address: SocketAddr, plan: &Plan) -> Result<UdpSocket> {
    let socket =
        UdpSocket::bind(address).with_context(|| format!("cannot open a UDP socket on {}", address.ip()))?;
    prepare(socket.as_fd(), plan)?;
    Ok(socket)
}

fn greet(socket: &UdpSocket, greeting: &[u8], address: SocketAddr) -> Result<()> {
    socket.set_read_timeout(Some(GREET_AGAIN))?;
    let started = Instant::now();
    let mut buffer = [0; 128];
    while started.elapsed() < TIMEOUT {
        socket.send(greeting).with_context(|| format!("cannot send to {address}"))?;
        if let Ok(length) = socket.recv(&mut buffer)
            && buffer[..length] == *greeting
        {
            return Ok(socket.set_read_timeout(Some(NAP))?);
        }
    }
    bail!("the target at {address} does not answer by UDP: is a firewall in between?")
}

/// One end of a pair of connected UDP sockets.
pub type Datagrams = SocketEnd<Datagram>;

/// A message in each datagram.
pub struct Datagram {
    end: End,
    greeting: Vec<u8>,
    send_errors: u64,
}

fn end_of(socket: UdpSocket, plan: &Plan, end: End, lane: usize) -> Result<Datagrams> {
    let framing = Datagram { end, greeting: greeting(plan, lane), send_errors: 0 };
    SocketEnd::new(socket.into(), plan, end, lane, BUFFER_BYTES, framing)
}

/// The result of an attempt to send: done, or to be repeated.
#[inline]
fn sent(end: &mut Datagrams, attempt: rustix::io::Result<usize>) -> Result<bool> {
    match attempt {
        Ok(_) => {
            end.is_filled = false;
            end.calls.sent += 1;
            Ok(true)
        }
        Err(Errno::AGAIN) => Ok(false),
        Err(Errno::NOBUFS) => {
            end.framing.send_errors += 1;
            Ok(false)
        }
        Err(Errno::CONNREFUSED) => Err(gone()),
        Err(errno) => Err(errno).context("send failed"),
    }
}

impl Framing for Datagram {
    const RELIABLE: bool = false;

    #[inline]
    fn push(end: &mut Datagrams, length: usize, flags: SendFlags) -> Result<bool> {
        loop {
            end.calls.made += 1;
            let attempt = send(&end.socket, &end.outgoing[..length], flags);
            if attempt != Err(Errno::INTR) {
                return sent(end, attempt);
            }
        }
    }

    #[inline]
    fn pull(end: &mut Datagrams, flags: RecvFlags) -> Result<Option<Received>> {
        loop {
            end.calls.made += 1;
            let length = match recv(&end.socket, &mut end.incoming[..], flags) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => return Err(gone()),
                Err(errno) => return Err(errno).context("receive failed"),
            };
            let message = &end.incoming[..length];
            if length == end.receive_length {
                end.calls.received += 1;
                return end.reader.read(message).map(Some);
            }
            // A repeated greeting, sent before the source received the answer.
            let Datagram { end: own, greeting, .. } = &end.framing;
            ensure!(
                message == greeting,
                "a message of {length} bytes arrived where {} were due",
                end.receive_length
            );
            if *own == End::Target {
                send(&end.socket, greeting, SendFlags::empty())?;
            }
        }
    }

    fn send_errors(&self) -> u64 {
        self.send_errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Endpoint, Mark};
    use crate::resolution::tests::plan_of;

    #[test]
    fn a_greeting_with_the_cookie_is_accepted_only_from_the_named_address() {
        let source = Some([127, 0, 0, 1].into());
        let plan = Plan { source, cookie: "c".repeat(32), ..plan_of("udp stream") };
        let (sockets, address) = Udp::listen(&plan).unwrap();
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        other.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        // It is first in the queue.
        other.send_to(&greeting(&plan, 0), &address).unwrap();
        std::thread::scope(|scope| {
            let target = scope.spawn(|| Udp::accept(sockets, &plan));
            let mut source = Udp::connect(&plan, &address).unwrap();
            let mut target = target.join().unwrap().unwrap();
            target[0].send(1, Mark::DATA).unwrap();
            assert_eq!(crate::endpoint::receive_in_time(&mut source[0]).unwrap().length, 1);
        });
        assert!(other.recv(&mut [0; 128]).is_err(), "nothing was sent to it");
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:9".parse().unwrap();
        assert!(is_expected(&plan, mapped), "one address in two forms");
    }

    #[test]
    fn a_refused_send_is_counted_and_one_without_room_is_not() {
        let plan = plan_of("udp stream");
        let (mut sockets, _) = Udp::listen(&plan).unwrap();
        let mut end = end_of(sockets.remove(0), &plan, End::Source, 0).unwrap();
        let attempts = [Err(Errno::NOBUFS), Err(Errno::AGAIN), Err(Errno::NOBUFS), Ok(1)];
        let gone = attempts.map(|attempt| sent(&mut end, attempt).unwrap());
        assert_eq!((gone, end.send_errors()), ([false, false, false, true], 2));
        assert!(sent(&mut end, Err(Errno::CONNREFUSED)).is_err());
    }
}
