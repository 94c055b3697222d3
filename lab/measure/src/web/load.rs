//! The load generator: one thread, non-blocking sockets, one request at a time on each connection.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire_analysis::statistics::SplitMix;
use bywire_sys::preloadable::{self, Set};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::documents::{Documents, Trace};
use super::open_load::OpenLoad;
use super::plan::Plan;
use super::response::Response;
use crate::clock::Clock;
use crate::endpoint::TIMEOUT;
use crate::plan::Part;
use crate::workload::block_loop::{buckets, histogram};

const RECEIVE_BYTES: usize = 256 << 10;
/// How long a closed loop sleeps at most before it checks for errors.
const NAP: Duration = Duration::from_millis(100);
/// How long an open loop waits for missing answers after its last request.
const GRACE: Duration = Duration::from_secs(1);

/// A client of a server, with connections that stay open.
pub struct Load {
    set: Set,
    connections: Vec<Connection>,
    documents: Documents,
    requests: Vec<Vec<u8>>,
    trace: Trace,
    /// The place of the next request in the trace.
    next: usize,
    verify: bool,
    /// Sleep, instead of polling, between requests that are due.
    sleeps: bool,
    buffer: Vec<u8>,
    /// The connections that epoll has reported.
    events: Vec<u64>,
    /// When bytes last came, or when a loop began.
    moved_ns: u64,
    clock: Clock,
}

struct Connection {
    socket: OwnedFd,
    response: Response,
    document: u32,
    /// When the request was due and when it was sent. `None` while the connection has no request.
    asked: Option<Asked>,
}

#[derive(Clone, Copy)]
struct Asked {
    due_ns: u64,
    sent_ns: u64,
}

