//! The state machine of one other node: attempts at a channel, channels that wait for their first packet, and the
//! channel itself.

use std::net::SocketAddr;

use crate::connection::{self, Connection, OWN_REASONS, State};
use crate::frame::Lane;
use crate::handshake::cookie::COOKIE_LIFE_NS;
use crate::handshake::macs::{MAC_BYTES, MacKey};
use crate::handshake::{self, Greeting, HandshakePayload, KEY_BYTES, PublicKey, ReadHello, cookie};
use crate::keys::{Secret, Security, Side};
use crate::packet::Header;
use crate::path::Path;
use crate::planted::{self, Bug};
use crate::random::{Random, draw};
use crate::size::BASE_BYTES;

use super::attempt::{
    ADDRESSES_MAX, ANSWERS_MAX, Attempt, CANDIDATE_KEPT_NS, CANDIDATE_NS, CANDIDATES_MAX, Candidate, Retries,
    TRIES_SLOW, drop_candidates,
};
use super::echo;
use super::established::Channel;
use super::incarnations::Incarnations;
use super::limits::{
    CONNECT_NS, IDLE_NS, KEYS_NS_MAX, KEYS_OVERLAP_NS, RETRY_NS, RETRY_NS_MAX, SILENT_NS, UNREACHABLE_NS,
};
use super::session::{Incarnation, SendError, Session, SessionId, Stream};
use super::shared::Shared;
use super::status::{ChannelStatus, DownReason, Event, NodeCounts, Status};

/// The most bytes of messages that wait in a channel.
const WINDOW: u64 = 64 * 1024;
/// The time within which a channel of this node and one of the other node count as begun at the same time.
const SETTLE_NS: u64 = 5_000_000_000;

/// The code of a close because the service ends.
const REASON_CLOSED: u8 = 1;
/// The code of a close because neither end needs the channel.
const REASON_IDLE: u8 = 2;
/// The code of a close because the other service broke a rule of messages.
const REASON_BROKEN: u8 = 3;

/// A channel whose keys were renewed.
#[derive(Debug)]
struct Previous {
    channel: Channel,
    /// Its packets are accepted until then. None leaves in it.
    until_ns: u64,
}

/// The outcome of a handshake.
struct HandshakeResult {
    side: Side,
    number: u32,
    path: Path,
    secret: Secret,
    /// The greeting of the other end.
    peer: Greeting,
}

#[derive(Debug)]
pub(super) struct Peer {
    node: PublicKey,
    mac_key: MacKey,
    addresses: Vec<SocketAddr>,
    is_wanted: bool,
    /// When it came up, went down, or was wanted first.
    since_ns: Option<u64>,
    /// The longest packet that the route carries, as far as the owner has told.
    route_bytes: u16,
    retries: Option<Retries>,
    attempt: Option<Attempt>,
    /// When the last hello left.
    hello_at_ns: Option<u64>,
    cookie: Option<([u8; MAC_BYTES], u64)>,
    candidates: Vec<Candidate>,
    current: Option<Channel>,
    previous: Option<Previous>,
    session: Option<Session>,
    /// This service's number for the present session, or the next one.
    session_number: u32,
    incarnations: Incarnations,
    counts: NodeCounts,
    /// Those when it went down, or was wanted first.
    counts_before: NodeCounts,
    /// When the owner calls again.
    pub scheduled_ns: Option<u64>,
    /// The address of its last channel that the owner has noted.
    pub noted_address: Option<SocketAddr>,
}

impl Peer {
    pub fn new(node: PublicKey, session_number: u32) -> Self {
        Self {
            mac_key: MacKey::of_receiver(&node.0),
            node,
            addresses: Vec::new(),
            is_wanted: false,
            since_ns: None,
            route_bytes: BASE_BYTES,
            retries: None,
            attempt: None,
            hello_at_ns: None,
            cookie: None,
            candidates: Vec::new(),
            current: None,
            previous: None,
            session: None,
            session_number,
            incarnations: Incarnations::default(),
            counts: NodeCounts::default(),
            counts_before: NodeCounts::default(),
            scheduled_ns: None,
            noted_address: None,
        }
    }

