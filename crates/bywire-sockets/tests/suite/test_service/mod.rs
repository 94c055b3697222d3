//! A pairing service, the library, and the calls that the tests make through it.

pub mod calls;
pub mod roles;
pub mod same;
pub mod transcript;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bywire_pairing::filters;
use bywire_pairing::protocol::{CORES_VARIABLE, ENGINE_VARIABLE, SERVICE_VARIABLE, UDP_VARIABLE};
use bywire_pairing::service::Service;
use bywire_pairing::space::Spaces;
use bywire_pairing::status::{self, Status};
use bywire_pairing::user::Scope;
use bywire_testing::Guarded;
use bywire_testing::alone;

pub use bywire_testing::eventually;
pub use bywire_testing::here::is_root;
pub use roles::{announced, connected, first_caller, plays, told_port};

/// A service for one test, in its own directory.
pub struct TestService {
    directory: tempfile::TempDir,
    /// Where it listens.
    pub service: PathBuf,
    /// What its programs connect by.
    domain: Domain,
    /// Whether an engine relays what they send, whatever it is.
    pub is_relayed: AtomicBool,
}

/// A domain of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domain {
    #[default]
    Tcp,
    Unix,
}

impl TestService {
    pub fn new() -> Self {
        let pairing = Self::without_service();
        let mut running = Service::start(&pairing.service, Scope::User).expect("a service");
        std::thread::spawn(move || running.serve(Duration::from_secs(600)));
        pairing
    }

    /// The same for programs that connect by this domain.
    pub fn with_domain(domain: Domain) -> Self {
        Self { domain, ..Self::new() }
    }

    /// A service, and a program of a C file beside these tests.
    pub fn with_program(source: &str) -> Option<(Self, PathBuf)> {
        let pairing = Self::new();
        let program = pairing.compiled(source, "program", &["-pthread"])?;
        Some((pairing, program))
    }

    /// A service for the whole machine, with files that its users' programs can read.
    pub fn of_machine(spaces: Spaces) -> Self {
        let pairing = Self::without_service();
        pairing.open_to_all();
        let mut running = Service::start(&pairing.service, Scope::Machine).expect("a service");
        running.join(spaces);
        std::thread::spawn(move || running.serve(Duration::from_secs(600)));
        pairing
    }

