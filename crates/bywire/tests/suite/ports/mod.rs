//! Ports in a runtime directory of their own.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use bywire::{Address, DisconnectReason, Event, Peer, Port, PortOptions};
use tempfile::TempDir;

/// A runtime directory that is removed with the test.
pub struct PortDirectory {
    directory: TempDir,
}

impl PortDirectory {
    pub fn new() -> Self {
        // For this user alone, whatever the umask is: in a directory that others can open a lock file stays.
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).expect("chmod");
        Self { directory }
    }

    #[allow(dead_code, reason = "not every test file has options of its own")]
    pub fn options(&self) -> PortOptions {
        PortOptions { runtime_directory: Some(self.directory.path().to_owned()), ..PortOptions::default() }
    }

    pub fn open(&self, options: PortOptions) -> Port {
        Port::open(PortOptions { runtime_directory: Some(self.directory.path().to_owned()), ..options })
            .expect("open")
    }

    #[allow(dead_code, reason = "not every test file looks at what is left")]
    pub fn path(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Two connected ports with the same options, and each port's handle of the other.
    #[allow(dead_code, reason = "not every test file needs a pair")]
    pub fn pair(&self, options: &PortOptions) -> (Port, Peer, Port, Peer) {
        let (mut a, mut b) = (self.open(options.clone()), self.open(options.clone()));
        let (to_b, to_a) = meet(&mut a, &mut b);
        (a, to_b, b, to_a)
    }
}

/// Connects two ports of this thread.
pub fn meet(a: &mut Port, b: &mut Port) -> (Peer, Peer) {
    let to_b = a.connect_start(&Address::local(b.name().clone())).expect("connect");
    let (mut at_a, mut at_b) = (None, None);
    until(|| {
        // Sleeping ports look at their sockets at once, polling ones within a millisecond.
        for (port, met) in [(&mut *a, &mut at_a), (&mut *b, &mut at_b)] {
            match port.wait(Some(Duration::ZERO)).expect("wait") {
                Some(Event::Connected(peer)) => *met = Some(peer),
                Some(other) => panic!("{other:?} before the connection"),
                None => {}
            }
            if port.arm() {
                let _ = port.wait(Some(Duration::from_millis(1))).map(|event| {
                    if let Some(Event::Connected(peer)) = event {
                        *met = Some(peer);
                    }
                });
            }
        }
        at_a.is_some() && at_b.is_some()
    });
    assert_eq!(at_a, Some(to_b));
    (to_b, at_b.expect("met"))
}

/// Repeats until `done` returns true, for at most a minute.
pub fn until(mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < limit, "this will never happen");
    }
}

/// Polls several ports in turn until the first of them has an event, and returns that.
#[allow(dead_code, reason = "not every test file waits for events")]
pub fn event(ports: &mut [&mut Port]) -> Event {
    let mut found = None;
    until(|| {
        for (place, port) in ports.iter_mut().enumerate() {
            match port.poll() {
                Some(event) if place == 0 => found = Some(event),
                Some(other) => panic!("{other:?} at another port"),
                None => {}
            }
            if found.is_some() {
                break;
            }
        }
        found.is_some()
    });
    found.expect("found")
}

/// All messages until the peer has closed. No buffer is posted for them.
#[allow(dead_code, reason = "not every test file has peers that close")]
pub fn messages_until_closed(port: &mut Port) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    until(|| match port.poll() {
        Some(Event::Message(message)) => {
            received.push(message.payload.to_vec());
            false
        }
        Some(Event::Disconnected { reason: DisconnectReason::Closed, .. }) => true,
        Some(Event::BufferNeeded { .. }) | None => false,
        Some(other) => panic!("{other:?}"),
    });
    received
}
