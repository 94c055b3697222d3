//! The status of the service: counts of the connections that it has paired.

use std::path::Path;
use std::time::{Duration, Instant};

use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};

use crate::protocol::{Kind, PACKET_BYTES, Packet, VERSION};
use crate::reason::Reason;

/// Codes of a `Count`, beside the numbers of reasons.
pub(crate) const PROCESSES: u8 = 128;
pub(crate) const CARRIED: u8 = 129;
pub(crate) const CARRIED_EVER: u8 = 130;
pub(crate) const WAITING: u8 = 131;
pub(crate) const BYTES: u8 = 132;
pub(crate) const CUT: u8 = 133;
pub(crate) const UNUSED: u8 = 134;
pub(crate) const MEMORY: u8 = 135;
/// The [`VERSION`] of the service, which is no count.
const SPOKEN: u8 = 136;

/// How long [`ask`] waits for the answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Counts since the service began, unless their line says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Programs that are connected now.
    pub processes: u64,
    /// Connections that are carried now.
    pub carried: u64,
    /// Connections that have been carried.
    pub carried_ever: u64,
    /// Ends that now wait for their other ends.
    pub waiting: u64,
    /// Bytes that were sent in memory over connections that have ended.
    pub bytes: u64,
    /// Ends of carried connections whose program was killed, so that the other end was reset.
    pub cut: u64,
    /// Ends of [`Self::carried_ever`] that were over before they sent or received a byte in memory.
    pub unused: u64,
    /// Bytes of memory that the rings of carried connections have now, as far as programs have told.
    pub memory: u64,
    /// Connections that were not carried, by [`Reason`].
    pub not_carried: Vec<(Reason, u64)>,
}

/// Why the service gave no status.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// No service listens there.
    #[error("no pairing service runs: `bywire run` starts one")]
    Absent,
    /// The service did not answer in time.
    #[error("the pairing service does not answer: it may be stopped or busy")]
    Silent,
    /// The service pairs programs of another version only.
    #[error(
        "the pairing service that runs is of another version of Bywire: end the programs that were started before, \
         after which it ends by itself, or restart the unit bywire-pairing"
    )]
    OtherVersion,
}

/// Asks the service at `path`.
///
/// # Errors
/// [`QueryError`].
pub fn query(path: &Path) -> Result<Status, QueryError> {
    ask(path, 0).map(|(status, _)| status)
}

/// Asks the service at `path` for the connections of one process. They are counted by their ends in that process, since it
/// connected to the service. `processes` is 0 if it is not connected. `None`: the service is of an earlier build, which
/// counts no processes apart.
///
/// # Errors
/// [`QueryError`].
pub fn query_process(path: &Path, process: u32) -> Result<Option<Status>, QueryError> {
    ask(path, process).map(|(status, answered)| (answered == process).then_some(status))
}

/// The status, and the number of the process that it is about, or 0.
fn ask(path: &Path, process: u32) -> Result<(Status, u32), QueryError> {
    let socket = Socket::connect(path).map_err(|_| QueryError::Absent)?;
    let mut poller = Poller::new().map_err(|_| QueryError::Silent)?;
    poller.add(&socket, 0).map_err(|_| QueryError::Silent)?;
    let question = Packet { number: process, ..Packet::new(Kind::Status, 0) };
    socket.send(&question.encode(), &[]).map_err(|_| QueryError::Absent)?;
    let (mut status, mut spoken, end) = (Status::default(), None, Instant::now() + TIMEOUT);
    loop {
        let mut buffer = [0; PACKET_BYTES];
        match socket.receive(&mut buffer) {
            Ok(Received::Packet(length, _)) => match Packet::decode(&buffer[..length]) {
                Some(packet) if packet.kind == Kind::Count && packet.code == SPOKEN => {
                    spoken = Some(packet.first)
                }
                Some(packet) if packet.kind == Kind::Count => status.note(packet.code, packet.first),
                Some(packet) if packet.kind == Kind::Done => {
                    return if spoken == Some(VERSION) {
                        Ok((status, packet.number))
                    } else {
                        Err(QueryError::OtherVersion)
                    };
                }
                _ => return Err(QueryError::Silent),
            },
            Ok(Received::Nothing) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(QueryError::Silent);
                }
                poller.wait(Some(left)).map_err(|_| QueryError::Silent)?;
            }
            _ => return Err(QueryError::Silent),
        }
    }
}

impl std::ops::Add for Status {
    type Output = Self;

    /// The sum of two services.
    fn add(mut self, other: Self) -> Self {
        for (reason, count) in other.not_carried {
            self.add_not_carried(reason, count);
        }
        Self {
            processes: self.processes + other.processes,
            carried: self.carried + other.carried,
            carried_ever: self.carried_ever + other.carried_ever,
            waiting: self.waiting + other.waiting,
            bytes: self.bytes.saturating_add(other.bytes),
            cut: self.cut + other.cut,
            memory: self.memory.saturating_add(other.memory),
            unused: self.unused.saturating_add(other.unused),
            not_carried: self.not_carried,
        }
    }
}

impl Status {
    /// Adds connections that were not carried.
    pub(crate) fn add_not_carried(&mut self, reason: Reason, count: u64) {
        match self.not_carried.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, known)) => *known = known.saturating_add(count),
            None => self.not_carried.push((reason, count)),
        }
    }

    fn note(&mut self, code: u8, value: u64) {
        match code {
            PROCESSES => self.processes = value,
            CARRIED => self.carried = value,
            CARRIED_EVER => self.carried_ever = value,
            WAITING => self.waiting = value,
            BYTES => self.bytes = value,
            CUT => self.cut = value,
            UNUSED => self.unused = value,
            MEMORY => self.memory = value,
            _ => self.not_carried.extend(Reason::of(code).map(|reason| (reason, value))),
        }
    }

    pub(crate) fn packets(&self) -> impl Iterator<Item = Packet> {
        let count = |code, first| Packet { code, first, ..Packet::new(Kind::Count, 0) };
        let own = [
            count(PROCESSES, self.processes),
            count(CARRIED, self.carried),
            count(CARRIED_EVER, self.carried_ever),
            count(WAITING, self.waiting),
            count(BYTES, self.bytes),
            count(CUT, self.cut),
            count(UNUSED, self.unused),
            count(MEMORY, self.memory),
            count(SPOKEN, VERSION),
        ];
        let reasons = self.not_carried.iter().map(move |(reason, value)| count(*reason as u8, *value));
        own.into_iter().chain(reasons).chain([Packet::new(Kind::Done, 0)])
    }
}