    /// Lets other users into the directory, where they find the library and this test.
    pub fn open_to_all(&self) {
        let public = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.directory.path(), public).expect("chmod");
        let this = std::env::current_exe().expect("this test");
        for (file, name) in [(this, "test"), (Self::library(), "library.so")] {
            let place = self.path(name);
            if fs::hard_link(&file, &place).is_err() {
                // Copied by another process: a file that a child of a concurrent test has open for writing cannot be
                // executed.
                let copied = Command::new("cp").arg(&file).arg(&place).status().expect("`cp`");
                assert!(copied.success(), "a copy");
            }
        }
    }

    /// A path in this test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Compiles a C file beside these tests, once for all of them; `None`, with a message: there is no compiler.
    pub fn compiled(&self, source: &str, name: &str, words: &[&str]) -> Option<PathBuf> {
        let program = self.path(name);
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        // Words with a path of this test's own are good for nobody else.
        let is_own = words.iter().any(|word| word.contains(&*self.directory.path().to_string_lossy()));
        let kept = if is_own { self.path("kept") } else { env!("CARGO_TARGET_TMPDIR").into() };
        let words = [&["-O1", "-Wall", "-Werror"], words].concat();
        match bywire_testing::compile(&kept, "cc", &source, &words, &program) {
            Ok(()) => Some(program),
            Err(error) => {
                println!("not run: a C compiler is needed: {error}");
                None
            }
        }
    }

    /// This test as a program of a user, with the library, in a role; see [`role`].
    pub fn user(&self, user: u32, role: &str) -> Command {
        let mut command = Command::new(self.path("test"));
        roles::in_role(&mut command, &roles::this_test(), role);
        command.env("LD_PRELOAD", self.path("library.so")).env("BYWIRE_SOCKETS_CALLS", "4");
        command.env(SERVICE_VARIABLE, &self.service);
        command.env(filters::VARIABLE, filters_here().to_string());
        command.current_dir("/").stdout(Stdio::piped()).uid(user).gid(user);
        command
    }

    /// A directory for a service that can be killed.
    pub fn without_service() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let service = directory.path().join("pairing");
        Self { directory, service, domain: Domain::Tcp, is_relayed: AtomicBool::new(false) }
    }

    /// The library that was built with this test.
    pub fn library() -> PathBuf {
        let test = std::env::current_exe().expect("this test");
        let directory = test.parent().expect("a target directory");
        let library = directory.join("libbywire_sockets.so");
        assert!(library.exists(), "{} is missing", library.display());
        library
    }

    /// A program to be run with the library or without.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>, calls: Option<u64>) -> Command {
        let mut command = Command::new(program);
        if self.domain == Domain::Unix {
            command.env(DOMAIN_VARIABLE, "unix");
        }
        if self.is_relayed.load(Ordering::Relaxed) {
            // Both runs keep one end of a connection in the kernel.
            command.env(ENGINE_VARIABLE, "always").env(CONTROL_VARIABLE, self.path("engine"));
        }
        if let Some(calls) = calls {
            command
                .env("LD_PRELOAD", Self::library())
                .env(SERVICE_VARIABLE, &self.service)
                .env(CORES_VARIABLE, self.service.with_extension("cores"))
                .env(filters::VARIABLE, filters_here().to_string())
                .env("BYWIRE_SOCKETS_CALLS", calls.to_string())
                .env(UDP_VARIABLE, "1");
        }
        command
    }

    /// What this test's own driver writes for some seeds, one after the other.
    pub fn transcript(&self, test: &str, seeds: std::ops::Range<u64>, calls: Option<u64>) -> String {
        self.driven(test, "BYWIRE_TEST_SEED", &format!("{}:{}", seeds.start, seeds.end), calls)
    }

    /// The transcript of this test in a separate process with `variable` set to `value`.
    pub fn driven(&self, test: &str, variable: &str, value: &str, calls: Option<u64>) -> String {
        let this = std::env::current_exe().expect("this test");
        let mut command = self.command(this, calls);
        command.args(alone(test)).arg("--test-threads=1").env(variable, value);
        let output = command.output().expect("the driver");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{variable}={value}, {calls:?}: {}\n{text}{said}", output.status);
        text.lines().filter(|line| line.contains(" = ")).fold(String::new(), |sum, line| sum + line + "\n")
    }

    /// The status, once the service answers. A caller gives up after a while.
    pub fn status(&self) -> Status {
        eventually("the service answers", || status::query(&self.service).ok())
    }
}

/// A control group with a limit of memory, removed when it is dropped.
pub struct Group(PathBuf);

impl Group {
    /// `None`, with a message: none can be made here.
    pub fn new(bytes: u64) -> Option<Self> {
        let limits = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        let made = limits.iter().find_map(|(folder, limit)| {
            // One for each test, all of which may run in this process.
            let thread = std::thread::current().name().unwrap_or_default().replace("::", "-");
            let group = Self(format!("{folder}/bywire-test-{}-{thread}", std::process::id()).into());
            fs::create_dir(&group.0).ok()?;
            // A file of the kernel's, which is there already.
            let mut limit = fs::OpenOptions::new().write(true).open(group.0.join(limit)).ok()?;
            limit.write_all(bytes.to_string().as_bytes()).ok().map(|()| group)
        });
        if made.is_none() {
            println!("not run: no control group with a limit of memory can be made here");
        }
        made
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Adds a process.
    pub fn add(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).expect("added");
    }

