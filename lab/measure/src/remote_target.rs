//! Targets on another machine: `bywire serve` there plays them, for tests only and within bounds.
//!
//! One control connection serves one pair. It carries lines of JSON: first the handshake (versions, and a proof of the
//! key if the server asks for one), then the job, then the target's reports. The measured messages have sockets of their own.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bywire_command::exit_status::Misuse;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::fabric_keys::{self, IssuedKeys};
use crate::options::Credential;
use crate::pin;
use crate::plan::{Assignment, End, Job, Plan, Role, SIZE_BYTES_MAX, Test, WorkerMessage};
use crate::process::{Event, Setting, Worker, listen};
use crate::scratch_directory::nonce;
use crate::transport::tcp;
use crate::workload::overhead::BURST_BYTES_MAX;

/// The port that `bywire serve` listens on.
pub const DEFAULT_PORT: u16 = 7247;
/// The version of the control connection.
const PROTOCOL: u32 = 2;
/// The time limit of the handshake and the job, for either side.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest line of the control connection. An outcome with every block and bucket fits.
const LINE_BYTES_MAX: u64 = 16 << 20;
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// The longest part of the other side's text that is shown.
const WORD_LENGTH_MAX: usize = 32;
/// How long a client may keep one target.
const DEADLINE_SECONDS_MAX: u64 = 900;
const BLOCKS_MAX: u32 = 50_000;
/// The longest message without a key. Each target keeps a few whole messages in memory, and up to [`CLIENTS_MAX`]
/// targets run.
const OPEN_SIZE_BYTES_MAX: u64 = 4 << 20;
/// The places of clients that have proved nothing yet.
const STRANGERS_MAX: usize = 64;
const CLIENTS_MAX: usize = 16;
/// The pause after a failed accept, so that a server without free descriptors does not loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Another machine, which runs targets of measurements.
#[derive(Clone, Debug)]
pub struct Host {
    /// As it was given: a name or an address.
    pub name: String,
    /// Its address, and a key if there is one. A node of the fabric gives both for each connection.
    fixed: Option<(SocketAddr, Option<Vec<u8>>)>,
}

/// The clients that may measure at a server.
#[derive(Clone, Debug)]
pub enum Admission {
    /// Anyone, within narrower bounds.
    Anyone,
    /// Clients with this key.
    Key(Vec<u8>),
    /// Members of the fabric, who get keys.
    Fabric(Arc<IssuedKeys>),
}

impl Admission {
    fn needs_key(&self) -> bool {
        !matches!(self, Self::Anyone)
    }

    /// The key that a client has proved.
    fn proved(&self, is_proved: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        match self {
            Self::Anyone => None,
            Self::Key(key) => is_proved(key).then(|| key.clone()),
            Self::Fabric(keys) => keys.take(Instant::now(), is_proved),
        }
    }
}

impl Host {
    /// Resolves `HOST` or `HOST:PORT`, or takes the name of a node. Fails if a name does not resolve.
    pub fn resolve(name: &str, credential: Option<Credential>) -> Result<Self> {
        let key = match credential {
            Some(Credential::Fabric) => return Ok(Self { name: name.to_owned(), fixed: None }),
            Some(Credential::Key(key)) => Some(key),
            None => None,
        };
        // An IPv6 address has colons of its own, and its port follows brackets.
        let port = name.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let resolved = match port {
            Some((_, port)) if !port.parse::<u16>().is_ok_and(|port| port > 0) => bail!(Misuse(format!(
                "`{port}` in `{name}` is not a valid port: give HOST:PORT with a port of 1 to 65535"
            ))),
            Some(_) => name.to_socket_addrs(),
            None => (name, DEFAULT_PORT).to_socket_addrs(),
        };
        let address = resolved.ok().and_then(|mut addresses| addresses.next());
        let address = address.ok_or_else(|| {
            Misuse(format!(
                "cannot resolve the host `{name}`: give processes, threads, namespaces, HOST or HOST:PORT"
            ))
        })?;
        Ok(Self { name: name.to_owned(), fixed: Some((address, key)) })
    }
}