/// A request that has been answered.
struct Answered {
    connection: usize,
    asked: Asked,
    at_ns: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Load {
    /// Opens all connections to the server at `address`: `IP:PORT`, or `unix:PATH`. Fails if no server listens there.
    pub fn connect(plan: &Plan, address: &str) -> Result<Self> {
        let set = Set::new().context("cannot wait for sockets")?;
        let documents = Documents::of(plan);
        let open = |index| {
            let socket = connect(address).with_context(|| format!("cannot connect to {address}"))?;
            set.add(&socket, index).context("cannot wait for sockets")?;
            Ok(Connection { socket, response: Response::default(), document: 0, asked: None })
        };
        let connections = (0..u64::from(plan.connections)).map(open).collect::<Result<_>>()?;
        let request = |document| {
            let path = Documents::path(document);
            format!("GET {path} HTTP/1.1\r\nHost: laboratory\r\n\r\n").into_bytes()
        };
        Ok(Self {
            set,
            connections,
            requests: (0..documents.sizes.len() as u32).map(request).collect(),
            trace: Trace::of(plan, &documents),
            documents,
            next: 0,
            verify: plan.verify,
            sleeps: !plan.carriers.is_empty(),
            buffer: vec![0; RECEIVE_BYTES],
            events: Vec::new(),
            moved_ns: 0,
            clock: Clock::shared(),
        })
    }

    /// The mean length of the requested documents, in bytes.
    pub fn mean_bytes(&self) -> f64 {
        self.trace.mean_bytes(&self.documents)
    }

    /// For this long, sends a request on every connection as soon as the previous one is answered. Then waits for the
    /// missing answers. Every connection is answered at least once. The server does no work for this client before or
    /// afterwards, so the requests, their time and their cost belong together. Round trips in ns are added to
    /// `round_trips`. No connection may have a request before. Fails if the server ends a connection, sends wrong bytes, or
    /// sends nothing for ten seconds.
    pub fn closed(&mut self, duration: Duration, round_trips: &mut Histogram<u64>) -> Result<Part> {
        let began_ns = self.clock.now_ns();
        let until_ns = began_ns + duration.as_nanos() as u64;
        for connection in 0..self.connections.len() {
            self.ask(connection, began_ns)?;
        }
        let mut part = Part::default();
        self.await_answers(|load, answered| {
            part.operations += 1;
            part.seconds = answered.at_ns.saturating_sub(began_ns) as f64 * 1e-9;
            part.sent_bytes += answered.sent_bytes;
            part.received_bytes += answered.received_bytes;
            round_trips.saturating_record(answered.at_ns.saturating_sub(answered.asked.sent_ns));
            match answered.at_ns < until_ns {
                true => load.ask(answered.connection, answered.at_ns),
                false => Ok(()),
            }
        })?;
        Ok(part)
    }

    /// For this long, sends requests at independent random times, `per_second` on average. Then waits a while longer
    /// for the answers. If all connections are taken when a request is due, the request waits for one, and its time
    /// runs. No connection may have a request before, and none has one afterwards.
    ///
    /// It polls, because a client that has to be woken is late and would charge that to the server. Where processes
    /// that carry the packets need its core, it sleeps until a request is due or an answer arrives. Fails as
    /// [`Load::closed`].
    pub fn open(&mut self, per_second: f64, duration: Duration, seed: u64) -> Result<OpenLoad> {
        let mut arrivals = PoissonArrivals::new(per_second, seed);
        let mut idle: Vec<usize> = (0..self.connections.len()).collect();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let give_up_ns = end_ns + (GRACE + duration).as_nanos() as u64;
        let mut due_ns = arrivals.next_after(began_ns);
        let mut open = OpenLoad { intended_per_second: per_second, ..OpenLoad::default() };
        let (mut from_due, mut from_sent) = (histogram(), histogram());
        loop {
            let now_ns = self.clock.now_ns();
            while due_ns <= now_ns && due_ns < end_ns {
                let Some(connection) = idle.pop() else { break };
                self.ask(connection, due_ns)?;
                open.due += 1;
                due_ns = arrivals.next_after(due_ns);
            }
            if now_ns >= give_up_ns || (due_ns >= end_ns && idle.len() == self.connections.len()) {
                break;
            }
            if self.sleeps {
                let free_ns = if idle.is_empty() { give_up_ns } else { due_ns.min(give_up_ns) };
                self.sleep(Duration::from_nanos(free_ns.saturating_sub(self.clock.now_ns())))?;
            }
            self.round(Duration::ZERO, &mut |_, answered| {
                open.answered += 1;
                from_due.saturating_record(answered.at_ns.saturating_sub(answered.asked.due_ns));
                from_sent.saturating_record(answered.at_ns.saturating_sub(answered.asked.sent_ns));
                idle.push(answered.connection);
                open.seconds = answered.at_ns.saturating_sub(began_ns) as f64 * 1e-9;
                Ok(())
            })?;
        }
        // Requests without an answer, and those that were not even sent, count with the time that they have waited.
        let now_ns = self.clock.now_ns();
        for asked in self.connections.iter().filter_map(|connection| connection.asked) {
            from_due.saturating_record(now_ns.saturating_sub(asked.due_ns));
        }
        while due_ns < end_ns {
            open.due += 1;
            from_due.saturating_record(now_ns.saturating_sub(due_ns));
            due_ns = arrivals.next_after(due_ns);
        }
        self.await_answers(|_, _| Ok(()))?;
        Ok(OpenLoad { from_due: buckets(&from_due), from_sent: buckets(&from_sent), ..open })
    }

    /// Waits until no connection has a request, and passes on the answers.
    fn await_answers(&mut self, mut take: impl FnMut(&mut Self, Answered) -> Result<()>) -> Result<()> {
        self.moved_ns = self.clock.now_ns();
        while self.connections.iter().any(|connection| connection.asked.is_some()) {
            self.round(NAP, &mut take)?;
            let silent = Duration::from_nanos(self.clock.now_ns().saturating_sub(self.moved_ns));
            ensure!(silent < TIMEOUT, "the server has sent nothing for {} s", TIMEOUT.as_secs());
        }
        Ok(())
    }

    /// Waits for bytes, and passes on the requests that they answer.
    fn round(
        &mut self,
        timeout: Duration,
        take: &mut impl FnMut(&mut Self, Answered) -> Result<()>,
    ) -> Result<()> {
        match self.set.wait(&mut self.events, timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for sockets"),
        }
        for event in 0..self.events.len() {
            if let Some(answered) = self.attend(event)? {
                take(self, answered)?;
            }
        }
        if !self.events.is_empty() {
            self.moved_ns = self.clock.now_ns();
        }
        Ok(())
    }

    /// Sends the trace's next request on a connection that has none.
    fn ask(&mut self, connection: usize, due_ns: u64) -> Result<()> {
        let document = self.trace.order[self.next];
        self.next = (self.next + 1) % self.trace.order.len();
        let connection = &mut self.connections[connection];
        connection.document = document;
        connection.asked = Some(Asked { due_ns, sent_ns: self.clock.now_ns() });
        send_whole(&connection.socket, &self.requests[document as usize])
    }

    /// Sleeps until an answer arrives or `time` has passed. The limit has a resolution of 1 ns, which epoll's own
    /// time-out does not have.
    fn sleep(&self, time: Duration) -> Result<()> {
        let time = time.min(NAP);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.set, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("cannot wait for sockets"),
        }
    }

    /// Receives once from the connection that an event names.
    fn attend(&mut self, event: usize) -> Result<Option<Answered>> {
        let index = self.events[event] as usize;
        let connection = &mut self.connections[index];
        let length = match preloadable::receive(&connection.socket, &mut self.buffer[..], RecvFlags::DONTWAIT)
        {
            Ok(0) => bail!("the server closed a connection that should stay open"),
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno).context("cannot receive from the server"),
        };
        let asked = connection.asked.context("the server sent an answer without a request")?;
        let document = connection.document;
        let size = self.documents.sizes[document as usize];
        let (documents, verify) = (&self.documents, self.verify);
        let whole = connection.response.take(&self.buffer[..length], size, |offset, bytes| match verify {
            true => documents.check(document, offset, bytes),
            false => Ok(()),
        })?;
        if !whole {
            return Ok(None);
        }
        connection.asked = None;
        Ok(Some(Answered {
            connection: index,
            asked,
            at_ns: self.clock.now_ns(),
            sent_bytes: self.requests[document as usize].len() as u64,
            received_bytes: size,
        }))
    }
}