    /// Adds this process to the group at a path.
    pub fn join(path: &str) {
        fs::write(Path::new(path).join("cgroup.procs"), std::process::id().to_string()).expect("joined");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process has ended, and is counted for a moment.
        let _removed = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// The number of system call filters that this test is behind, as in a container.
pub fn filters_here() -> u32 {
    filters::count().expect("the kernel tells")
}

/// What this process does instead of the test.
pub fn role() -> Option<String> {
    std::env::var("BYWIRE_TEST_ROLE").ok()
}

/// An argument that a test passes to a role.
pub fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not told"))
}

/// Sends a word to the process that has started this role.
pub fn say(word: &str) {
    println!("\nsaid {word}");
    std::io::stdout().flush().expect("said");
}

/// A child that does not outlive its test.
pub struct Running {
    pub child: Guarded,
    said: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        Self { child: Guarded(child), said }
    }

    /// The next word that a role has sent.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.said.read_line(&mut line).expect("a line") > 0, "it ends and says nothing");
            if let Some(word) = line.strip_prefix("said ") {
                return word.trim().to_owned();
            }
        }
    }

    /// Everything that it has sent until its exit.
    pub fn rest(&mut self) -> String {
        let mut text = String::new();
        self.said.read_to_string(&mut text).expect("text");
        text
    }

    /// Its exit, which must come in time.
    pub fn end(&mut self) -> std::process::ExitStatus {
        eventually("it ends", || self.child.try_wait().expect("ours"))
    }
}

/// Long enough for a loaded machine.
pub const TIMEOUT: Duration = Duration::from_secs(40);

/// Raises the limit of open files to the maximum. Returns it.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
    }
    limit.rlim_cur
}

/// The variable with the path of a test engine's control socket.
pub const CONTROL_VARIABLE: &str = "BYWIRE_TEST_CONTROL";
/// Names the domain of the connections that [`pair`] makes: `unix`, or TCP without it.
pub const DOMAIN_VARIABLE: &str = "BYWIRE_TEST_DOMAIN";

/// Returns whether the connections of this program are Unix streams.
pub fn is_unix() -> bool {
    std::env::var(DOMAIN_VARIABLE).is_ok_and(|domain| domain == "unix")
}

/// Two connected non-blocking descriptors.
pub fn pair() -> (RawFd, RawFd) {
    if is_unix() {
        let (client, server) = unix_streams();
        [&client, &server].into_iter().for_each(|end| end.set_nonblocking(true).expect("non-blocking"));
        return (client.into_raw_fd(), server.into_raw_fd());
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    for end in [&client, &server] {
        end.set_nonblocking(true).expect("non-blocking");
        // What the kernel delays depends on acknowledgements, and those depend on what was carried.
        end.set_nodelay(true).expect("at once");
    }
    (client.into_raw_fd(), server.into_raw_fd())
}

/// The two ends of a Unix connection, which wait.
pub fn unix_streams() -> (UnixStream, UnixStream) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).expect("listen");
    let client = UnixStream::connect(&path).expect("connect");
    (client, listener.accept().expect("accept").0)
}

/// Makes calls on a descriptor wait, or not.
pub fn set_nonblocking(fd: RawFd, is_nonblocking: bool) {
    let flags = if is_nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }, 0);
}

/// Echoes what comes until the end. `wait` waits for each piece, and returns `false` if none came.
pub fn give_back(peer: &mut TcpStream, wait: impl Fn() -> bool) {
    let mut buffer = [0; 512];
    loop {
        assert!(wait(), "nothing is heard of the other end");
        match peer.read(&mut buffer) {
            Ok(received @ 1..) if peer.write_all(&buffer[..received]).is_ok() => {}
            // The peer has gone.
            _ => return,
        }
    }
}

/// Sends this many words of different lengths to an end that echoes them.
pub fn converse(peer: &mut TcpStream, words: u32) {
    for word in 0..words {
        // Sometimes the other end has gone to sleep.
        if word % 50 == 49 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let message = vec![word as u8; word as usize % 300 + 1];
        peer.write_all(&message).expect("a message");
        let mut answer = vec![0; message.len()];
        peer.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, message);
    }
}

/// Exchanges bytes on a pair until neither end gives the kernel any.
pub fn carry(ends: (RawFd, RawFd)) {
    assert!(is_carried_at_last(ends), "it is never carried both ways, or it is broken");
}

