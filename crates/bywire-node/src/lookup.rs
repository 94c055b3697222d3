//! Questions that another program answers in its own time: the names of users and the addresses of hosts. A thread for
//! each kind asks them, so that a directory service or a name server that does not answer delays nothing else.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bywire_sys::names;
use bywire_sys::share::block;
use bywire_wire::handshake::PublicKey;
use bywire_wire::service::GROUPS_BYTES_MAX;
use bywire_wire::service_message::GROUPS_MAX;

use crate::broker::{PortId, USER_BYTES_MAX};
use crate::fabric::ServiceAddress;

/// The most questions that wait. A port asks at most one, and this is more than all ports that there can be.
const WAITING_MAX: usize = 1 << 16;
/// The most addresses of one host.
const HOST_ADDRESSES_MAX: usize = 16;

/// A question.
#[derive(Debug)]
pub enum Question {
    /// The names of a registering port's user and groups.
    User {
        /// The port.
        port: PortId,
        /// Its user.
        uid: u32,
        /// Its groups.
        gids: Vec<u32>,
    },
    /// The addresses of a node.
    Node {
        /// The node.
        node: PublicKey,
        /// Its addresses, of which some are names of hosts.
        addresses: Vec<ServiceAddress>,
    },
}

impl Question {
    fn node(&self) -> Option<PublicKey> {
        match self {
            Self::Node { node, .. } => Some(*node),
            Self::User { .. } => None,
        }
    }
}

/// An answer.
#[derive(Debug)]
pub enum Answer {
    /// The names for a port.
    User {
        /// The port.
        port: PortId,
        /// Its user's name, or the number.
        user: String,
        /// Names of groups.
        groups: Vec<String>,
    },
    /// The addresses of a node, or none if its names are unknown.
    Node {
        /// The node.
        node: PublicKey,
        /// What was asked about. The fabric file may say something else by now.
        asked: Vec<ServiceAddress>,
        /// Its addresses.
        addresses: Vec<SocketAddr>,
    },
}

/// The threads that ask.
#[derive(Debug)]
pub struct Lookups {
    users: Arc<Line>,
    hosts: Arc<Line>,
    answers: Receiver<Answer>,
    doorbell: UnixStream,
}

impl Lookups {
    /// Starts the threads. They end with this value, once they have finished their question.
    ///
    /// # Errors
    /// No descriptors or threads are left.
    pub fn start() -> std::io::Result<Self> {
        let (doorbell, ringer) = UnixStream::pair()?;
        doorbell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        let (told, answers) = mpsc::channel();
        let thread = |name: &str| -> std::io::Result<Arc<Line>> {
            let line = Arc::new(Line::default());
            let asked = line.clone();
            let (told, ringer) = (told.clone(), ringer.try_clone()?);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                while let Some(question) = asked.next() {
                    if told.send(answer(question)).is_err() {
                        return;
                    }
                    // A full pipe has been rung.
                    let _ = (&ringer).write(&[0]);
                }
            })?;
            Ok(line)
        };
        Ok(Self { users: thread("users")?, hosts: thread("hosts")?, answers, doorbell })
    }

    /// Adds a question. `false`: too many wait.
    pub fn ask(&self, question: Question) -> bool {
        match question {
            Question::User { uid, .. } => self.users.join(block(uid), question),
            Question::Node { .. } => self.hosts.join(0, question),
        }
    }

    /// The answers since the last call.
    pub fn answers(&self) -> Vec<Answer> {
        let mut bytes = [0; 64];
        while matches!((&self.doorbell).read(&mut bytes), Ok(1..)) {}
        self.answers.try_iter().collect()
    }
}

impl Drop for Lookups {
    fn drop(&mut self) {
        self.users.close();
        self.hosts.close();
    }
}

/// Questions that wait. Each user has a line of its own, and the lines have their turns. Numbers that may be subordinate ones of
/// one person count as one user.
#[derive(Debug, Default)]
struct Line {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By user, in the order of their turns. None is empty.
    lines: VecDeque<(u32, VecDeque<Question>)>,
    count: usize,
    is_closed: bool,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing is left half done by a thread that panics.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a question at the end of its user's line. One about a node takes the place of an older one. `false`: too many wait.
    fn join(&self, user: u32, question: Question) -> bool {
        let mut waiting = self.lock();
        if let Some(node) = question.node() {
            let mut others = waiting.lines.iter_mut().flat_map(|(_, line)| line);
            if let Some(older) = others.find(|other| other.node() == Some(node)) {
                *older = question;
                return true;
            }
        }
        if waiting.count >= WAITING_MAX {
            return false;
        }
        waiting.count += 1;
        match waiting.lines.iter_mut().find(|(of, _)| *of == user) {
            Some((_, line)) => line.push_back(question),
            None => waiting.lines.push_back((user, [question].into())),
        }
        self.changed.notify_one();
        true
    }

