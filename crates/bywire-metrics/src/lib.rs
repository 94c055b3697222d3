//! Metrics for Prometheus: a page of samples, and the server that hands it out over HTTP. Services of the product use it, each
//! with a page of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywire_sys::poller::Poller;
use serde_json::Value;

/// The longest request that is read.
const REQUEST_BYTES_MAX: usize = 4096;
/// The most callers at a time. One more takes the place of the oldest, so callers that say or read nothing hold up nobody.
const CALLERS_MAX: usize = 32;
/// The most callers that are accepted before the requests of those before them are read.
const ACCEPTED_PER_TURN: usize = CALLERS_MAX / 2;
/// How long a page is used. Making one costs the service work, and anybody who reaches the address may ask.
const PAGE_LIFE: Duration = Duration::from_secs(1);
/// How long a caller may take to read its page.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How soon something is tried again: a write for which there was no room, or an accept for which there was no descriptor.
const RETRY: Duration = Duration::from_millis(10);
/// The tag of the listener. Callers have greater ones, in the order in which they came.
const LISTENER: u64 = 0;

/// A listener that answers every request with the same page, and waits for no caller.
#[derive(Debug)]
pub struct Metrics {
    listener: TcpListener,
    poller: Poller,
    callers: BTreeMap<u64, Caller>,
    last_tag: u64,
    is_paused: bool,
    /// The latest answer, and when it was made.
    page: Option<(Instant, Arc<[u8]>)>,
}

/// A caller. It has sent a request if it has an answer.
#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    answer: Option<Answer>,
}

/// A page that a caller reads.
#[derive(Debug)]
struct Answer {
    bytes: Arc<[u8]>,
    written: usize,
    until: Instant,
}

impl Metrics {
    /// Listens on `address`. Fails with the error of the kernel.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        let callers = BTreeMap::new();
        Ok(Self { listener, poller, callers, last_tag: LISTENER, is_paused: false, page: None })
    }

    /// How soon [`Self::serve`] has to be called, also if nothing is readable.
    pub fn timeout(&self) -> Option<Duration> {
        let is_writing = self.callers.values().any(|caller| caller.answer.is_some());
        (is_writing || self.is_paused).then_some(RETRY)
    }

    /// Does what can be done without waiting. `page` makes the page. Fails with the error of `page`.
    pub fn serve<E>(&mut self, mut page: impl FnMut() -> Result<String, E>) -> Result<(), E> {
        let ready = self.poller.wait(Some(Duration::ZERO)).map(<[u64]>::to_vec).unwrap_or_default();
        for tag in ready.iter().copied().filter(|tag| *tag != LISTENER) {
            let is_request = self.callers.get_mut(&tag).is_some_and(Caller::read_request);
            if !is_request {
                self.forget(tag);
                continue;
            }
            let bytes = self.answer(&mut page)?;
            if let Some(caller) = self.callers.get_mut(&tag) {
                // Nothing more is read from it.
                self.poller.remove(&caller.stream);
                caller.answer = Some(Answer { bytes, written: 0, until: Instant::now() + TIMEOUT });
            }
        }
        let now = Instant::now();
        self.callers.retain(|_, caller| caller.write(now));
        if self.is_paused || ready.contains(&LISTENER) {
            self.accept();
        }
        Ok(())
    }

    /// Accepts callers. If that fails, the listener is not watched until the next call, because it would stay readable.
    fn accept(&mut self) {
        let mut has_failed = false;
        for _ in 0..ACCEPTED_PER_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => self.take_in(stream),
                Err(error) => {
                    has_failed = !matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    );
                    break;
                }
            }
        }
        let changed = match has_failed {
            true => self.poller.pause(&self.listener, LISTENER),
            false => self.poller.resume(&self.listener, LISTENER),
        };
        self.is_paused = has_failed || changed.is_err();
    }

    fn take_in(&mut self, stream: TcpStream) {
        let tag = self.last_tag + 1;
        if stream.set_nonblocking(true).is_err() || self.poller.add(&stream, tag).is_err() {
            return;
        }
        self.last_tag = tag;
        self.callers.insert(tag, Caller { stream, answer: None });
        if self.callers.len() > CALLERS_MAX {
            self.callers.pop_first();
        }
    }

    fn forget(&mut self, tag: u64) {
        // Its place in the poller ends with its descriptor.
        self.callers.remove(&tag);
    }

    /// The page as an answer.
    fn answer<E>(&mut self, page: &mut impl FnMut() -> Result<String, E>) -> Result<Arc<[u8]>, E> {
        if let Some((made, bytes)) = &self.page
            && made.elapsed() < PAGE_LIFE
        {
            return Ok(bytes.clone());
        }
        let page = page()?;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            page.len()
        );
        let bytes: Arc<[u8]> = (head + &page).into_bytes().into();
        self.page = Some((Instant::now(), bytes.clone()));
        Ok(bytes)
    }
}