/// The same for a forked child, which must not panic.
pub fn is_carried_at_last((client, server): (RawFd, RawFd)) -> bool {
    let end = std::time::Instant::now() + TIMEOUT;
    loop {
        let mut by_kernel = 0;
        for _ in 0..16 {
            by_kernel = 0;
            for (from, to) in [(client, server), (server, client)] {
                let before = kernel_given(from);
                let is_sent = send(from, b"!", 0) == 1;
                by_kernel += u32::from(kernel_given(from) != before);
                let is_heard = is_sent && poll_for(to, 20_000) && receive(to, 1, 0) == (1, b"!".to_vec());
                if !is_heard {
                    return false;
                }
            }
        }
        if by_kernel == 0 {
            return true;
        }
        if std::time::Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Repeats an exchange on a connection until its bytes bypass the kernel both ways: calls do not wait for a service
/// that is slow, as on a busy machine.
pub fn until_carried(fd: RawFd, mut exchange: impl FnMut()) {
    let started = std::time::Instant::now();
    loop {
        let before = kernel_moved(fd);
        (0..16).for_each(|_| exchange());
        if kernel_moved(fd) == before {
            return;
        }
        assert!(started.elapsed() < TIMEOUT, "it is never carried both ways");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that the kernel has sent, by its own count.
pub fn kernel_sent(fd: RawFd) -> u64 {
    kernel_moved(fd)[0]
}

/// Bytes that the kernel was given to send, whether it has sent them or not. For a Unix socket, which counts none, the
/// memory of those that nobody has read yet.
pub fn kernel_given(fd: RawFd) -> u64 {
    if is_unix_socket(fd) {
        return unread_memory(fd);
    }
    // The offsets of `tcpi_notsent_bytes`, of four bytes, and of `tcpi_bytes_retrans` in `struct tcp_info` of
    // linux/tcp.h.
    const NOT_SENT: usize = 144;
    const SENT_AGAIN: usize = 208;
    let found = kernel_information(fd);
    let not_sent = u32::from_ne_bytes(found[NOT_SENT..NOT_SENT + 4].try_into().expect("four bytes"));
    word(&found, SENT) - word(&found, SENT_AGAIN) + u64::from(not_sent)
}

fn is_unix_socket(fd: RawFd) -> bool {
    number_option(fd, libc::SO_DOMAIN) == libc::AF_UNIX
}

/// An option of the socket level that is a number.
pub fn number_option(fd: RawFd, name: i32) -> i32 {
    let (mut value, mut length) = (0i32, size_of::<i32>() as u32);
    // SAFETY: a live int.
    let status =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length) };
    assert_eq!(status, 0, "{}", errno());
    value
}

/// The memory of what was sent through the kernel and nobody has read yet, by `SO_MEMINFO`.
fn unread_memory(fd: RawFd) -> u64 {
    /// The option, and the place of `SK_MEMINFO_WMEM_ALLOC` in what it writes.
    const MEMORY: i32 = 55;
    const ALLOCATED: usize = 2;
    let (mut found, mut length) = ([0u32; 9], 36);
    // SAFETY: a live array of that length.
    let status =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, MEMORY, found.as_mut_ptr().cast(), &raw mut length) };
    assert_eq!(status, 0, "{}", errno());
    found[ALLOCATED].into()
}

/// Bytes that the kernel has received, by its own count.
pub fn kernel_received(fd: RawFd) -> u64 {
    kernel_moved(fd)[1]
}

/// Bytes that the kernel has sent, and received.
fn kernel_moved(fd: RawFd) -> [u64; 2] {
    // The offset of `tcpi_bytes_received`.
    const RECEIVED: usize = 128;
    let found = kernel_information(fd);
    [SENT, RECEIVED].map(|at| word(&found, at))
}

/// The offset of `tcpi_bytes_sent` in `struct tcp_info` of linux/tcp.h.
const SENT: usize = 200;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn kernel_information(fd: RawFd) -> [u8; 256] {
    let (mut found, mut length) = ([0u8; 256], 256);
    // SAFETY: a live buffer of that length.
    unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, found.as_mut_ptr().cast(), &raw mut length)
    };
    assert!(length as usize >= SENT + 16, "the kernel does not say what it has sent");
    found
}

