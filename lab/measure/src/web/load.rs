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

use super::documents::Documents;
use super::plan::Plan;
use super::response::Response;
use super::trace::Trace;
use crate::clock::Clock;
use crate::endpoint::TIMEOUT;
use crate::workload::block_loop::histogram;

/// The most bytes that one call receives.
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
    /// The request for each document.
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

/// The result of a closed loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// The time up to the last answer.
    pub elapsed_ns: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// The bytes of these requests.
    pub sent_bytes: u64,
    /// The bytes of the documents in the answers.
    pub received_bytes: u64,
}

/// The result of an open loop.
#[derive(Clone, Debug)]
pub struct Open {
    /// Requests that became due.
    pub due: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// From the time of the first request to the last answer.
    pub elapsed_ns: u64,
    /// For each request, the time from when it was due to its answer, in ns. A request without an answer counts with
    /// the time that it waited.
    pub from_due: Histogram<u64>,
    /// For each answered request, the time from when it was sent: what a client sees that sends the next request only
    /// after the last answer.
    pub from_sent: Histogram<u64>,
}

impl Load {
    /// Opens all connections to the server at `address`: `IP:PORT`, or `unix:PATH`.
    ///
    /// # Errors
    /// No server listens there.
    pub fn connect(plan: &Plan, address: &str) -> Result<Self> {
        let set = Set::new().context("cannot wait for sockets")?;
        let documents = Documents::of(plan);
        let connections: Vec<Connection> = (0..plan.connections)
            .map(|_| {
                let socket = connect(address).with_context(|| format!("cannot connect to {address}"))?;
                Ok(Connection { socket, response: Response::default(), document: 0, asked: None })
            })
            .collect::<Result<_>>()?;
        for (index, connection) in connections.iter().enumerate() {
            set.add(&connection.socket, index as u64).context("cannot wait for sockets")?;
        }
        let request = |document| {
            let path = Documents::path(document);
            format!("GET {path} HTTP/1.1\r\nHost: laboratory\r\n\r\n").into_bytes()
        };
        Ok(Self {
            set,
            connections,
            requests: (0..documents.sizes().len() as u32).map(request).collect(),
            trace: Trace::of(plan, &documents),
            documents,
            next: 0,
            verify: plan.verify,
            sleeps: !plan.carriers.is_empty(),
            buffer: vec![0; RECEIVE_BYTES],
            events: Vec::new(),
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
    /// `round_trips`. No connection may have a request before.
    ///
    /// # Errors
    /// The server ends a connection, sends wrong bytes, or sends nothing for ten seconds.
    pub fn closed(&mut self, duration: Duration, round_trips: &mut Histogram<u64>) -> Result<Closed> {
        let began_ns = self.clock.now_ns();
        let until_ns = began_ns + duration.as_nanos() as u64;
        for connection in 0..self.connections.len() {
            self.ask(connection, began_ns)?;
        }
        let mut waiting = self.connections.len();
        let mut closed = Closed::default();
        let mut moved_ns = began_ns;
        while waiting > 0 {
            self.wait(NAP)?;
            for event in 0..self.events.len() {
                let Some(answered) = self.attend(event)? else { continue };
                closed.answered += 1;
                closed.elapsed_ns = answered.at_ns.saturating_sub(began_ns);
                closed.sent_bytes += answered.sent_bytes;
                closed.received_bytes += answered.received_bytes;
                round_trips.saturating_record(answered.at_ns.saturating_sub(answered.asked.sent_ns));
                if answered.at_ns < until_ns {
                    self.ask(answered.connection, answered.at_ns)?;
                } else {
                    waiting -= 1;
                }
            }
            let now_ns = self.clock.now_ns();
            if !self.events.is_empty() {
                moved_ns = now_ns;
            }
            ensure_alive(now_ns, moved_ns)?;
        }
        Ok(closed)
    }

    /// For this long, sends requests at independent random times, `per_second` on average. Then waits a while longer
    /// for the answers. If all connections are taken when a request is due, the request waits for one, and its time
    /// runs. No connection may have a request before, and none has one afterwards.
    ///
    /// It polls, because a client that has to be woken is late and would charge that to the server. Where processes
    /// that carry the packets need its core, it sleeps until a request is due or an answer arrives.
    ///
    /// # Errors
    /// As [`Load::closed`].
    pub fn open(&mut self, per_second: f64, duration: Duration, seed: u64) -> Result<Open> {
        let mut arrivals = PoissonArrivals::new(per_second, seed);
        let mut idle: Vec<usize> = (0..self.connections.len()).collect();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let give_up_ns = end_ns + (GRACE + duration).as_nanos() as u64;
        let mut due_ns = arrivals.next_after(began_ns);
        let mut open =
            Open { due: 0, answered: 0, elapsed_ns: 0, from_due: histogram(), from_sent: histogram() };
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
            self.wait(Duration::ZERO)?;
            for event in 0..self.events.len() {
                let Some(answered) = self.attend(event)? else { continue };
                open.answered += 1;
                open.from_due.saturating_record(answered.at_ns.saturating_sub(answered.asked.due_ns));
                open.from_sent.saturating_record(answered.at_ns.saturating_sub(answered.asked.sent_ns));
                idle.push(answered.connection);
                open.elapsed_ns = answered.at_ns.saturating_sub(began_ns);
            }
        }
        self.charge_unanswered(&mut open, due_ns, end_ns, &mut arrivals);
        self.drain()?;
        Ok(open)
    }

    /// Counts requests without an answer, and those that were not even sent, with the time that they have waited.
    fn charge_unanswered(
        &self,
        open: &mut Open,
        mut due_ns: u64,
        end_ns: u64,
        arrivals: &mut PoissonArrivals,
    ) {
        let now_ns = self.clock.now_ns();
        for asked in self.connections.iter().filter_map(|connection| connection.asked) {
            open.from_due.saturating_record(now_ns.saturating_sub(asked.due_ns));
        }
        while due_ns < end_ns {
            open.due += 1;
            open.from_due.saturating_record(now_ns.saturating_sub(due_ns));
            due_ns = arrivals.next_after(due_ns);
        }
    }

    /// Waits until every request is answered.
    fn drain(&mut self) -> Result<()> {
        let mut moved_ns = self.clock.now_ns();
        while self.connections.iter().any(|connection| connection.asked.is_some()) {
            self.wait(NAP)?;
            for event in 0..self.events.len() {
                self.attend(event)?;
                moved_ns = self.clock.now_ns();
            }
            ensure_alive(self.clock.now_ns(), moved_ns)?;
        }
        Ok(())
    }

    /// Sends the trace's next request on a connection that has none.
    fn ask(&mut self, connection: usize, due_ns: u64) -> Result<()> {
        let document = self.trace.order()[self.next];
        self.next = (self.next + 1) % self.trace.order().len();
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

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        match self.set.wait(&mut self.events, timeout) {
            Ok(()) | Err(Errno::INTR) => Ok(()),
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
        let size = self.documents.sizes()[document as usize];
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

fn ensure_alive(now_ns: u64, moved_ns: u64) -> Result<()> {
    let silent = Duration::from_nanos(now_ns.saturating_sub(moved_ns));
    ensure!(silent < TIMEOUT, "the server has sent nothing for {} s", TIMEOUT.as_secs());
    Ok(())
}

fn connect(address: &str) -> Result<OwnedFd> {
    if let Some(path) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        return Ok(stream.into());
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
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

    /// A server of one document that stops once for `stall`, after this many answers.
    fn server(plan: &Plan, stall_after: u64, stall: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let length = plan.size_bytes;
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut body = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            body.resize(body.len() + length as usize, b'x');
            let mut buffer = [0; 4096];
            for answers in 1.. {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
                if answers == stall_after {
                    std::thread::sleep(stall);
                }
                if stream.write_all(&body).is_err() {
                    return;
                }
            }
        });
        address
    }

    fn plan() -> Plan {
        let mut request = Request::new("web", "web-file");
        request.connections = Some(1);
        Plan::of(&request).unwrap()
    }

    #[test]
    fn a_stall_is_charged_to_all_requests_due_meanwhile() {
        let plan = plan();
        let stall = Duration::from_millis(400);
        let address = server(&plan, 20, stall);
        let mut load = Load::connect(&plan, &address).unwrap();
        // 100 a second for a second: about 40 are due during the stall, and one was sent before it.
        let open = load.open(100.0, Duration::from_secs(1), 5).unwrap();
        assert!(open.due > 60 && open.answered == open.due, "{open:?}");
        let slow = |of: &Histogram<u64>| of.count_between(100_000_000, 60_000_000_000);
        assert!(slow(&open.from_due) >= 10, "{} of {}", slow(&open.from_due), open.due);
        assert!(slow(&open.from_due) > slow(&open.from_sent), "coordinated omission is there to be told");
    }

    #[test]
    fn a_permanent_stall_is_charged() {
        let plan = plan();
        let address = server(&plan, 3, Duration::from_secs(4));
        let mut load = Load::connect(&plan, &address).unwrap();
        let open = load.open(200.0, Duration::from_millis(500), 5).unwrap();
        assert!(open.answered < open.due, "{open:?}");
        assert_eq!(open.from_due.len(), open.due, "each one has a time");
        assert!(open.from_due.value_at_quantile(0.5) > 500_000_000);
        // The missing answers have been drained, so the next loop begins with connections that have no request.
        let mut round_trips = histogram();
        let closed = load.closed(Duration::from_millis(50), &mut round_trips).unwrap();
        assert_eq!(closed.answered, round_trips.len());
        assert!(closed.answered > 0 && closed.received_bytes == closed.answered * plan.size_bytes);
    }

    #[test]
    fn a_closed_loop_ends_after_every_response() {
        let plan = plan();
        // An answer need not come within the loop's time, nor within one sleep.
        let address = server(&plan, 1, Duration::from_millis(300));
        let mut load = Load::connect(&plan, &address).unwrap();
        for _ in 0..3 {
            let mut round_trips = histogram();
            let closed = load.closed(Duration::from_millis(1), &mut round_trips).unwrap();
            assert!(closed.answered > 0 && closed.answered == round_trips.len(), "{closed:?}");
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