    /// Its addresses in the table.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of its channel.
    pub fn address(&self) -> Option<SocketAddr> {
        self.current.as_ref().map(|channel| channel.path.peer)
    }

    pub fn set_addresses(&mut self, now_ns: u64, addresses: Vec<SocketAddr>) {
        if self.addresses != addresses {
            self.addresses = addresses;
            if let Some(retries) = &mut self.retries {
                (retries.tries, retries.next_ns) = (0, now_ns);
            }
        }
    }

    pub fn connect(&mut self, now_ns: u64) {
        let was_wanted = std::mem::replace(&mut self.is_wanted, true);
        if self.current.is_none() && !was_wanted {
            (self.since_ns, self.counts_before) = (Some(now_ns), self.counts);
        }
        if self.current.is_none() || self.is_trying_elsewhere() {
            // At once, but not for every request of a program.
            let soonest_ns = self.hello_at_ns.map_or(0, |at_ns| at_ns.saturating_add(RETRY_NS));
            self.retries = Some(Retries::new(now_ns.max(soonest_ns)));
        }
    }

    pub fn release(&mut self, shared: &mut Shared) {
        self.is_wanted = false;
        if self.current.is_none() {
            self.stop_trying(shared);
        }
    }

    pub fn send(&mut self, now_ns: u64, message: &[u8]) -> Result<(), SendError> {
        let (Some(session), Some(channel)) = (&mut self.session, &mut self.current) else {
            return Err(SendError::NotUp);
        };
        session.push(message)?;
        if session.send(&mut channel.stream, &mut channel.connection) {
            channel.asked_ns.get_or_insert(now_ns);
        }
        Ok(())
    }

    pub fn send_echo(&mut self, now_ns: u64, number: u64, bytes: usize) -> Result<(), SendError> {
        let channel = self.current.as_mut().ok_or(SendError::NotUp)?;
        // Behind messages, which programs wait for.
        if !channel.connection.send_datagram(Lane::Low, &echo::request(number, bytes)) {
            return Err(SendError::Full);
        }
        channel.asked_ns.get_or_insert(now_ns);
        Ok(())
    }

    pub fn hurry(&mut self, now_ns: u64) {
        let soonest_ns = self.hello_at_ns.map_or(0, |at_ns| at_ns.saturating_add(RETRY_NS));
        if let Some(retries) = &mut self.retries {
            retries.next_ns = retries.next_ns.min(now_ns.max(soonest_ns));
        }
    }

    pub fn set_route_bytes(&mut self, bytes: u16) {
        self.route_bytes = bytes;
        if let Some(channel) = &mut self.current {
            channel.connection.set_route_bytes(bytes);
        }
    }

    /// Does one more hello have to prove its address, because there are many incarnations? A hello of a known incarnation does
    /// not, because replays of its hellos are detected.
    pub fn has_to_prove_address(&self, payload: &HandshakePayload) -> bool {
        let HandshakePayload::Greeting(greeting) = payload else { return false };
        let incarnation = Incarnation { boot_id: greeting.boot_id, number: greeting.incarnation };
        let mut known =
            self.incarnations.present().into_iter().chain(self.candidates.iter().map(Candidate::incarnation));
        self.incarnations_answered() >= CANDIDATES_MAX && known.all(|known| known != incarnation)
    }

    /// The number of incarnations whose hellos were answered.
    fn incarnations_answered(&self) -> usize {
        let is_first = |at: &usize| {
            let (before, [candidate, ..]) = self.candidates.split_at(*at) else { return false };
            before.iter().all(|other| other.incarnation() != candidate.incarnation())
        };
        (0..self.candidates.len()).filter(is_first).count()
    }