/// Waits until this many bytes have arrived at `fd`, or something else has. Even within one machine that takes time.
pub fn settle(fd: RawFd, bytes: u64) {
    for _ in 0..20_000 {
        let mut queued: i32 = 0;
        // SAFETY: one int.
        unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut queued) };
        if queued as u64 >= bytes {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same for the end of what `fd` receives.
pub fn settle_end(fd: RawFd) {
    settle_event(fd, libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR);
}

/// The same for the close of the other end. The pairing service may have a copy of that end for a moment.
pub fn settle_close(fd: RawFd) {
    let hangs_up = is_unix_socket(fd);
    settle_event(fd, if hangs_up { libc::POLLHUP } else { libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR });
}

fn settle_event(fd: RawFd, events: i16) {
    for _ in 0..20_000 {
        if poll(fd, events).1 & events != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Closes a descriptor that is still open.
pub fn close(fd: RawFd) {
    // SAFETY: a descriptor of the driver, which no longer uses it.
    unsafe { libc::close(fd) };
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub fn epoll() -> RawFd {
    // SAFETY: no pointers.
    unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
}

pub fn control(set: RawFd, operation: i32, fd: RawFd, events: u32) -> i64 {
    let mut event = libc::epoll_event { events, u64: 7 };
    // SAFETY: a live event.
    unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) }.into()
}

/// The events that an epoll set has at once.
pub fn wait(set: RawFd) -> (i64, Vec<u32>) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: room for four.
    let status = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, 0) };
    let found = events.iter().take(status.max(0) as usize);
    (status.into(), found.map(|event| event.events).collect())
}

pub fn send(fd: RawFd, bytes: &[u8], kind: u64) -> i64 {
    let (first, rest) = bytes.split_at(bytes.len() / 3);
    let mut parts = [first, rest]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: slices and structures that live until the call is over.
    let sent = unsafe {
        match kind {
            0 => libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL),
            1 => libc::write(fd, bytes.as_ptr().cast(), bytes.len()),
            2 => libc::writev(fd, parts.as_ptr(), 2),
            _ => {
                let mut message: libc::msghdr = std::mem::zeroed();
                (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
                libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL)
            }
        }
    };
    sent as i64
}

/// The kind of receive that leaves the bytes in place.
pub const PEEK: u64 = 4;

pub fn receive(fd: RawFd, length: usize, kind: u64) -> (i64, Vec<u8>) {
    let mut bytes = vec![0u8; length];
    let (first, rest) = bytes.split_at_mut(length / 3);
    let mut parts =
        [first, rest].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    // SAFETY: buffers and structures that live until the call is over.
    let received = unsafe {
        match kind {
            0 => libc::recv(fd, bytes.as_mut_ptr().cast(), length, 0),
            1 => libc::read(fd, bytes.as_mut_ptr().cast(), length),
            2 => libc::readv(fd, parts.as_ptr(), 2),
            3 => libc::recv(fd, bytes.as_mut_ptr().cast(), length, libc::MSG_WAITALL | libc::MSG_DONTWAIT),
            PEEK => libc::recv(fd, bytes.as_mut_ptr().cast(), length, libc::MSG_PEEK),
            _ => {
                let mut message: libc::msghdr = std::mem::zeroed();
                (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
                libc::recvmsg(fd, &raw mut message, 0)
            }
        }
    };
    bytes.truncate(received.max(0) as usize);
    (received as i64, bytes)
}

/// `TCP_INQ` of linux/tcp.h, also the type of its control message.
const TCP_INQ: i32 = 36;

/// Asks for the number of bytes that are left behind each message.
pub fn report_left(fd: RawFd) {
    let one = 1i32;
    // SAFETY: one int.
    let status = unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, TCP_INQ, (&raw const one).cast(), size_of_val(&one) as u32)
    };
    assert_eq!(status, 0);
}

