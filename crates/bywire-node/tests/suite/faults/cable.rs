//! A transfer goes on at most 1.5 s after the cable is back, without a limit after any time, and else ends with one
//! error. It also goes on when the cable silently drops longer packets.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywire::{Confirm, DisconnectReason, Event, Peer, Port, PortOptions, Priority, TransferError};
use bywire_sys::udp::UdpSocket;
use bywire_testing::eventually;
use bywire_testing::test_network::stopwatch::Stopwatch;
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork};

use super::ends::{connect, expect_silence, next, next_within, open, options, pattern};
use super::is_long;

const MESSAGE_BYTES: usize = 256 << 10;
/// Messages in flight at any moment.
const DEPTH: usize = 4;

/// Receives messages and checks every byte. Returns their number and the reason of the disconnection.
fn take(mut port: Port, timeout: Duration) -> (u64, DisconnectReason) {
    for _ in 0..DEPTH {
        port.post_receive(Priority::Low, vec![0; MESSAGE_BYTES]).expect("token");
    }
    let mut count = 0;
    loop {
        match next_within(&mut port, timeout).expect("something happens") {
            Event::Message(message) => {
                assert!(message.payload[..] == pattern(MESSAGE_BYTES, count), "message {count}");
                count += 1;
                let buffer = message.payload.into_buffer().expect("it is long");
                port.post_receive(Priority::Low, buffer).expect("token");
            }
            Event::Disconnected { reason, .. } => return (count, reason),
            _ => {}
        }
    }
}

/// A stream of messages to a thread that checks them.
pub struct Stream {
    port: Port,
    peer: Peer,
    taker: JoinHandle<(u64, DisconnectReason)>,
    sent: u64,
    done: u64,
    stopwatch: Stopwatch,
}

impl Stream {
    pub fn start(here: &Machine, there: &Machine, number: u32, [ours, theirs]: [Duration; 2]) -> Self {
        let timeout = TIMEOUT + Duration::from_secs(60);
        let name = format!("taking{number}");
        let taking = PortOptions { unreachable_after: theirs, ..options(&there.runtime(), &name) };
        let taking = open(there, taking);
        let taker = std::thread::spawn(move || take(taking, timeout));
        let name = format!("sending{number}");
        let options = PortOptions { unreachable_after: ours, ..options(&here.runtime(), &name) };
        let mut port = open(here, options);
        let peer = connect(&mut port, here, &format!("{}/taking{number}", there.name));
        let mut stream = Self { port, peer, taker, sent: 0, done: 0, stopwatch: Stopwatch::start() };
        (0..DEPTH).for_each(|_| stream.send());
        stream
    }

    fn send(&mut self) {
        let bytes = pattern(MESSAGE_BYTES, self.sent);
        self.port.send_buffer(self.peer, Priority::Low, bytes, Confirm::Delivered).expect("token");
        self.sent += 1;
    }

    /// The number of delivered messages.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The time since the start of the stream.
    pub fn time(&self) -> Duration {
        self.stopwatch.elapsed()
    }

