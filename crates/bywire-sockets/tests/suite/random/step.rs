//! One action of one actor, and how actions are drawn.

use std::fmt;

use crate::random::model::{Model, What};
use crate::test_service::Domain;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Send,
    /// Bytes with a descriptor, which is `to`.
    Attach,
    Receive,
    /// Until both buffers are full.
    Fill,
    /// Everything in flight.
    Drain,
    /// Many bytes, sent and received at the same time. `to` is the receiver, `flags` the number of steps meanwhile.
    Transfer,
    Poll,
    NewSet,
    Control,
    Wait,
    Duplicate,
    Close,
    Pass,
    Take,
    Fork,
    Exec,
    Spawn,
    Run,
    Thread,
    Exit,
    Kill,
    Shutdown,
    Handle,
    Signal,
    Look,
    Set,
    Limit,
    Sandbox,
    Reap,
}

/// How often each kind is drawn, relative to the others. [`Kind::Attach`] is drawn in addition, in Unix scripts.
const WEIGHTS: [(Kind, u64); 29] = [
    (Kind::Attach, 0),
    (Kind::Send, 180),
    (Kind::Receive, 200),
    (Kind::Fill, 4),
    (Kind::Drain, 30),
    (Kind::Transfer, 14),
    (Kind::Poll, 60),
    (Kind::NewSet, 14),
    (Kind::Control, 40),
    (Kind::Wait, 50),
    (Kind::Duplicate, 40),
    (Kind::Close, 24),
    (Kind::Pass, 10),
    (Kind::Take, 30),
    (Kind::Fork, 16),
    (Kind::Exec, 6),
    (Kind::Spawn, 8),
    (Kind::Run, 3),
    (Kind::Thread, 16),
    (Kind::Exit, 8),
    (Kind::Kill, 5),
    (Kind::Shutdown, 10),
    (Kind::Handle, 14),
    (Kind::Signal, 24),
    (Kind::Look, 30),
    (Kind::Set, 24),
    (Kind::Limit, 3),
    (Kind::Sandbox, 3),
    (Kind::Reap, 12),
];

impl Kind {
    /// The kinds of a domain's scripts.
    pub fn all(domain: Domain) -> impl Iterator<Item = Self> {
        let kinds = WEIGHTS.iter().map(|(kind, _)| *kind);
        kinds.filter(move |kind| *kind != Self::Attach || domain == Domain::Unix)
    }
}

/// Kinds that `BYWIRE_OFTEN` names are drawn more often, to search for faults that concern them.
fn is_often(kind: Kind) -> bool {
    static OFTEN: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("BYWIRE_OFTEN").ok());
    OFTEN.as_ref().is_some_and(|often| often.split(';').any(|name| name == format!("{kind:?}")))
}

/// Numbers whose meaning depends on the kind. Most go into the order unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub kind: Kind,
    pub actor: usize,
    pub fd: i32,
    pub way: i32,
    pub flags: i32,
    pub to: i32,
    pub size: u64,
}

impl Step {
    /// Whether it makes only calls that actor.c's filter allows.
    pub fn is_for_sandbox(&self) -> bool {
        match self.kind {
            Kind::Send => matches!(self.way, 0..=4 | 7 | 8),
            Kind::Receive => matches!(self.way, 0..=4 | 6 | 7) && self.to == 0,
            Kind::Poll => self.way < 2,
            Kind::Close => self.way != 1,
            Kind::Look => self.way == 0,
            Kind::Set => matches!(self.way, 1 | 5),
            Kind::Exit => self.way != 2,
            Kind::Fill | Kind::Drain | Kind::Transfer | Kind::Pass | Kind::Take | Kind::Attach => true,
            Kind::Kill | Kind::Signal | Kind::Shutdown => true,
            _ => false,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "actor {} {:?}", self.actor, self.kind)?;
        let words = [("fd", self.fd), ("way", self.way), ("flags", self.flags), ("to", self.to)];
        for (name, value) in words {
            if value != 0 {
                write!(out, " {name} {value}")?;
            }
        }
        if self.size != 0 { write!(out, " size {}", self.size) } else { Ok(()) }
    }
}