impl Caller {
    /// Reads what has come. `false`: it is no request.
    fn read_request(&mut self) -> bool {
        let mut request = [0; REQUEST_BYTES_MAX];
        let length = self.stream.read(&mut request).unwrap_or_default();
        request[..length].starts_with(b"GET ")
    }

    /// Writes as much of the answer as there is room for. `false`: all of it is written, or the caller has to go.
    fn write(&mut self, now: Instant) -> bool {
        let Some(Answer { bytes, written, until }) = &mut self.answer else { return true };
        while *written < bytes.len() {
            match self.stream.write(&bytes[*written..]) {
                Ok(0) => return false,
                Ok(count) => *written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return now < *until,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }
}

impl AsFd for Metrics {
    /// Readable if [`Metrics::serve`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// Samples by family. Each family has one heading, and a name that begins with the prefix.
#[derive(Debug)]
pub struct Page {
    prefix: &'static str,
    families: Vec<(&'static str, String)>,
}

impl Page {
    /// A page without samples.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, families: Vec::new() }
    }

    /// Adds a sample. Its family is a `counter` or a `gauge`.
    pub fn sample(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: &Value,
    ) {
        let prefix = self.prefix;
        let at = self.families.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            let head = format!("# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}\n");
            self.families.push((name, head));
            self.families.len() - 1
        });
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.families[at].1, "{prefix}_{name}{labels} {value}");
    }

    /// The text.
    pub fn text(self) -> String {
        self.families.into_iter().map(|(_, lines)| lines).collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc::{self, TryRecvError};

    use super::*;

    /// More than sockets hold.
    const PAGE_BYTES: usize = 16 << 20;

    /// Serves a long page on a thread while `test` runs. Returns how often the page was made.
    fn while_served(test: impl FnOnce(SocketAddr)) -> usize {
        let mut metrics = Metrics::listen(([127, 0, 0, 1], 0).into()).expect("it listens");
        let address = metrics.listener.local_addr().expect("bound");
        // It ends also if the test fails.
        let (until, is_over) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let served = scope.spawn(move || {
                let mut made = 0;
                let mut poller = Poller::new().expect("a poller");
                poller.add(&metrics, 0).expect("watched");
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    let timeout = metrics.timeout().unwrap_or(Duration::from_millis(50));
                    poller.wait(Some(timeout)).expect("waited");
                    let page = || {
                        made += 1;
                        Ok::<_, Infallible>("x".repeat(PAGE_BYTES))
                    };
                    let Ok(()) = metrics.serve(page);
                    assert!(metrics.callers.len() <= CALLERS_MAX);
                }
                made
            });
            test(address);
            drop(until);
            served.join().expect("it served")
        })
    }

    fn asking(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
        stream
    }

    fn fetch(address: SocketAddr) -> String {
        let mut page = String::new();
        asking(address).read_to_string(&mut page).expect("read");
        page
    }

    #[test]
    fn callers_that_say_or_read_nothing_delay_no_other() {
        while_served(|address| {
            let silent: Vec<_> =
                (0..3 * CALLERS_MAX).map(|_| TcpStream::connect(address).expect("connected")).collect();
            let deaf: Vec<_> = (0..CALLERS_MAX / 2).map(|_| asking(address)).collect();
            let began = Instant::now();
            let page = fetch(address);
            assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with('x'), "{}", page.len());
            // Half a second for each of them would take longer.
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            drop((silent, deaf));
        });
    }

    #[test]
    fn a_page_is_made_at_most_once_a_second() {
        let began = Instant::now();
        let made = while_served(|address| (0..20).for_each(|_| drop(fetch(address))));
        assert!(made as u64 <= began.elapsed().as_secs() + 1, "{made}");
    }

    #[test]
    fn only_a_request_has_an_answer() {
        while_served(|address| {
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.write_all(b"PUT / HTTP/1.1\r\n\r\n").expect("sent");
            let mut page = Vec::new();
            // The connection may be reset.
            let _ = stream.read_to_end(&mut page);
            assert!(page.is_empty());
        });
    }
}