    /// Continues for a while. Returns the time of the first delivery during it.
    pub fn go_on(&mut self, duration: Duration) -> Option<Duration> {
        let until = self.time() + duration;
        let mut first = None;
        while let Some(left) = until.checked_sub(self.time()) {
            match next_within(&mut self.port, left) {
                Some(Event::Sent { result: Ok(()), .. }) => {
                    first = first.or(Some(self.time()));
                    self.done += 1;
                    self.send();
                }
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        first
    }

    /// Continues for a while, and leaves time to others: a message each few milliseconds shows as well that it flows.
    pub fn go_slowly(&mut self, duration: Duration) -> Option<Duration> {
        let until = self.time() + duration;
        let mut first = None;
        while self.time() < until {
            first = first.or(self.go_on(Duration::from_millis(1)));
            std::thread::sleep(Duration::from_millis(4));
        }
        first
    }

    /// Continues until a delivery, and returns its time.
    pub fn until_it_goes_on(&mut self, limit: Duration) -> Duration {
        let until = self.time() + limit;
        loop {
            if let Some(first) = self.go_on(Duration::from_millis(20)) {
                return first;
            }
            assert!(self.time() < until, "nothing passes for {limit:?}");
        }
    }

    /// Sends no more. Returns the number of messages that arrived, and the reason that the other end got.
    pub fn finish(mut self) -> (u64, DisconnectReason) {
        while self.done < self.sent {
            match next(&mut self.port) {
                Event::Sent { result: Ok(()), .. } => self.done += 1,
                other => panic!("{other:?}"),
            }
        }
        self.port.disconnect(self.peer);
        assert!(matches!(next(&mut self.port), Event::Disconnected { reason: DisconnectReason::Here, .. }));
        let (count, reason) = self.taker.join().expect("every message is correct");
        assert_eq!(count, self.sent);
        (count, reason)
    }
}

/// Takes the link of the second machine down during a stream. Returns the time until the stream continues after the outage.
fn cut(outage: Duration, unreachable_after: Duration) -> Option<Duration> {
    let network = TestNetwork::up(2)?;
    let [here, there] = &network.machines[..] else { unreachable!() };
    let mut stream = Stream::start(here, there, 1, [unreachable_after; 2]);
    stream.go_on(Duration::from_millis(300)).expect("the stream runs");
    network.set_cable(1, false);
    // Packets in flight may still be acknowledged in the first moment.
    stream.go_on(Duration::from_millis(100));
    assert_eq!(stream.go_on(outage - Duration::from_millis(100)), None, "nothing passes");
    network.set_cable(1, true);
    let back = stream.time();
    let first = stream.until_it_goes_on(Duration::from_secs(3));
    stream.go_on(Duration::from_millis(300)).expect("the stream continues");
    let (count, reason) = stream.finish();
    assert_eq!(reason, DisconnectReason::Closed);
    let pause = first - back;
    println!(
        "the cable was out for {outage:?}: the transfer went on {pause:?} after its return; {count} messages, each right"
    );
    Some(pause)
}

/// In a long silence probes are sent every 500 ms, so on a quiet machine it takes at most 0.5 s. The rest is tolerance for a busy
/// machine.
const GOES_ON_WITHIN: Duration = Duration::from_millis(1500);

#[test]
fn a_transfer_continues_once_the_link_is_restored() {
    let outage = Duration::from_secs(if is_long() { 5 } else { 2 });
    let Some(pause) = cut(outage, Duration::from_secs(30)) else { return };
    assert!(pause <= GOES_ON_WITHIN, "{pause:?}");
}

#[test]
fn without_a_limit_a_transfer_outlives_any_outage() {
    let outage = Duration::from_secs(if is_long() { 40 } else { 3 });
    let Some(pause) = cut(outage, Duration::ZERO) else { return };
    assert!(pause <= GOES_ON_WITHIN, "{pause:?}");
}

#[test]
fn a_peer_behind_a_dead_link_is_given_up_with_one_error() {
    let limit = Duration::from_secs(if is_long() { 30 } else { 2 });
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    // The other end never gives up, even while it has an unacknowledged report of a posted buffer.
    let mut stream = Stream::start(here, there, 1, [limit, Duration::ZERO]);
    stream.go_on(Duration::from_millis(300)).expect("the stream runs");
    // A packet that is on its way when the cable goes is not answered either.
    let out = Instant::now().checked_sub(Duration::from_millis(100)).expect("a machine that is up");
    network.set_cable(1, false);
    stream.go_on(limit / 4);
    let (mut failed, told) = (
        0,
        loop {
            match next(&mut stream.port) {
                Event::Sent { result: Err(error), buffer, .. } => {
                    assert_eq!(error, TransferError::Disconnected(DisconnectReason::Unreachable));
                    assert_eq!(buffer.as_ref().len(), MESSAGE_BYTES);
                    stream.done += 1;
                }
                Event::Sent { result: Ok(()), .. } => panic!("nothing passes"),
                Event::Disconnected { reason, .. } => {
                    assert_eq!(reason, DisconnectReason::Unreachable);
                    break out.elapsed();
                }
                other => panic!("{other:?}"),
            }
        },
    );
    failed += stream.sent - stream.done;
    assert_eq!(failed, 0, "each transfer has ended");
    assert!(told >= limit && told < limit + limit / 2 + Duration::from_secs(2), "{told:?}");
    expect_silence(&mut stream.port, Duration::from_millis(200));
    // The other end waits. It is told once the link is up again.
    assert!(!stream.taker.is_finished());
    if is_long() {
        expect_silence(&mut stream.port, Duration::from_secs(40).saturating_sub(out.elapsed()));
    }
    network.set_cable(1, true);
    let back = Instant::now();
    let (_, reason) = stream.taker.join().expect("every message is correct");
    assert_eq!(reason, DisconnectReason::Closed);
    let heard = back.elapsed();
    // The port works with a new connection.
    let taking = open(there, options(&there.runtime(), "taking2"));
    let taker = std::thread::spawn(move || take(taking, TIMEOUT));
    stream.peer = connect(&mut stream.port, here, "b/taking2");
    (stream.sent, stream.done, stream.taker) = (0, 0, taker);
    (0..DEPTH).for_each(|_| stream.send());
    stream.finish();
    println!("given up after {told:?}; the other end heard of it {heard:?} after the cable's return");
}

#[test]
fn a_peer_that_waits_for_a_buffer_is_given_up_behind_a_dead_link() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let mut holding = open(there, options(&there.runtime(), "holding"));
    // It posts no buffer.
    let holding = std::thread::spawn(move || {
        loop {
            if let Event::Disconnected { .. } = next(&mut holding) {
                return;
            }
        }
    });
    let limit = Duration::from_secs(2);
    let options = PortOptions { unreachable_after: limit, ..options(&here.runtime(), "held") };
    let mut port = open(here, options);
    let peer = connect(&mut port, here, "b/holding");
    let bytes = pattern(MESSAGE_BYTES, 0);
    port.send_buffer(peer, Priority::Low, bytes, Confirm::Delivered).expect("token");
    // The message waits for longer than the limit, and the peer stays connected.
    expect_silence(&mut port, limit + limit / 2);
    network.set_cable(1, false);
    let out = Instant::now();
    match next(&mut port) {
        Event::Sent { result, .. } => {
            assert_eq!(result, Err(TransferError::Disconnected(DisconnectReason::Unreachable)));
        }
        other => panic!("{other:?}"),
    }
    let told = out.elapsed();
    assert!(matches!(next(&mut port), Event::Disconnected { reason: DisconnectReason::Unreachable, .. }));
    assert!(told < 3 * limit, "{told:?}");
    println!("a peer that held a message back was given up after {told:?}");
    network.set_cable(1, true);
    holding.join().expect("no panic");
}

/// Does a UDP datagram of this length arrive at the other machine? A short one behind it does in any case.
fn crosses(here: &Machine, there: &Machine, length: usize) -> bool {
    let [from, to] = [here, there].map(|machine| {
        machine.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound")
    });
    let to_port = to.local_address().expect("bound").port();
    let target = Some((there.address.ip(), to_port).into());
    let mut lengths = Vec::new();
    eventually("a short datagram arrives", || {
        // The first one may wait for the other machine's address, and be dropped meanwhile.
        from.send(target, &vec![0; length]).expect("sent");
        from.send(target, b"short").expect("sent");
        let mut buffer = vec![0; length];
        while let Some((received, _)) = to.receive_from(&mut buffer).expect("received") {
            lengths.push(received);
        }
        lengths.contains(&5)
    });
    lengths.contains(&length)
}

#[test]
fn a_transfer_continues_when_the_link_silently_drops_longer_packets() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let mut stream = Stream::start(here, there, 1, [Duration::from_secs(30); 2]);
    stream.go_on(Duration::from_millis(300)).expect("the stream runs");
    assert!(crosses(here, there, 1400));
    network.shorten_packets(1, 1300);
    assert!(crosses(here, there, 1200) && !crosses(here, there, 1400) && !crosses(there, here, 1400));
    let (began, before) = (stream.time(), stream.done());
    let (mut last, mut pause) = (began, Duration::ZERO);
    while stream.time() < began + Duration::from_secs(4) {
        if let Some(first) = stream.go_on(Duration::from_millis(50)) {
            pause = pause.max(first - last);
            last = stream.time();
        }
    }
    pause = pause.max(stream.time() - last);
    let done = stream.done() - before;
    let (count, reason) = stream.finish();
    println!(
        "shorter packets: the longest pause was {pause:?}, and {done} messages followed; {count} messages, each right; \
         then {reason:?}"
    );
    assert!(pause < Duration::from_secs(2) && done > 20, "{pause:?}, {done}");
    // A new connection finds the packet length as well.
    Stream::start(here, there, 2, [Duration::from_secs(30); 2]).finish();
}