    pub fn status(&self) -> Status {
        let channel = self.current.as_ref().map(|channel| ChannelStatus {
            path: channel.path,
            boot_id: channel.session.incarnation.boot_id,
            incarnation: channel.session.incarnation.number,
            security: channel.security,
            rtt_ns: channel.connection.rtt().smoothed_ns(),
            packet_bytes: [channel.connection.packet_bytes(), self.route_bytes.max(BASE_BYTES)],
            sent_and_lost: channel.sent_and_lost(),
            heard_at_ns: channel.heard_ns,
        });
        let Self { is_wanted, since_ns, counts, counts_before, .. } = *self;
        let copied_key = self.incarnations.copied_key();
        Status { is_wanted, since_ns, channel, copied_key, counts, counts_before }
    }

    /// Is another channel needed than the present one?
    fn is_trying_elsewhere(&self) -> bool {
        self.retries.is_some_and(|retries| !retries.is_renewal)
    }

    /// Does a hello with this number wait for its answer?
    pub fn awaits(&self, number: u32) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.number == number)
    }

    pub fn next_timeout_ns(&self) -> Option<u64> {
        let retry_ns = self.retries.map(|retries| retries.next_ns);
        let candidates_ns =
            self.candidates.iter().map(|candidate| candidate.channel.began_ns.saturating_add(CANDIDATE_NS));
        let channel_ns = self.current.as_ref().and_then(|channel| self.channel_timeout_ns(channel));
        let previous_ns = self.previous.as_ref().map(|previous| previous.until_ns);
        candidates_ns.chain(retry_ns).chain(channel_ns).chain(previous_ns).min()
    }

    fn channel_timeout_ns(&self, channel: &Channel) -> Option<u64> {
        let question_ns = match channel.asked_ns {
            Some(asked_ns) if !self.is_trying_elsewhere() => asked_ns.saturating_add(SILENT_NS),
            Some(asked_ns) => asked_ns.saturating_add(UNREACHABLE_NS),
            None if self.is_wanted => channel.heard_ns.saturating_add(channel.keep_alive_ns()),
            None => channel.heard_ns.saturating_add(IDLE_NS),
        };
        let renew_ns = channel.renew_ns(self.is_wanted).filter(|_| self.retries.is_none());
        let end_ns = channel.began_ns.saturating_add(KEYS_NS_MAX);
        let others = [Some(question_ns), Some(end_ns), renew_ns, channel.connection.next_timeout_ns()];
        others.into_iter().flatten().min()
    }

    pub fn transmit(&mut self, now_ns: u64, random: Random, shared: &mut Shared) {
        self.expire_candidates(now_ns, shared);
        if self.previous.as_ref().is_some_and(|previous| now_ns >= previous.until_ns) {
            self.forget_previous(shared);
        }
        self.look_after_channel(now_ns, shared);
        self.look_after_attempt(now_ns, random, shared);
        if let Some(channel) = &mut self.current {
            self.counts.packets_sent += channel.flush(now_ns, &mut shared.out);
        }
    }

    fn expire_candidates(&mut self, now_ns: u64, shared: &mut Shared) {
        drop_candidates(&mut self.candidates, shared, |candidate| {
            now_ns >= candidate.channel.began_ns.saturating_add(CANDIDATE_NS)
                && !planted::is(Bug::CandidateForever)
        });
    }

    fn forget_previous(&mut self, shared: &mut Shared) {
        if let Some(Previous { channel, .. }) = self.previous.take() {
            shared.numbers.remove(&channel.number);
        }
    }

    fn look_after_channel(&mut self, now_ns: u64, shared: &mut Shared) {
        let is_elsewhere = self.is_trying_elsewhere();
        let Some(channel) = &mut self.current else { return };
        if now_ns >= channel.began_ns.saturating_add(KEYS_NS_MAX) {
            return self.down(now_ns, DownReason::Unreachable, shared);
        }
        let is_old = channel.renew_ns(self.is_wanted).is_some_and(|at_ns| now_ns >= at_ns);
        if is_old && self.retries.is_none() && !planted::is(Bug::KeysForever) {
            self.retries = Some(Retries { is_renewal: true, ..Retries::new(now_ns) });
        }
        let heard_ago_ns = now_ns.saturating_sub(channel.heard_ns);
        match channel.asked_ns.map(|asked_ns| now_ns.saturating_sub(asked_ns)) {
            Some(missing_ns) if missing_ns >= UNREACHABLE_NS => {
                self.down(now_ns, DownReason::Unreachable, shared);
            }
            Some(missing_ns) if missing_ns >= SILENT_NS && !is_elsewhere => {
                self.retries = Some(Retries::new(now_ns));
            }
            None if self.is_wanted && heard_ago_ns >= channel.keep_alive_ns() => {
                channel.connection.ping();
                channel.asked_ns = Some(now_ns);
            }
            None if !self.is_wanted && heard_ago_ns >= IDLE_NS => {
                self.close(now_ns, DownReason::Idle, shared);
            }
            _ => {}
        }
    }

    fn look_after_attempt(&mut self, now_ns: u64, random: Random, shared: &mut Shared) {
        let Some(mut retries) = self.retries else { return };
        if now_ns < retries.next_ns {
            return;
        }
        self.stop_attempt(shared);
        if self.current.is_none()
            && !retries.is_reported
            && now_ns.saturating_sub(retries.since_ns) >= CONNECT_NS
        {
            retries.is_reported = true;
            shared.events.push_back(Event::Unreachable { node: self.node });
        }
        let pause_ns = (RETRY_NS << retries.tries.min(16)).min(RETRY_NS_MAX);
        retries.next_ns = now_ns.saturating_add(pause_ns);
        if !retries.is_reported && self.current.is_none() {
            let report_ns = retries.since_ns.saturating_add(CONNECT_NS);
            retries.next_ns = retries.next_ns.min(report_ns.max(now_ns + 1));
        }
        // Its address was proved, so new keys need no other one.
        let is_here = retries.is_renewal && !planted::is(Bug::RenewalMoves);
        let turn = if is_here { 0 } else { retries.tries + u32::from(retries.is_renewal) };
        self.send_hello(now_ns, turn, random, shared);
        retries.tries = retries.tries.saturating_add(1);
        self.retries = Some(retries);
    }

    /// Sends a hello to the next address: first on the way of the last channel, then to the known ones.
    fn send_hello(&mut self, now_ns: u64, turn: u32, random: Random, shared: &mut Shared) {
        let present = self.current.as_ref().map(|channel| channel.path);
        let others = self.addresses.iter().copied().map(Path::from).filter(|path| Some(*path) != present);
        let paths: Vec<_> = present.into_iter().chain(others).collect();
        if paths.is_empty() {
            return;
        }
        let path = paths[turn as usize % paths.len()];
        let number = shared.draw_number(random, self.node);
        let greeting = self.greeting(number, shared);
        let cookie = self.cookie.filter(|(_, at_ns)| now_ns.saturating_sub(*at_ns) < COOKIE_LIFE_NS);
        shared.hellos += 1;
        let (hello, packet) = handshake::write_hello(
            &shared.identity,
            &self.node,
            &self.mac_key,
            cookie.as_ref().map(|(cookie, _)| cookie),
            if planted::is(Bug::EphemeralRepeated) { [7; KEY_BYTES] } else { draw(random) },
            shared.hellos,
            &greeting,
        );
        self.attempt = Some(Attempt { hello, number, path });
        self.hello_at_ns = Some(now_ns);
        self.counts.hellos_sent += 1;
        shared.out.push(path, packet);
    }

    fn greeting(&self, connection: u32, shared: &Shared) -> Greeting {
        Greeting {
            boot_id: shared.identity.boot_id,
            incarnation: shared.identity.incarnation,
            session: self.session_number,
            connection,
            has_aes: shared.options.has_aes,
        }
    }

    fn channel(&self, now_ns: u64, result: HandshakeResult, shared: &Shared) -> Channel {
        let HandshakeResult { side, number, path, secret, peer } = result;
        let has_aes = peer.has_aes && shared.options.has_aes;
        let security = if has_aes { Security::Aes256Gcm } else { Security::ChaCha20Poly1305 };
        let connection = Connection::new(connection::Options {
            side,
            security,
            secret,
            connection: number,
            peer_connection: peer.connection,
            windows: [0, WINDOW, 0],
            peer_windows: [0, WINDOW, 0],
            route_bytes: self.route_bytes,
        });
        let incarnation = Incarnation { boot_id: peer.boot_id, number: peer.incarnation };
        Channel {
            connection: Box::new(connection),
            stream: Stream::default(),
            session: SessionId { own: self.session_number, peer: peer.session, incarnation },
            number,
            path,
            side,
            security,
            began_ns: now_ns,
            heard_ns: now_ns,
            asked_ns: None,
            path_before: None,
            sent_and_lost_before: [0; 2],
        }
    }

    pub fn receive_hello(
        &mut self,
        now_ns: u64,
        random: Random,
        from: Path,
        header: &Header,
        hello: ReadHello,
        shared: &mut Shared,
    ) {
        self.counts.hellos_received += 1;
        let peer = match hello.payload {
            HandshakePayload::Greeting(greeting) if greeting.connection == header.connection => greeting,
            HandshakePayload::Greeting(_) => return,
            HandshakePayload::OtherVersion => {
                // The answer tells the node too, and makes no channel.
                self.counts.other_versions += 1;
                let answer = hello.answer(&self.mac_key, header.connection, &self.greeting(0, shared));
                answer.into_iter().for_each(|(answer, _)| shared.out.push(from, answer));
                return;
            }
        };
        let incarnation = Incarnation { boot_id: peer.boot_id, number: peer.incarnation };
        self.incarnations.note_hello(now_ns, from.peer, incarnation, header.number);
        if !self.is_fresh(from, incarnation, header.number, shared) {
            self.counts.hellos_replayed += 1;
            return;
        }
        let number = shared.draw_number(random, self.node);
        let greeting = self.greeting(number, shared);
        let Some((answer, secret)) = hello.answer(&self.mac_key, header.connection, &greeting) else {
            shared.numbers.remove(&number);
            return;
        };
        let result = HandshakeResult { side: Side::Responder, number, path: from, secret, peer };
        let channel = self.channel(now_ns, result, shared);
        self.make_place(now_ns, incarnation, header.number, shared);
        shared.out.push(from, answer.clone());
        self.counts.answers_sent += 1;
        if planted::is(Bug::HelloPromoted) {
            return self.promote(channel, Some(header.number), shared);
        }
        self.candidates.push(Candidate { channel, hello: header.number, answer, answers: 1 });
    }

    /// Does a hello get an answer of its own? Not if it is older than another one of its incarnation. One that is repeated from
    /// the same address gets the same answer again.
    fn is_fresh(&mut self, from: Path, incarnation: Incarnation, number: u64, shared: &mut Shared) -> bool {
        if planted::is(Bug::OldHelloTaken) {
            return true;
        }
        if self.incarnations.is_old(incarnation, number) || self.incarnations.is_retired(incarnation) {
            return false;
        }
        let mut addresses = 0;
        for same in self.candidates.iter_mut().filter(|candidate| candidate.incarnation() == incarnation) {
            if number < same.hello {
                return false;
            }
            if number > same.hello {
                continue;
            }
            addresses += 1;
            if planted::is(Bug::AnswerShared) {
                same.channel.path = from;
            }
            if same.channel.path.peer == from.peer {
                if same.answers < ANSWERS_MAX {
                    same.answers += 1;
                    shared.out.push(from, same.answer.clone());
                }
                return false;
            }
        }
        addresses < ADDRESSES_MAX
    }

    /// A newer hello of an incarnation replaces an older one. With too many incarnations, the oldest hello that is not
    /// of the present one is dropped, if it has had its time.
    fn make_place(&mut self, now_ns: u64, incarnation: Incarnation, number: u64, shared: &mut Shared) {
        let is_older = |candidate: &Candidate| candidate.hello < number || planted::is(Bug::OldHelloTaken);
        let of = |candidate: &Candidate| candidate.incarnation() == incarnation;
        let is_known = self.candidates.iter().any(of);
        drop_candidates(&mut self.candidates, shared, |candidate| of(candidate) && is_older(candidate));
        if is_known || self.incarnations_answered() < CANDIDATES_MAX {
            return;
        }
        let present = self.incarnations.present();
        let victim = self.candidates.iter().position(|candidate| {
            let age_ns = now_ns.saturating_sub(candidate.channel.began_ns);
            let had_its_time = age_ns >= CANDIDATE_KEPT_NS || planted::is(Bug::CandidateDisplaced);
            Some(candidate.incarnation()) != present && had_its_time
        });
        if let Some(victim) = victim {
            shared.numbers.remove(&self.candidates.remove(victim).channel.number);
        }
    }

    pub fn receive_answer(&mut self, now_ns: u64, from: Path, packet: &[u8], shared: &mut Shared) {
        let Some(attempt) = &mut self.attempt else { return };
        let Some(answered) = attempt.hello.read_answer(packet) else {
            self.counts.answers_refused += 1;
            return;
        };
        self.counts.answers_received += 1;
        let number = attempt.number;
        // The answer went to the address of this machine from which the kernel has sent the hello.
        let path = Path { local: from.local.or(attempt.path.local), ..attempt.path };
        match answered.payload {
            HandshakePayload::Greeting(peer) => {
                // The channel keeps the number.
                self.attempt = None;
                let (side, secret) = (Side::Initiator, answered.secret);
                let result = HandshakeResult { side, number, path, secret, peer };
                let mut channel = self.channel(now_ns, result, shared);
                // Its first packet asks for an answer.
                channel.asked_ns = Some(now_ns);
                self.incarnations.note_answer(now_ns, path.peer, channel.session.incarnation);
                self.promote(channel, None, shared);
            }
            HandshakePayload::OtherVersion => self.give_versions_up(now_ns, shared),
        }
    }

    fn give_versions_up(&mut self, now_ns: u64, shared: &mut Shared) {
        self.stop_attempt(shared);
        self.counts.other_versions += 1;
        let Some(retries) = &mut self.retries else { return };
        retries.next_ns = now_ns.saturating_add(RETRY_NS_MAX);
        // Asking sooner would gain nothing if that is not answered.
        retries.tries = retries.tries.max(TRIES_SLOW);
        if !retries.is_reported {
            retries.is_reported = true;
            shared.events.push_back(Event::OtherVersion { node: self.node });
        }
    }

    pub fn receive_cookie(&mut self, now_ns: u64, number: u32, packet: &[u8]) {
        let attempt = self.attempt.as_ref().filter(|attempt| attempt.number == number);
        let cookie = attempt.and_then(|attempt| cookie::read(&self.node.0, &attempt.hello.mac1, packet));
        if let Some(cookie) = cookie {
            self.counts.cookies_received += 1;
            self.cookie = Some((cookie, now_ns));
            // The hello that bears it is the first one that can be answered.
            self.hurry(now_ns);
        }
    }

    pub fn receive_data(
        &mut self,
        now_ns: u64,
        from: Path,
        number: u32,
        packet: &mut [u8],
        shared: &mut Shared,
    ) {
        if let Some(channel) = self.current.as_mut().filter(|channel| channel.number == number) {
            if channel.receive(now_ns, packet, &mut self.counts) {
                if channel.return_to(now_ns, from) {
                    shared.events.push_back(Event::Moved { node: self.node, path: from });
                }
                // It is not silent, so no other channel is needed.
                if self.is_trying_elsewhere() {
                    self.stop_trying(shared);
                }
            }
            return;
        }
        if let Some(previous) = self.previous.as_mut().filter(|previous| previous.channel.number == number) {
            previous.channel.receive(now_ns, packet, &mut self.counts);
            return;
        }
        let mut candidates = self.candidates.iter_mut();
        let Some(at) = candidates.position(|candidate| candidate.channel.number == number) else { return };
        if !self.candidates[at].channel.receive(now_ns, packet, &mut self.counts) {
            return;
        }
        let Candidate { mut channel, hello, .. } = self.candidates.remove(at);
        if self.own_channel_stays(now_ns, &channel, shared) {
            shared.numbers.remove(&channel.number);
            return;
        }
        if planted::is(Bug::AddressUnproved) {
            channel.path = from;
        }
        channel.began_ns = now_ns;
        self.promote(channel, Some(hello), shared);
    }

    /// Decides between two channels that both nodes have begun at once. Only one may replace the other. Otherwise each
    /// node would end up with a different one.
    fn own_channel_stays(&self, now_ns: u64, other: &Channel, shared: &Shared) -> bool {
        self.current.as_ref().is_some_and(|own| {
            own.side == Side::Initiator
                && own.session == other.session
                && now_ns.saturating_sub(own.began_ns) < SETTLE_NS
                && shared.identity.key.public() > self.node
                && !planted::is(Bug::OwnChannelGoes)
        })
    }

    /// A channel is confirmed: its other end has the keys.
    fn promote(&mut self, mut channel: Channel, hello: Option<u64>, shared: &mut Shared) {
        // Messages that arrived whole in the old channel come first.
        self.drain(usize::MAX, shared);
        self.stop_trying(shared);
        self.forget_previous(shared);
        let old = self.current.take();
        if let Some(old) = &old {
            shared.numbers.remove(&old.number);
        }
        let old_path = old.as_ref().map(|old| old.path);
        let (node, path, began_ns) = (self.node, channel.path, channel.began_ns);
        self.know(channel.session.incarnation, hello, path.peer, shared);
        let is_same = self.session.as_ref().is_some_and(|session| session.id == channel.session);
        if !is_same {
            self.begin_session(&channel, shared);
        } else if old_path.is_some_and(|old| old != path) {
            shared.events.push_back(Event::Moved { node, path });
        }
        if let Some(mut old) = old.filter(|_| is_same) {
            channel.follow(&mut old);
            // Packets under way are not lost.
            shared.numbers.insert(old.number, node);
            let overlap_ns = if planted::is(Bug::OldKeysKept) { KEYS_NS_MAX } else { KEYS_OVERLAP_NS };
            let until_ns = began_ns.saturating_add(overlap_ns);
            self.previous = Some(Previous { channel: old, until_ns });
        }
        let session = self.session.as_mut().filter(|_| !planted::is(Bug::MessageForgotten));
        if session.is_some_and(|session| session.send(&mut channel.stream, &mut channel.connection)) {
            channel.asked_ns.get_or_insert(channel.heard_ns);
        }
        self.counts.channels += 1;
        self.current = Some(channel);
    }

    fn begin_session(&mut self, channel: &Channel, shared: &mut Shared) {
        let Incarnation { boot_id, number } = channel.session.incarnation;
        self.since_ns = Some(channel.began_ns);
        if let Some(before) = self.session.replace(Session::new(channel.session)) {
            let is_restart = before.id.incarnation != channel.session.incarnation;
            let reason = if is_restart { DownReason::Restarted } else { DownReason::Reset };
            shared.events.push_back(Event::Down { node: self.node, reason });
        }
        let (node, path) = (self.node, channel.path);
        shared.events.push_back(Event::Up { node, boot_id, incarnation: number, path });
    }

    /// Notes the present incarnation, and drops the hellos of earlier ones.
    fn know(
        &mut self,
        incarnation: Incarnation,
        hello: Option<u64>,
        address: SocketAddr,
        shared: &mut Shared,
    ) {
        let same = self.candidates.iter().filter(|candidate| candidate.incarnation() == incarnation);
        let newest = same.map(|candidate| candidate.hello).chain(hello).max().unwrap_or_default();
        self.incarnations.know(incarnation, hello, newest, address);
        let incarnations = &self.incarnations;
        drop_candidates(&mut self.candidates, shared, |candidate| {
            let of = candidate.incarnation();
            // The other node may have begun its channel at the same time as this node began its own.
            (of == incarnation && hello.is_some()) || incarnations.is_retired(of)
        });
    }

    /// Turns received messages into events, up to a limit. `true`: there are more.
    pub fn drain(&mut self, events_max: usize, shared: &mut Shared) -> bool {
        let (Some(session), Some(channel)) = (&mut self.session, &mut self.current) else { return false };
        let Channel { connection, stream, .. } = channel;
        session.collect(stream, connection);
        let previous = self.previous.as_mut().map(|previous| &mut previous.channel);
        if let Some(Channel { connection: old, stream: old_stream, .. }) = previous {
            // Messages that are not acknowledged come again in the present channel, so nothing is lost here.
            while shared.events.len() < events_max
                && let Ok(Some(bytes)) = session.receive(old_stream, old)
            {
                shared.events.push_back(Event::Message { node: self.node, bytes });
            }
            while let Some(datagram) = old.pop_datagram() {
                echo::take(self.node, datagram.bytes, connection, events_max, shared);
            }
        }
        while let Some(datagram) = connection.pop_datagram() {
            echo::take(self.node, datagram.bytes, connection, events_max, shared);
        }
        let before = shared.events.len();
        loop {
            if shared.events.len() >= events_max {
                return true;
            }
            match session.receive(stream, connection) {
                Ok(Some(bytes)) => shared.events.push_back(Event::Message { node: self.node, bytes }),
                Ok(None) => break,
                Err(_) => {
                    connection.close(REASON_BROKEN);
                    break;
                }
            }
        }
        if shared.events.len() == before {
            // A packet without a message has no answer that could carry its acknowledgement.
            connection.before_sleep();
        }
        false
    }

    /// Checks whether the channel has ended.
    pub fn look_at_end(&mut self, now_ns: u64, shared: &mut Shared) {
        let Some(channel) = &mut self.current else { return };
        // An end that closes in the middle of a renewal does not have the new keys.
        let before = self.previous.as_mut().map(|previous| &mut previous.channel);
        let is_closed = |before: &&mut Channel| matches!(before.connection.state(), State::ClosedByPeer(_));
        let channel = before.filter(is_closed).unwrap_or(channel);
        let reason = match channel.connection.state() {
            State::Open => return,
            State::ClosedByPeer(REASON_CLOSED) => DownReason::Closed,
            State::ClosedByPeer(REASON_IDLE) => DownReason::Idle,
            State::ClosedByPeer(OWN_REASONS.. | REASON_BROKEN) => DownReason::Broken,
            State::ClosedByPeer(_) => DownReason::Closed,
            State::ClosedHere(_) | State::Broken(_) => DownReason::Broken,
        };
        self.counts.packets_sent += channel.flush(now_ns, &mut shared.out);
        self.down(now_ns, reason, shared);
    }

    /// Ends the channel and tells the other end.
    pub fn close(&mut self, now_ns: u64, reason: DownReason, shared: &mut Shared) {
        if let Some(channel) = &mut self.current {
            let code = if reason == DownReason::Idle { REASON_IDLE } else { REASON_CLOSED };
            channel.connection.close(code);
            self.counts.packets_sent += channel.flush(now_ns, &mut shared.out);
        }
        if reason != DownReason::Idle {
            self.is_wanted = false;
        }
        self.down(now_ns, reason, shared);
    }

    /// Forgets all channels and the messages under way in them.
    fn down(&mut self, now_ns: u64, reason: DownReason, shared: &mut Shared) {
        self.drain(usize::MAX, shared);
        self.forget_previous(shared);
        self.stop_trying(shared);
        for candidate in self.candidates.drain(..) {
            shared.numbers.remove(&candidate.channel.number);
        }
        if let Some(channel) = self.current.take() {
            shared.numbers.remove(&channel.number);
            shared.keep_closing(now_ns, channel);
        }
        if self.session.take().is_some() {
            (self.since_ns, self.counts_before) = (Some(now_ns), self.counts);
            self.session_number = shared.next_session();
            shared.events.push_back(Event::Down { node: self.node, reason });
        }
        if self.is_wanted {
            self.retries = Some(Retries::new(now_ns.saturating_add(RETRY_NS)));
        }
    }

    fn stop_trying(&mut self, shared: &mut Shared) {
        self.retries = None;
        self.stop_attempt(shared);
    }

    fn stop_attempt(&mut self, shared: &mut Shared) {
        if let Some(attempt) = self.attempt.take() {
            shared.numbers.remove(&attempt.number);
        }
    }
}