/// A target on another machine. Dropping it ends it.
pub(crate) struct RemoteTarget(TcpStream);

impl RemoteTarget {
    /// Asks `host` to run the target of `job`. Its messages go to `sender`.
    pub(crate) fn start(host: &Host, job: &Job, sender: Sender<Event>) -> Result<Self> {
        let (address, key) = match host.fixed.clone() {
            Some(fixed) => fixed,
            None => fabric_keys::ask(&host.name).map(|(address, key)| (address, Some(key)))?,
        };
        let stream = TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT)
            .with_context(|| format!("cannot reach {}: is `bywire serve` running there?", host.name))?;
        let mut line = Line::new(stream.try_clone()?)?;
        line.greet(key.as_deref()).with_context(|| format!("{} refuses", host.name))?;
        line.say(job)?;
        line.forever()?;
        std::thread::spawn(move || listen(End::Target, line.reader.take(LINE_BYTES_MAX), &sender));
        Ok(Self(stream))
    }
}

impl Drop for RemoteTarget {
    fn drop(&mut self) {
        let _gone = self.0.shutdown(Shutdown::Both);
    }
}

/// The server's first line.
#[derive(Serialize, Deserialize)]
struct Challenge {
    protocol: u32,
    version: String,
    nonce: String,
    key_required: bool,
}

/// The client's first line.
#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: u32,
    version: String,
    nonce: String,
    /// Hex of HMAC-SHA256 by the shared key.
    proof: Option<String>,
}

/// The server's second line.
#[derive(Serialize, Deserialize)]
struct Verdict {
    refused: Option<String>,
    /// Hex of HMAC-SHA256 by the shared key: the server knows it too.
    proof: Option<String>,
}

/// One side of a control connection.
struct Line {
    stream: TcpStream,
    reader: BufReader<DeadlineReader>,
}

/// The other side's bytes, with a deadline that does not move as they come.
struct DeadlineReader {
    stream: TcpStream,
    until: Option<Instant>,
}

impl Read for DeadlineReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(rest))?;
        }
        self.stream.read(buffer)
    }
}

impl Line {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let until = Some(Instant::now() + HANDSHAKE_TIMEOUT);
        let reader = BufReader::new(DeadlineReader { stream: stream.try_clone()?, until });
        Ok(Self { stream, reader })
    }

    fn forever(&mut self) -> Result<()> {
        self.reader.get_mut().until = None;
        Ok(self.stream.set_read_timeout(None)?)
    }

    fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let written = self.stream.write_all((serde_json::to_string(what)? + "\n").as_bytes());
        written.map_err(|error| anyhow!("the connection was lost: {error}"))
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        let limited = &mut (&mut self.reader).take(REQUEST_BYTES_MAX);
        limited.read_line(&mut line).context("it did not answer within 5 s")?;
        ensure!(!line.is_empty(), "the connection was closed");
        serde_json::from_str(&line).map_err(|_| anyhow!("its answer is not valid: is it `bywire serve`?"))
    }

    fn greet(&mut self, key: Option<&[u8]>) -> Result<()> {
        let challenge: Challenge = self.hear()?;
        same_version(challenge.protocol, &challenge.version)?;
        ensure!(
            key.is_some() || !challenge.key_required,
            "it requires a key: give it by --key FILE, or by --fabric if it serves a fabric"
        );
        let nonces = [challenge.nonce, nonce()];
        let proof = key.map(|key| proof(key, "client", &nonces));
        self.say(&Hello { protocol: PROTOCOL, version: version(), nonce: nonces[1].clone(), proof })?;
        let verdict: Verdict = self.hear()?;
        if let Some(reason) = verdict.refused {
            bail!(reason);
        }
        let claim = verdict.proof.unwrap_or_default();
        let proven = |key: &[u8]| is_proof(&claim, key, "server", &nonces);
        ensure!(
            key.is_none_or(proven),
            "it does not have the key that was given: use the same file by --key at both ends, or --fabric"
        );
        Ok(())
    }

    /// The server's side of the handshake. An admitted client takes a place among `clients`.
    fn admit(&mut self, admission: &Admission, clients: &Arc<AtomicUsize>) -> Result<Permit> {
        let server_nonce = nonce();
        self.say(&Challenge {
            protocol: PROTOCOL,
            version: version(),
            nonce: server_nonce.clone(),
            key_required: admission.needs_key(),
        })?;
        let hello: Hello = self.hear()?;
        let nonces = [server_nonce, hello.nonce];
        let claim = hello.proof.as_deref().unwrap_or_default();
        let key = admission.proved(|key| is_proof(claim, key, "client", &nonces));
        // Checked before anything that an unauthenticated client says is repeated.
        let verdict = if admission.needs_key() && key.is_none() {
            let what = if hello.proof.is_none() { "a key is required" } else { "the key is wrong" };
            Err(match admission {
                Admission::Fabric(_) => anyhow!("{what}: give --fabric, on a node of this server's fabric"),
                _ => anyhow!("{what}: give the file of this server's own key by --key FILE"),
            })
        } else {
            same_version(hello.protocol, &hello.version).and_then(|()| {
                Permit::take(clients)
                    .ok_or_else(|| anyhow!("it serves {CLIENTS_MAX} tests already: try again later"))
            })
        };
        let refused = verdict.as_ref().err().map(|error| error.to_string());
        let proof = key.filter(|_| verdict.is_ok()).map(|key| proof(&key, "server", &nonces));
        self.say(&Verdict { refused, proof })?;
        verdict
    }
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