/// One of so many steps of a Unix script passes a descriptor in the middle of a stream.
const ATTACH_EVERY: u64 = 25;

/// Random numbers from a seed.
#[derive(Clone)]
pub struct Draw {
    state: u64,
    pub domain: Domain,
}

impl Draw {
    pub fn new(seed: u64, domain: Domain) -> Self {
        let state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = Self { state, domain };
        (0..8).for_each(|_| assert!(draw.below(2) < 2));
        draw
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % limit
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn kind(&mut self) -> Kind {
        if self.domain == Domain::Unix && self.below(ATTACH_EVERY) == 0 {
            return Kind::Attach;
        }
        let weight = |kind: Kind, weight| if is_often(kind) { weight * 20 } else { weight };
        let mut left = self.below(WEIGHTS.iter().map(|(kind, found)| weight(*kind, *found)).sum());
        for (kind, found) in WEIGHTS {
            let weight = weight(kind, found);
            if left < weight {
                return kind;
            }
            left -= weight;
        }
        Kind::Send
    }

    /// A step, which may be invalid.
    pub fn step(&mut self, model: &Model) -> Option<Step> {
        let kind = self.kind();
        let idle = model.idle();
        let alive: Vec<_> = (0..model.actors.len()).filter(|actor| model.actors[*actor].is_alive).collect();
        let choices = if matches!(kind, Kind::Kill | Kind::Signal) { &alive } else { &idle };
        let actor = (!choices.is_empty()).then(|| self.of(choices))?;
        let mut step = Step { kind, actor, fd: 0, way: 0, flags: 0, to: 0, size: 0 };
        self.choose_descriptor(model, &mut step)?;
        self.choose_rest(model, &mut step);
        Some(step)
    }

    fn choose_descriptor(&mut self, model: &Model, step: &mut Step) -> Option<()> {
        let fds = &model.processes[model.actors[step.actor].process].fds;
        let held = |is_set: bool| -> Vec<i32> {
            (fds.iter().filter(|(_, held)| matches!(held.what, What::Set(_)) == is_set).map(|(fd, _)| *fd))
                .collect()
        };
        let (ends, sets) = (held(false), held(true));
        let choices = match step.kind {
            Kind::NewSet | Kind::Take | Kind::Fork | Kind::Exec | Kind::Run | Kind::Thread | Kind::Exit => {
                return Some(());
            }
            Kind::Kill | Kind::Handle | Kind::Signal | Kind::Limit | Kind::Sandbox | Kind::Reap => {
                return Some(());
            }
            Kind::Wait => sets,
            Kind::Close | Kind::Duplicate if self.below(4) == 0 => sets,
            Kind::Control => {
                step.to = (!sets.is_empty()).then(|| self.of(&sets))?;
                ends
            }
            _ => ends,
        };
        step.fd = (!choices.is_empty()).then(|| self.of(&choices))?;
        Some(())
    }

    fn choose_rest(&mut self, model: &Model, step: &mut Step) {
        match step.kind {
            Kind::Send => {
                step.way = self.below(11) as i32;
                let limit = self.of(&[10, 100, 3000, 20_000]);
                step.size = self.below(limit) + 1;
                // Calls that have flags.
                if !matches!(step.way, 1 | 2 | 6 | 7 | 9) {
                    step.flags = self.of(&[0, 0, libc::MSG_DONTWAIT]);
                }
            }
            Kind::Receive => self.choose_receive(step),
            Kind::Attach => {
                let fds = &model.processes[model.actors[step.actor].process].fds;
                step.to = self.of(&fds.keys().copied().collect::<Vec<_>>());
                step.size = self.below(3000) + 1;
            }
            Kind::Fill => {
                step.way = self.of(&[0, 3]);
                step.size = 64 << 20;
            }
            Kind::Drain => step.way = self.below(4) as i32,
            Kind::Transfer => {
                step.way = self.below(3) as i32;
                step.to = self.of(&model.idle()) as i32;
                step.flags = self.below(4) as i32;
                let limit = self.of(&[100_000, 300_000, 300_000, 300_000, 5_500_000]);
                step.size = self.below(limit) + 1;
            }
            Kind::Poll => {
                step.way = self.below(4) as i32;
                let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
                step.flags = i32::from(self.of(&[libc::POLLIN, libc::POLLIN, libc::POLLOUT, all, 0]));
                step.to = self.of(&[0, 0, 0, 5, -1]);
            }
            Kind::NewSet => step.flags = self.of(&[libc::EPOLL_CLOEXEC, libc::EPOLL_CLOEXEC, 0]),
            Kind::Control => {
                step.way = self.of(&[
                    libc::EPOLL_CTL_ADD,
                    libc::EPOLL_CTL_ADD,
                    libc::EPOLL_CTL_MOD,
                    libc::EPOLL_CTL_DEL,
                ]);
                let base = [
                    libc::EPOLLIN,
                    libc::EPOLLOUT,
                    libc::EPOLLIN | libc::EPOLLOUT,
                    libc::EPOLLIN | libc::EPOLLRDHUP,
                ];
                step.flags =
                    self.of(&base) | self.of(&[0, 0, libc::EPOLLET, libc::EPOLLET, libc::EPOLLONESHOT]);
            }
            Kind::Wait => {
                step.way = self.below(2) as i32;
                step.flags = self.of(&[0, 0, 0, 0, 5, -1]);
            }
            Kind::Duplicate => {
                step.way = self.below(6) as i32;
                step.to = 3 + self.below(12) as i32;
                step.flags = self.of(&[0, libc::O_CLOEXEC, 5]);
            }
            Kind::Close => step.way = self.of(&[0, 0, 1, 2]),
            Kind::Take => step.flags = self.of(&[0, libc::MSG_CMSG_CLOEXEC]),
            Kind::Fork => step.way = self.below(3) as i32,
            Kind::Spawn => {
                step.flags = self.below(4) as i32;
                step.way = 3 + self.below(12) as i32;
            }
            Kind::Run => step.way = self.below(2) as i32,
            Kind::Thread => step.way = self.of(&[0, 0, 1]),
            Kind::Exit => step.way = self.below(5) as i32,
            Kind::Shutdown => {
                step.way = self.of(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_WR, libc::SHUT_RDWR])
            }
            Kind::Handle => {
                step.way = self.of(&[libc::SIGUSR1, libc::SIGUSR1, libc::SIGALRM]);
                step.flags = self.of(&[0, libc::SA_RESTART])
                    | self.of(&[0, libc::SA_SIGINFO])
                    | self.of(&[0, 0, libc::SA_RESETHAND])
                    | self.of(&[0, 0, libc::SA_ONSTACK])
                    | self.of(&[0, 0, libc::SA_NODEFER]);
            }
            Kind::Look => step.way = self.below(6) as i32,
            Kind::Set => {
                step.way = self.below(7) as i32;
                step.flags = self.below(2) as i32;
                step.size = self.of(&[0, 5]);
            }
            Kind::Limit => {
                step.way = self.below(2) as i32;
                // Either no descriptor, or enough of them: the library needs some of its own.
                step.size = if step.way == 0 { self.of(&[3, 200]) } else { self.below(8192) };
            }
            Kind::Sandbox => (step.way, step.flags) = (self.below(2) as i32, self.below(2) as i32),
            Kind::Pass | Kind::Exec | Kind::Kill | Kind::Signal | Kind::Reap => {}
        }
    }

    fn choose_receive(&mut self, step: &mut Step) {
        step.way = self.below(10) as i32;
        let limit = self.of(&[4, 100, 5000, 50_000]);
        step.size = self.below(limit) + 1;
        let flags = self.of(&[
            0,
            0,
            0,
            libc::MSG_DONTWAIT,
            libc::MSG_PEEK,
            libc::MSG_WAITALL,
            libc::MSG_WAITALL | libc::MSG_DONTWAIT,
            libc::MSG_TRUNC,
        ]);
        // Calls that have flags.
        if !matches!(step.way, 1 | 2 | 6 | 8) {
            step.flags = flags;
        }
        // Milliseconds after which signals come.
        step.to = self.of(&[0, 0, 0, 0, 0, 3]);
    }
}
