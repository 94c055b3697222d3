//! The situations that the differential test must reach, each with a count: a full ring, a return to a kernel without
//! room, edge-triggered sets, and programs that are started with a carried socket.
//!
//! A ring and the kernel buffer different amounts, so these are not recorded. Every byte is checked.

use std::ffi::{CStr, CString};
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, RawFd};
use std::sync::LazyLock;

use crate::test_service;

/// How often each situation was reached, on connections that were carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// A send found the ring full.
    pub full: u64,
    /// A ring was returned, and the kernel had no room for all of it.
    pub owed: u64,
    /// An edge-triggered set has reported.
    pub edge: u64,
    /// An executed program has read from a ring, or written behind one.
    pub exec: u64,
    /// The same by `posix_spawn`.
    pub spawn: u64,
}

/// The prefix of the counts in a transcript.
pub const REACHED: &str = "reached = ";

impl Reached {
    /// In the order of the fields.
    pub fn counts(&self) -> [u64; 5] {
        [self.full, self.owed, self.edge, self.exec, self.spawn]
    }

    /// As a line of a transcript.
    pub fn line(&self) -> String {
        format!("{REACHED}{}", self.counts().map(|count| count.to_string()).join(" "))
    }

    /// Removes such lines from a transcript, and adds their counts.
    pub fn take_out_of(&mut self, transcript: &str) -> String {
        let mut rest = String::new();
        for line in transcript.lines() {
            match line.strip_prefix(REACHED) {
                None => rest += &format!("{line}\n"),
                Some(counts) => {
                    let counts: Vec<u64> =
                        counts.split(' ').map(|count| count.parse().expect("a number")).collect();
                    let mine =
                        [&mut self.full, &mut self.owed, &mut self.edge, &mut self.exec, &mut self.spawn];
                    assert_eq!(counts.len(), mine.len(), "{line}");
                    mine.into_iter().zip(counts).for_each(|(sum, count)| *sum += count);
                }
            }
        }
        rest
    }
}

/// The longest piece of the stream that is sent or checked at once.
pub const PIECE_BYTES: usize = 200_000;

/// `length` bytes of the stream that starts with `first`.
pub fn pattern(first: u8, length: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| (0..PIECE_BYTES + 256).map(|at| at as u8).collect());
    &ALL[first.into()..][..length]
}

/// A pipe that no program inherits.
fn pipe() -> [RawFd; 2] {
    let mut ends = [-1; 2];
    // SAFETY: room for two.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0, "a pipe");
    ends
}

/// All bytes of a pipe, which is closed then.
fn rest_of(pipe: RawFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    // SAFETY: nobody else has it.
    let mut file = unsafe { std::fs::File::from_raw_fd(pipe) };
    file.read_to_end(&mut bytes).expect("a pipe");
    bytes
}

/// Makes calls block for at most 20 s, or makes them non-blocking.
pub fn set_waiting(fd: RawFd, waits: bool) {
    let timeout = libc::timeval { tv_sec: if waits { 20 } else { 0 }, tv_usec: 0 };
    // SAFETY: a live structure of that length.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        let flags = if waits { flags & !libc::O_NONBLOCK } else { flags | libc::O_NONBLOCK };
        libc::fcntl(fd, libc::F_SETFL, flags);
        let length = size_of::<libc::timeval>() as u32;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const timeout).cast(), length);
    }
}

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// By `execve` in a forked child.
    Exec,
    /// By `posix_spawn`.
    Spawn,
}

/// A program with its arguments, which runs with the library or without.
pub struct Program {
    words: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    pub fn new(words: &[String], has_library: bool) -> Self {
        let text = |text: String| CString::new(text).expect("no nought");
        let variables = std::env::vars().filter(|(name, _)| has_library || name != "LD_PRELOAD");
        Self {
            words: words.iter().cloned().map(text).collect(),
            environment: variables.map(|(name, value)| text(format!("{name}={value}"))).collect(),
        }
    }

    /// Runs it with `fd` as its input and a pipe as its output, or the reverse. Returns its status and its output.
    pub fn run(&self, start: Start, fd: RawFd, is_input: bool) -> (i64, Vec<u8>) {
        let [out, into] = pipe();
        let files = if is_input { [fd, into] } else { [out, fd] };
        let child = match start {
            Start::Exec => self.execute(files),
            Start::Spawn => self.spawn(files),
        };
        test_service::close(into);
        let mut status = 0;
        let said = if is_input { rest_of(out) } else { Vec::new() };
        // SAFETY: a child of this process, for which nobody else waits.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child, "a child");
        if !is_input {
            test_service::close(out);
        }
        (status.into(), said)
    }

    fn execute(&self, [input, output]: [RawFd; 2]) -> libc::pid_t {
        let (words, environment) = (pointers(&self.words), pointers(&self.environment));
        // SAFETY: the child makes only system calls; the lists end with null.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::dup2(input, 0);
                libc::dup2(output, 1);
                libc::execvpe(words[0], words.as_ptr(), environment.as_ptr());
                libc::_exit(127);
            }
            child
        }
    }

    fn spawn(&self, [input, output]: [RawFd; 2]) -> libc::pid_t {
        let (words, environment) = (pointers(&self.words), pointers(&self.environment));
        let mut child = 0;
        // SAFETY: structures that live until the call is over; the lists end with null.
        unsafe {
            let mut actions = std::mem::zeroed();
            libc::posix_spawn_file_actions_init(&raw mut actions);
            libc::posix_spawn_file_actions_adddup2(&raw mut actions, input, 0);
            libc::posix_spawn_file_actions_adddup2(&raw mut actions, output, 1);
            let (words, environment) = (words.as_ptr().cast(), environment.as_ptr().cast());
            let error = libc::posix_spawnp(
                &raw mut child,
                self.words[0].as_ptr(),
                &raw const actions,
                std::ptr::null(),
                words,
                environment,
            );
            assert_eq!(error, 0, "it starts");
            libc::posix_spawn_file_actions_destroy(&raw mut actions);
        }
        child
    }
}

fn pointers(words: &[CString]) -> Vec<*const libc::c_char> {
    words.iter().map(|word| CStr::as_ptr(word)).chain([std::ptr::null()]).collect()
}

/// Whether the kernel has enough memory for TCP. All sockets of the machine share it, and abandoned sockets with unsent
/// bytes keep some for minutes.
pub fn has_room_for_tcp() -> bool {
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).expect("a number");
    let read = |path: &str| std::fs::read_to_string(path).expect("the kernel tells");
    let (counts, memory) = (read("/proc/net/sockstat"), read("/proc/meminfo"));
    let mut words = counts.lines().find(|line| line.starts_with("TCP:")).expect("TCP").split(' ');
    words.find(|word| *word == "mem");
    let pages = number(words.next());
    // Other network namespaces than the first one do not see the limit. It is the kernel's default, unless somebody has
    // changed it.
    let otherwise = || number(memory.split_whitespace().nth(1)) / 4 / 16 * 3 / 4;
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem");
    pages < limits.map_or_else(|_| otherwise(), |limits| number(limits.split_whitespace().next()))
}