fn same_version(protocol: u32, other: &str) -> Result<()> {
    // A short text without control characters.
    let shown: String = other.escape_debug().take(WORD_LENGTH_MAX).collect();
    ensure!(
        protocol == PROTOCOL && other == version(),
        "its version is {shown} and this one is {}: install the same at both ends",
        version()
    );
    Ok(())
}

/// A code of the nonces of server and client, which only those with the key can make.
fn keyed(key: &[u8], role: &str, [server_nonce, client_nonce]: &[String; 2]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in ["bywire serve", role, server_nonce, client_nonce] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part.as_bytes());
    }
    mac
}

fn proof(key: &[u8], role: &str, nonces: &[String; 2]) -> String {
    let code = keyed(key, role, nonces).finalize();
    code.into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_proof(claim: &str, key: &[u8], role: &str, nonces: &[String; 2]) -> bool {
    let byte = |place| u8::from_str_radix(claim.get(2 * place..2 * place + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..claim.len() / 2).map(byte).collect();
    bytes.is_some_and(|bytes| keyed(key, role, nonces).verify_slice(&bytes).is_ok())
}

/// One of a bounded number of permits, until it is dropped.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let one_more = |taken| (taken < CLIENTS_MAX).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Clients that have proved nothing yet, in the order in which they came. There is a bounded number of places for them. When
/// all are taken, one more client takes the place of another one. So clients that say nothing keep nobody out.
#[derive(Default)]
struct Strangers(Mutex<Vec<Stranger>>);

/// The address and the connection of a client.
type Stranger = Arc<(IpAddr, TcpStream)>;

/// The place of a client, until it is dropped.
struct Place {
    strangers: Arc<Strangers>,
    stranger: Stranger,
}

impl Strangers {
    /// Gives a client a place. The connection that loses its place for it ends: the oldest one of the address that has most.
    fn admit(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Place> {
        let stranger = Arc::new((stream.peer_addr()?.ip(), stream.try_clone()?));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= STRANGERS_MAX {
            let of = |ip| all.iter().filter(|other| other.0 == ip).count();
            let most = all.iter().map(|other| of(other.0)).max();
            let victim = all.iter().position(|other| Some(of(other.0)) == most);
            if let Some(victim) = victim {
                let _gone = all.remove(victim).1.shutdown(Shutdown::Both);
            }
        }
        all.push(Arc::clone(&stranger));
        Ok(Place { strangers: Arc::clone(self), stranger })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.strangers.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| !Arc::ptr_eq(other, &self.stranger));
    }
}

/// Serves targets on `listener` until the process ends. `log` gets one line for each client.
pub fn serve(listener: &TcpListener, admission: Admission, log: fn(&str)) -> Result<()> {
    let admission = Arc::new(admission);
    let (strangers, clients) = (Arc::<Strangers>::default(), Arc::default());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        // A client that is gone already, or no descriptor is left.
        let Ok(stranger) = strangers.admit(&stream) else { continue };
        let (admission, clients) = (Arc::clone(&admission), Arc::clone(&clients));
        std::thread::spawn(move || {
            let peer = stream.peer_addr().map_or_else(|_| "a client".to_owned(), |peer| peer.to_string());
            let log = |what: &str| log(&format!("{peer}: {what}"));
            if let Err(error) = serve_one(stream, &admission, stranger, &clients, log) {
                log(&format!("{error:#}"));
            }
        });
    }
    Ok(())
}

fn serve_one(
    stream: TcpStream,
    admission: &Admission,
    stranger: Place,
    clients: &Arc<AtomicUsize>,
    log: impl Fn(&str),
) -> Result<()> {
    let ends = [stream.local_addr()?.ip(), stream.peer_addr()?.ip()];
    let mut line = Line::new(stream)?;
    let _client = line.admit(admission, clients)?;
    drop(stranger);
    let job: Job = line.hear()?;
    let plan = bounded(job, ends, admission.needs_key());
    if let Err(error) = &plan {
        line.say(&WorkerMessage::Failed { end: End::Target, reason: format!("{error:#}") })?;
    }
    let plan = plan?;
    log(&format!("{} {} {} bytes", plan.level, plan.test, plan.size_bytes));
    line.forever()?;
    relay(plan, line)
}

/// Checks a job of the client at the second address, and returns the plan for the target at the first. The bounds are
/// narrower for servers without a key.
fn bounded(job: Job, [local, client]: [IpAddr; 2], has_key: bool) -> Result<Plan> {
    let Job::Messages(mut plan) = job else { bail!("level memory measures one machine: run it there") };
    ensure!(
        plan.level.carrier().is_ip || plan.request.joins_nodes(),
        "level {} does not cross machines: choose tcp, udp, or msg with --link udp",
        plan.level
    );
    let trusted_longest = plan.level.carrier().longest_bytes;
    let longest = if has_key { trusted_longest } else { trusted_longest.min(OPEN_SIZE_BYTES_MAX) };
    let sizes = 1..=longest;
    ensure!(
        sizes.contains(&plan.size_bytes) && sizes.contains(&plan.response_bytes),
        "sizes must be 1 to {longest} bytes: with a key at both ends (--key) up to {trusted_longest}"
    );
    ensure!(plan.test != Test::Overhead || plan.size_bytes <= BURST_BYTES_MAX, "the burst is too long");
    ensure!(
        plan.deadline_seconds <= DEADLINE_SECONDS_MAX
            && plan.blocks.saturating_add(plan.warmup_blocks) <= BLOCKS_MAX,
        "the test is too long: one pair may take {DEADLINE_SECONDS_MAX} s and {BLOCKS_MAX} blocks"
    );
    ensure!(
        plan.request.socket_buffer_bytes.is_none_or(|bytes| bytes <= SIZE_BYTES_MAX),
        "socket buffers may have {SIZE_BYTES_MAX} bytes"
    );
    // Any other name could make a server that is root load a kernel module.
    ensure!(
        plan.request.congestion.as_deref().is_none_or(tcp::is_for_all),
        "unprivileged users of this machine may not choose that congestion control"
    );
    ensure!(
        plan.cookie.len() == 32 && plan.cookie.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "the cookie is not 32 hexadecimal digits"
    );
    (plan.bind, plan.source) = (local, Some(client));
    // The carriers and the directories are of the client's machine. Ports of this one find its own node.
    plan.carriers.clear();
    plan.runtime_directories = None;
    plan.request.nodes = None;
    // The beginning is a time of the client's clock.
    plan.begin_ns = None;
    Ok(plan)
}

/// Runs a target for the client and forwards its messages. The target ends with the client.
fn relay(plan: Plan, line: Line) -> Result<()> {
    let role = Role::Target { core: Some(pin::two_cores().1) };
    let assignment = Assignment { job: Job::Messages(plan), role };
    let (target, mut output) = Worker::start(&assignment, Setting::default())?;
    let mut stream = line.stream.try_clone()?;
    let mut input = line.reader;
    std::thread::spawn(move || {
        // The client sends nothing more. The end of its side ends the target.
        let _gone = input.read(&mut [0]);
        drop(target);
    });
    let copied = io::copy(&mut output, &mut stream).context("the client is gone");
    // In every case: the thread above reads until then, and ends the target.
    let _gone = stream.shutdown(Shutdown::Both);
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;
    use crate::resolution::tests::plan_of;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_line_that_arrives_byte_by_byte_has_the_same_time_limit() {
        let (mut slow, server) = connection();
        let mut line = Line::new(server).unwrap();
        line.reader.get_mut().until = Some(Instant::now() + Duration::from_millis(200));
        let started = Instant::now();
        let slow = std::thread::spawn(move || {
            while slow.write_all(b" ").is_ok() && started.elapsed().as_secs() < 10 {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(line.hear::<Hello>().is_err());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        line.stream.shutdown(Shutdown::Both).unwrap();
        slow.join().unwrap();
    }

    #[test]
    fn long_messages_are_accepted_only_with_the_key() {
        let ends = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let long = plan_of(&format!("tcp stream --size {}", OPEN_SIZE_BYTES_MAX + 1));
        let plan = Plan { cookie: nonce(), begin_ns: Some(u64::MAX), ..long };
        let refused = bounded(Job::Messages(plan.clone()), ends, false).unwrap_err().to_string();
        assert!(refused.contains("--key") && refused.contains("4194304"), "{refused}");
        let short = Plan { size_bytes: OPEN_SIZE_BYTES_MAX, ..plan.clone() };
        assert!(bounded(Job::Messages(short), ends, false).is_ok());
        let played = bounded(Job::Messages(plan), ends, true).unwrap();
        assert_eq!((played.bind, played.source, played.begin_ns), (ends[0], Some(ends[1]), None));
    }

    #[test]
    fn the_key_is_not_part_of_a_job() {
        let credential = Some(Credential::Key(b"the key".to_vec()));
        let mut plan = plan_of("tcp stream");
        plan.request.credential = credential;
        let told = serde_json::to_string(&Job::Messages(plan.clone())).unwrap();
        let Job::Messages(heard) = serde_json::from_str(&told).unwrap() else { panic!("{told}") };
        assert_eq!(heard.request, Request { credential: None, ..plan.request });
    }

    #[test]
    fn another_version_is_shown_in_a_few_printable_characters() {
        let hostile = format!("1\u{1b}[2J\n10.0.0.1:1: tcp stream{}", "x".repeat(60_000));
        let said = same_version(PROTOCOL, &hostile).unwrap_err().to_string();
        assert!(said.starts_with("its version is 1\\u{1b}[2J\\n10.0.0.1:1") && said.len() < 120, "{said}");
        assert!(!said.chars().any(char::is_control), "{said:?}");
    }

    #[test]
    fn clients_without_the_key_take_no_slot_of_those_with_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, Admission::Key(b"the key".to_vec()), |_| {}));
        let call = || Line::new(TcpStream::connect(address).unwrap()).unwrap();
        let strangers: Vec<_> = (0..200).map(|_| call()).collect();
        assert!(call().greet(Some(b"another")).is_err());
        // All places are taken by clients that know the key.
        let mut friends: Vec<_> = (0..CLIENTS_MAX).map(|_| call()).collect();
        friends.iter_mut().for_each(|friend| friend.greet(Some(b"the key")).unwrap());
        assert!(call().greet(Some(b"the key")).unwrap_err().to_string().contains("try again later"));
        drop((strangers, friends));
    }
}
