//! Ports in a runtime directory of their own, and what most tests do with them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bywire::{Address, DisconnectReason, Event, Message, Peer, Port, PortName, PortOptions};
use bywire_testing::Look;
use tempfile::TempDir;

/// Whatever a test waits for comes within this time, also on a busy machine.
pub const MINUTE: Duration = Duration::from_secs(60);
/// A sleeping port looks at its sockets at once.
const MOMENT: Option<Duration> = Some(Duration::from_millis(1));

/// A runtime directory that is removed with the test.
pub struct PortDirectory {
    directory: TempDir,
}

impl PortDirectory {
    pub fn new() -> Self {
        // For this user alone, whatever the umask is: in a directory that others can open a lock file stays.
        Self::with_mode(0o700)
    }

    /// A directory for all users, as root makes it.
    pub fn shared() -> Self {
        Self::with_mode(0o1777)
    }

    fn with_mode(mode: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).expect("chmod");
        Self { directory }
    }

    pub fn options(&self) -> PortOptions {
        PortOptions { runtime_directory: Some(self.directory.path().to_owned()), ..PortOptions::default() }
    }

    pub fn open(&self, options: PortOptions) -> Port {
        Port::open(PortOptions { runtime_directory: Some(self.directory.path().to_owned()), ..options })
            .expect("open")
    }

    /// A port with this name and the default options.
    pub fn named(&self, text: &str) -> Port {
        self.open(named(text))
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The names of all entries.
    pub fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("the directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    }

    /// Two connected ports with the same options, and each port's handle of the other.
    pub fn pair(&self, options: &PortOptions) -> (Port, Peer, Port, Peer) {
        let (mut a, mut b) = (self.open(options.clone()), self.open(options.clone()));
        let (to_b, to_a) = meet(&mut a, &mut b);
        (a, to_b, b, to_a)
    }
}

pub fn name(text: &str) -> PortName {
    text.parse().expect("a name")
}

/// The default options with a name.
pub fn named(text: &str) -> PortOptions {
    PortOptions { name: Some(name(text)), ..PortOptions::default() }
}

/// The address of a port of this machine.
pub fn address(text: &str) -> Address {
    Address::local(name(text))
}

/// Connects two ports of this thread.
pub fn meet(a: &mut Port, b: &mut Port) -> (Peer, Peer) {
    let address = Address::local(b.name().clone());
    meet_at(a, b, &address)
}

/// Connects two ports of this thread, the second of which has this address.
pub fn meet_at(a: &mut Port, b: &mut Port, address: &Address) -> (Peer, Peer) {
    let to_b = a.connect_start(address).expect("connect");
    let mut met = [None, None];
    until(|| {
        for (port, met) in [&mut *a, &mut *b].into_iter().zip(&mut met) {
            match port.wait(MOMENT).expect("wait") {
                Some(Event::Connected(peer)) => *met = Some(peer),
                Some(other) => panic!("{other:?} before the connection"),
                None => {}
            }
        }
        met[0].zip(met[1])
    });
    assert_eq!(met[0], Some(to_b));
    (to_b, met[1].expect("met"))
}

/// Repeats until there is something, for at most a minute, and returns that.
#[track_caller]
pub fn until<Outcome: Look>(mut done: impl FnMut() -> Outcome) -> Outcome::Found {
    let limit = Instant::now() + MINUTE;
    loop {
        if let Some(found) = done().found() {
            return found;
        }
        assert!(Instant::now() < limit, "this will never happen");
    }
}

/// Polls several ports in turn until the first of them has an event, and returns that.
pub fn event(ports: &mut [&mut Port]) -> Event {
    until(|| {
        for (place, port) in ports.iter_mut().enumerate() {
            match port.poll() {
                Some(event) if place == 0 => return Some(event),
                Some(other) => panic!("{other:?} at another port"),
                None => {}
            }
        }
        None
    })
}

/// The next event of a port, which sleeps meanwhile.
#[track_caller]
pub fn next(port: &mut Port) -> Event {
    port.wait(Some(MINUTE)).expect("wait").expect("something happens in a minute")
}

/// The next message at a port while another one is polled as well. Its other events do not count.
pub fn message(at: &mut Port, other: &mut Port) -> Message {
    until(|| {
        other.poll();
        match at.poll() {
            Some(Event::Message(message)) => Some(message),
            _ => None,
        }
    })
}

/// Polls a port until a peer has ended. `on_event` gets every event before that.
#[track_caller]
pub fn until_ended(port: &mut Port, mut on_event: impl FnMut(&mut Port, Event)) -> (Peer, DisconnectReason) {
    until(|| match port.poll()? {
        Event::Disconnected { peer, reason } => Some((peer, reason)),
        event => {
            on_event(port, event);
            None
        }
    })
}

/// All messages until the peer has closed. No buffer is posted for them.
pub fn messages_until_closed(port: &mut Port) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    let (_, reason) = until_ended(port, |_, event| match event {
        Event::Message(message) => received.push(message.payload.to_vec()),
        Event::BufferNeeded { .. } => {}
        other => panic!("{other:?}"),
    });
    assert_eq!(reason, DisconnectReason::Closed);
    received
}

/// Runs a port while another thread acts. Returns the thread's result and the port's events.
pub fn serve<T: Send>(port: &mut Port, act: impl FnOnce() -> T + Send) -> (T, Vec<Event>) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(act);
        let mut events = Vec::new();
        until(|| {
            events.extend(port.wait(MOMENT).expect("wait"));
            thread.is_finished()
        });
        (thread.join().expect("no panic"), events)
    })
}

/// Posts the buffer that a port needs.
pub fn post_needed(port: &mut Port, event: &Event) -> bool {
    let Event::BufferNeeded { priority, length_bytes, .. } = event else { return false };
    port.post_receive(*priority, vec![0; *length_bytes as usize]).expect("token");
    true
}

/// Bytes that differ from their neighbours, and for each seed.
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + seed * 7 + (index >> 8)) as u8).collect()
}

/// Pseudo-random numbers, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// The number of open descriptors of this process, and one for the count.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}