    /// Waits for the next question. `None`: there will be none.
    fn next(&self) -> Option<Question> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some((user, mut line)) = waiting.lines.pop_front() {
                let question = line.pop_front();
                if !line.is_empty() {
                    waiting.lines.push_back((user, line));
                }
                waiting.count -= 1;
                return question;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }
}

impl AsFd for Lookups {
    /// Readable if there are answers.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

fn answer(question: Question) -> Answer {
    match question {
        Question::User { port, uid, gids } => {
            let fits = |name: &String| name.len() <= USER_BYTES_MAX && !name.contains(char::is_control);
            let user = names::user_name(uid).filter(fits).unwrap_or_else(|| uid.to_string());
            let mut left = GROUPS_BYTES_MAX;
            let named = gids.into_iter().filter_map(names::group_name).filter(fits);
            let groups = named.take(GROUPS_MAX).take_while(|name| {
                let fits = name.len() <= left;
                left = left.saturating_sub(name.len());
                fits
            });
            Answer::User { port, user, groups: groups.collect() }
        }
        Question::Node { node, addresses: asked } => {
            let mut addresses: Vec<SocketAddr> = Vec::new();
            for address in &asked {
                match address {
                    ServiceAddress::Address(address) => addresses.push(*address),
                    ServiceAddress::Host(host, port) => {
                        let found = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
                        addresses.extend(found.take(HOST_ADDRESSES_MAX));
                    }
                }
            }
            Answer::Node { node, asked, addresses }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_users_are_served_in_turn() {
        let line = Line::default();
        let question = |port, uid| Question::User { port, uid, gids: Vec::new() };
        assert!((0..1000).all(|port| line.join(7, question(port, 7))));
        assert!(line.join(8, question(1000, 8)) && line.join(9, question(1001, 9)));
        let next = || match line.next() {
            Some(Question::User { port, .. }) => port,
            other => panic!("{other:?}"),
        };
        assert_eq!([next(), next(), next(), next(), next()], [0, 1000, 1001, 1, 2]);
        line.close();
        assert!(line.next().is_none());
    }

    #[test]
    fn a_node_is_asked_about_once_however_often_it_does_not_answer() {
        let line = Line::default();
        let question = |byte, port| {
            let addresses = vec![ServiceAddress::Host("web2.example".to_owned(), port)];
            Question::Node { node: PublicKey([byte; 32]), addresses }
        };
        for port in 1..100 {
            assert!([1, 2].iter().all(|byte| line.join(0, question(*byte, port))));
        }
        for byte in [1, 2] {
            let Some(Question::Node { node, addresses }) = line.next() else { panic!("no question") };
            let latest = ServiceAddress::Host("web2.example".to_owned(), 99);
            assert_eq!((node, addresses), (PublicKey([byte; 32]), vec![latest]));
        }
        assert_eq!(line.lock().count, 0);
    }

    #[test]
    fn names_and_addresses_are_resolved_and_unknown_names_are_errors() {
        let lookups = Lookups::start().expect("threads");
        let node = PublicKey([1; 32]);
        let addresses =
            ["127.0.0.1:9", "localhost:8", "no-such-host.invalid"].map(|text| text.parse().expect(text));
        assert!(lookups.ask(Question::Node { node, addresses: addresses.to_vec() }));
        assert!(lookups.ask(Question::User { port: 7, uid: 0, gids: vec![0, 3_999_999_999] }));
        assert!(lookups.ask(Question::User { port: 8, uid: 3_999_999_999, gids: Vec::new() }));
        let mut found = Vec::new();
        let mut poller = bywire_sys::poller::Poller::new().expect("a poller");
        poller.add(&lookups, 0).expect("watched");
        while found.len() < 3 {
            let timeout = Some(std::time::Duration::from_secs(60));
            assert!(!poller.wait(timeout).expect("waited").is_empty(), "no answer");
            found.extend(lookups.answers());
        }
        for answer in found {
            match answer {
                Answer::User { port: 7, user, groups } => {
                    assert_eq!((user.as_str(), groups), ("root", vec!["root".to_owned()]));
                }
                Answer::User { port, user, groups } => {
                    assert_eq!((port, user.as_str(), groups), (8, "3999999999", vec![]));
                }
                Answer::Node { addresses, .. } => {
                    assert_eq!(addresses[0], ([127, 0, 0, 1], 9).into());
                    assert!(addresses[1..].iter().all(|address| address.ip().is_loopback()), "{addresses:?}");
                }
            }
        }
    }
}