fn connect(address: &str) -> Result<OwnedFd> {
    let Some(path) = address.strip_prefix("unix:") else {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        return Ok(stream.into());
    };
    let stream = UnixStream::connect(path)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// Sends a whole request. It normally fits the socket's empty buffer. Otherwise this waits for room.
fn send_whole(socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    let started = Instant::now();
    while !bytes.is_empty() {
        match preloadable::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) => {
                ensure!(started.elapsed() < TIMEOUT, "the server accepts no request");
                preloadable::poll(socket, PollFlags::OUT, NAP)?;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot send to the server"),
        }
    }
    Ok(())
}

/// The times of a Poisson process: random, with exponentially distributed gaps.
struct PoissonArrivals {
    mean_ns: f64,
    random: SplitMix,
}

impl PoissonArrivals {
    fn new(per_second: f64, seed: u64) -> Self {
        Self { mean_ns: 1e9 / per_second, random: SplitMix::new(seed) }
    }

    fn next_after(&mut self, moment_ns: u64) -> u64 {
        let gap_ns = -self.mean_ns * (1.0 - self.random.share()).ln();
        // Rounded up, so that time always advances.
        moment_ns + gap_ns as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const DOCUMENT_BYTES: u64 = 1024;

    /// A client of a server that stops once for `stall`, after this many answers.
    fn client(stall_after: u64, stall: Duration) -> Load {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut body =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {DOCUMENT_BYTES}\r\n\r\n").into_bytes();
            body.resize(body.len() + DOCUMENT_BYTES as usize, b'x');
            let mut buffer = [0; 4096];
            for answers in 1.. {
                if stream.read(&mut buffer).unwrap_or(0) == 0 {
                    return;
                }
                if answers == stall_after {
                    std::thread::sleep(stall);
                }
                if stream.write_all(&body).is_err() {
                    return;
                }
            }
        });
        let request = format!("web web-file --connections 1 --size {DOCUMENT_BYTES}");
        Load::connect(&Plan::of(&Request::of_words(&request).unwrap()).unwrap(), &address).unwrap()
    }

    /// The number of requests that took longer.
    fn slower(times: &[(u64, u64)], than_ms: u64) -> u64 {
        times.iter().filter(|(ns, _)| *ns > 1_000_000 * than_ms).map(|(_, count)| count).sum()
    }

    #[test]
    fn a_stall_is_charged_to_all_requests_due_meanwhile() {
        // 100 a second for a second: about 40 are due during the stall, and one was sent before it.
        let mut load = client(20, Duration::from_millis(400));
        let open = load.open(100.0, Duration::from_secs(1), 5).unwrap();
        assert!(open.due > 60 && open.answered == open.due, "{open:?}");
        let [from_due, from_sent] = [&open.from_due, &open.from_sent].map(|times| slower(times, 100));
        assert!(from_due >= 10, "{from_due} of {}", open.due);
        assert!(from_due > from_sent, "coordinated omission is there to be told");
    }

    #[test]
    fn a_permanent_stall_is_charged() {
        let mut load = client(3, Duration::from_secs(4));
        let open = load.open(200.0, Duration::from_millis(500), 5).unwrap();
        assert!(open.answered < open.due, "{open:?}");
        assert_eq!(slower(&open.from_due, 0), open.due, "each one has a time");
        assert!(2 * slower(&open.from_due, 500) > open.due);
        // The missing answers have been drained, so the next loop begins with connections that have no request.
        let mut round_trips = histogram();
        let closed = load.closed(Duration::from_millis(50), &mut round_trips).unwrap();
        assert_eq!(closed.operations, round_trips.len());
        assert!(closed.operations > 0 && closed.received_bytes == closed.operations * DOCUMENT_BYTES);
    }

    #[test]
    fn a_closed_loop_ends_after_every_response() {
        // An answer need not come within the loop's time, nor within one sleep.
        let mut load = client(1, Duration::from_millis(300));
        for _ in 0..3 {
            let mut round_trips = histogram();
            let closed = load.closed(Duration::from_millis(1), &mut round_trips).unwrap();
            assert!(closed.operations > 0 && closed.operations == round_trips.len(), "{closed:?}");
            assert!(load.connections.iter().all(|connection| connection.asked.is_none()));
        }
    }

    #[test]
    fn arrivals_have_the_requested_rate() {
        let mut arrivals = PoissonArrivals::new(1e6, 9);
        let last = (0..100_000).fold(0, |moment, _| arrivals.next_after(moment));
        assert!((98_000_000..102_000_000).contains(&last), "{last} ns for 100,000 of 1 µs");
    }
}