/// Receives a message, and the number of bytes that are left behind it, if it comes with the message.
pub fn receive_and_left(fd: RawFd, length: usize) -> (i64, Option<i32>) {
    let mut bytes = vec![0u8; length];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let mut control = [0u64; 8];
    // SAFETY: buffers and structures that live until the call is over, and control data as the kernel has written it.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let received = libc::recvmsg(fd, &raw mut message, 0);
        let header =
            if received < 0 { std::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(&raw const message) };
        let is_left = !header.is_null() && (*header).cmsg_type == TCP_INQ;
        (received as i64, is_left.then(|| libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
    }
}

pub fn poll(fd: RawFd, events: i16) -> (i64, i16) {
    let mut file = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live entry.
    let status = unsafe { libc::poll(&raw mut file, 1, 0) };
    (status.into(), file.revents)
}

/// Waits for bytes for at most this many milliseconds.
pub fn poll_for(fd: RawFd, timeout_ms: i32) -> bool {
    let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut file, 1, timeout_ms) == 1 }
}

/// Readable, writable, urgent.
pub fn select(fd: RawFd) -> (i64, [bool; 3]) {
    // SAFETY: zeros are an empty set; the descriptor is below the sets' length.
    unsafe {
        let mut sets: [libc::fd_set; 3] = std::mem::zeroed();
        sets.iter_mut().for_each(|set| libc::FD_SET(fd, set));
        let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let [read, write, except] = &mut sets;
        let status = libc::select(fd + 1, read, write, except, &raw mut now);
        (status.into(), sets.map(|set| status >= 0 && libc::FD_ISSET(fd, &raw const set)))
    }
}

pub fn option(fd: RawFd, name: i32) -> i64 {
    let (mut value, mut length) = (0i32, 4u32);
    // SAFETY: one int.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length) };
    value.into()
}

/// Runs this test as a program with the library, in which connections must be carried. `true`: this is that program.
pub fn is_driver() -> bool {
    is_driver_by(Domain::Tcp)
}

/// The same for connections of this domain.
pub fn is_driver_by(domain: Domain) -> bool {
    if role().is_some() {
        return true;
    }
    let pairing = TestService::with_domain(domain);
    pairing.drive(1);
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
    false
}

/// Runs `work` in a child, which exits with its result.
pub fn child(work: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: this program has no other threads that hold anything that the child needs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = work();
        // SAFETY: no pointers.
        unsafe { libc::_exit(status) };
    }
    assert!(child > 0, "a child");
    child
}

/// The exit status of a child.
pub fn end_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// 0 if `work` succeeds in a child.
pub fn in_child(work: impl FnOnce() -> bool) -> i64 {
    // SAFETY: the child makes only system calls, and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(!work()));
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        status.into()
    }
}

/// Sends a descriptor through a Unix socket, receives it, and closes the received one.
pub fn pass(fd: RawFd) -> i64 {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    let status = pass_by(ends[0], fd);
    let taken = take(ends[1]);
    if taken >= 0 {
        // SAFETY: a descriptor of this function.
        unsafe { libc::close(taken) };
    }
    // SAFETY: descriptors of this function.
    ends.iter().for_each(|end| assert_eq!(unsafe { libc::close(*end) }, 0));
    status
}

/// A descriptor received through this Unix socket; −1: none.
pub fn take(channel: RawFd) -> RawFd {
    with_message(-1, |message| {
        // SAFETY: structures that live until the calls are over, and what the kernel has written there.
        unsafe {
            libc::recvmsg(channel, message, 0);
            let header = libc::CMSG_FIRSTHDR(message);
            if header.is_null() { -1 } else { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() }
        }
    })
}

/// Sends a descriptor through this Unix socket.
pub fn pass_by(channel: RawFd, fd: RawFd) -> i64 {
    // SAFETY: structures that live until the call is over.
    with_message(fd, |message| unsafe { libc::sendmsg(channel, message, 0) as i64 })
}

/// A message of one byte with one descriptor.
fn with_message<T>(fd: RawFd, work: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    #[repr(C, align(8))]
    struct Control([u8; 32]);
    let (mut byte, mut control) = (1u8, Control([0; 32]));
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zeros are a message, and the control buffer has room for one descriptor.
    let mut message = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        message
    };
    work(&mut message)
}
