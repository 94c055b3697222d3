//! Every test of the laboratory runs over every socket level. Corrupt, short and lost messages are found, by endpoints
//! that corrupt and lose them. The rate of datagrams is what arrived over the longer of send time and receive time. No
//! end gives up before all have begun.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use bywire_measure::endpoint::{Endpoint, Interest, Kind, Mark, Received};
use bywire_measure::options::Request;
use bywire_measure::payload::{Reader, Writer};
use bywire_measure::plan::{End, Level, Outcome, Part, Plan, Test};
use bywire_measure::scratch_directory;
use bywire_measure::scratch_directory::ScratchDirectory;
use bywire_measure::shared_port;
use bywire_measure::transport::Transport as _;
use bywire_measure::transport::msg::Msg;
use bywire_measure::transport::tcp::Tcp;
use bywire_measure::transport::udp::Udp;
use bywire_measure::transport::unix::Unix;
use bywire_measure::workload;

/// Parts of a measurement, of which there is one at least.
fn some(parts: Vec<Part>) -> Vec<Part> {
    assert!(!parts.is_empty(), "nothing was measured");
    parts
}

/// Parts of both ends, which have as many.
fn both<'a>(source: &'a [Part], target: &'a [Part]) -> impl Iterator<Item = (&'a Part, &'a Part)> {
    assert!(!source.is_empty() && source.len() == target.len(), "{source:?}, {target:?}");
    source.iter().zip(target)
}

/// A plan with a changed request.
fn with(plan: Plan, change: impl FnOnce(&mut Request)) -> Plan {
    let mut plan = plan;
    change(&mut plan.request);
    plan
}

fn plan(level: Level, test: Test, size_bytes: u64) -> Plan {
    let response_bytes = match test {
        Test::Stream | Test::Nhalf | Test::Overhead => 1,
        _ => size_bytes,
    };
    Plan {
        level,
        test,
        mpi: None,
        size_bytes,
        response_bytes,
        block_us: 1000,
        warmup_blocks: 1,
        blocks: 3,
        spin: false,
        sleep: true,
        request: Request { verify: true, ..Request::default() },
        carriers: Vec::new(),
        runtime_directories: None,
        begin_ns: None,
        peer_number: None,
        bind: [127, 0, 0, 1].into(),
        source: None,
        cookie: format!("{:032x}", rand::random::<u128>()),
        deadline_seconds: 60,
    }
}

/// Both ends of one pair, as two threads.
fn pair<L: bywire_measure::transport::Transport<Listener: Send>>(plan: &Plan) -> Result<(Outcome, Outcome)> {
    let (listener, address) = L::listen(plan)?;
    thread::scope(|scope| {
        let target = scope.spawn(|| workload::run(plan, End::Target, None, &mut L::accept(listener, plan)?));
        let source = workload::run(plan, End::Source, None, &mut L::connect(plan, &address)?);
        Ok((source?, target.join().expect("the target does not panic")?))
    })
}

fn by_level(plan: &Plan) -> Result<(Outcome, Outcome)> {
    match plan.level {
        Level::Unix => pair::<Unix>(plan),
        // The same program: only how it was started tells it from TCP.
        Level::Tcp | Level::Sock => pair::<Tcp>(plan),
        Level::Udp => pair::<Udp>(plan),
        other => unreachable!("{other} has no sockets"),
    }
}

#[test]
fn every_test_runs_over_every_socket_level_and_every_byte_is_right() {
    for level in [Level::Unix, Level::Tcp, Level::Udp] {
        for &test in Test::ALL.iter().filter(|test| (level.carrier().has)(**test)) {
            for size in [1, 8, 1000, 8192] {
                let plan = plan(level, test, size);
                let (source, target) =
                    by_level(&plan).unwrap_or_else(|error| panic!("{level} {test} {size}: {error:#}"));
                assert_eq!((source.blocks.len(), target.blocks.len()), (3, 3), "{level} {test} {size}");
                assert_eq!((source.warmup.len(), target.warmup.len()), (1, 1), "{level} {test} {size}");
                for part in source.blocks.iter().chain(&target.blocks) {
                    assert!(part.seconds > 0.0, "{level} {test} {size}: {part:?}");
                }
                assert!(source.blocks.iter().all(|part| part.operations > 0), "{level} {test} {size}");
            }
        }
    }
}

/// One block of 20 ms, long enough for many notes of how far it got.
fn multi_connection_plan(level: Level, test: Test) -> Plan {
    let plan = Plan { block_us: 20_000, warmup_blocks: 0, blocks: 1, ..plan(level, test, 8192) };
    with(plan, |request| request.nodes = Some(0))
}

fn has_noted_how_far_it_got(part: &Part) {
    let notes = &part.notes;
    assert!(!notes.is_empty() && notes.len() < 1000, "{part:?}");
    assert!(notes.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{part:?}");
    let &(last_ns, operations) = notes.last().unwrap();
    assert!(last_ns as f64 <= part.seconds * 1e9 + 1.0 && operations <= part.operations, "{part:?}");
}

#[test]
fn the_counting_end_of_several_connections_notes_its_progress() {
    for level in [Level::Unix, Level::Tcp, Level::Udp] {
        let (_, target) = by_level(&multi_connection_plan(level, Test::Streams)).unwrap();
        has_noted_how_far_it_got(&target.blocks[0]);
        let (source, _) = by_level(&multi_connection_plan(level, Test::Hotspot)).unwrap();
        has_noted_how_far_it_got(&source.blocks[0]);
        let (_, target) = by_level(&multi_connection_plan(level, Test::Stream)).unwrap();
        assert_eq!(target.blocks[0].notes, [], "one connection runs alone");
    }
}

#[test]
fn one_port_with_many_peers_notes_the_progress_of_each() {
    let plan = multi_connection_plan(Level::Msg, Test::Fanin);
    let _place = ScratchDirectory::make(scratch_directory::directory(&plan.cookie), "bywire-lab-").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let plan = &plan;
    thread::scope(|scope| {
        let shared_port =
            scope.spawn(move || shared_port::run(plan, None, 3, |address| sender.send(address).unwrap()));
        let address = receiver.recv().expect("the shared port listens");
        for peer in 0..3 {
            let plan = Plan { peer_number: Some(peer), ..plan.clone() };
            let address = address.clone();
            scope.spawn(move || {
                let mut lanes = Msg::connect(&plan, &address).unwrap();
                workload::run(&plan, End::Source, None, &mut lanes).unwrap()
            });
        }
        let outcomes = shared_port.join().expect("it does not panic").unwrap();
        assert_eq!(outcomes.len(), 3);
        outcomes.iter().for_each(|outcome| has_noted_how_far_it_got(&outcome.blocks[0]));
    });
}

/// Longer than the timeout of an end that has begun, with time to join before.
const LATE: Duration = Duration::from_secs(13);

#[test]
fn no_end_gives_up_before_the_common_start() {
    let begin_ns = Some(bywire_measure::clock::monotonic_ns() + LATE.as_nanos() as u64);
    let late = |level, test| Plan { begin_ns, ..multi_connection_plan(level, test) };
    let streams = late(Level::Unix, Test::Streams);
    let (fanin, fanout) = (late(Level::Msg, Test::Fanin), late(Level::Msg, Test::Fanout));
    let place = |plan: &Plan| {
        ScratchDirectory::make(scratch_directory::directory(&plan.cookie), "bywire-lab-").unwrap()
    };
    let _places = [place(&fanin), place(&fanout)];
    let peer = |plan: &Plan| Plan { peer_number: Some(0), ..plan.clone() };
    let block_of = |outcome: &Outcome| assert!(outcome.blocks[0].operations > 0, "{outcome:?}");
    thread::scope(|scope| {
        scope.spawn(|| {
            let (source, target) = by_level(&streams).unwrap();
            [source, target].iter().for_each(block_of);
        });
        let (sender, receiver) = mpsc::channel();
        let plan = &fanin;
        scope.spawn(move || {
            let outcomes = shared_port::run(plan, None, 1, |address| sender.send(address).unwrap()).unwrap();
            outcomes.iter().for_each(block_of);
        });
        scope.spawn(move || {
            let address = receiver.recv().expect("the shared port listens");
            let plan = peer(plan);
            let mut lanes = Msg::connect(&plan, &address).unwrap();
            block_of(&workload::run(&plan, End::Source, None, &mut lanes).unwrap());
        });
        let (sender, receiver) = mpsc::channel();
        let plan = &fanout;
        scope.spawn(move || {
            let plan = peer(plan);
            let (listener, address) = Msg::listen(&plan).unwrap();
            sender.send(address).unwrap();
            let mut lanes = Msg::accept(listener, &plan).unwrap();
            block_of(&workload::run(&plan, End::Target, None, &mut lanes).unwrap());
        });
        receiver.recv().expect("the peer listens");
        shared_port::run(&fanout, None, 1, |_| {}).unwrap().iter().for_each(block_of);
    });
}

#[test]
fn spinning_ends_are_measured() {
    for level in [Level::Unix, Level::Tcp, Level::Udp] {
        for test in [Test::Latency, Test::Stream, Test::Bidir] {
            let plan = Plan { spin: true, ..plan(level, test, 64) };
            let (source, target) =
                by_level(&plan).unwrap_or_else(|error| panic!("{level} {test}: {error:#}"));
            assert_eq!((source.blocks.len(), target.blocks.len()), (3, 3), "{level} {test}");
        }
    }
}

#[test]
fn long_messages_cross_small_socket_buffers_intact() {
    for (level, test) in [(Level::Unix, Test::Stream), (Level::Tcp, Test::Stream), (Level::Tcp, Test::Bidir)]
    {
        let plan = with(plan(level, test, 1 << 20), |request| request.socket_buffer_bytes = Some(4096));
        let (source, target) = by_level(&plan).unwrap_or_else(|error| panic!("{level} {test}: {error:#}"));
        for (source, target) in both(&source.blocks, &target.blocks) {
            assert_eq!(source.sent_bytes, target.received_bytes, "{level} {test}");
        }
    }
}

#[test]
fn granted_socket_buffers_are_reported() {
    let plan = with(plan(Level::Tcp, Test::Rr, 1), |request| request.socket_buffer_bytes = Some(65_500));
    let (source, _) = by_level(&plan).unwrap();
    // The kernel doubles the requested size, and reports the doubled one.
    assert_eq!(source.details["send_socket_bytes"], 131_000);
}

#[test]
fn every_round_trip_is_in_the_histogram() {
    let (source, target) = by_level(&plan(Level::Unix, Test::Latency, 8)).unwrap();
    let counted: u64 = source.round_trips.iter().map(|(_, count)| count).sum();
    let kept: u64 = source.blocks.iter().map(|part| part.operations).sum();
    let answered: u64 = target.blocks.iter().map(|part| part.operations).sum();
    assert_eq!((counted, answered), (kept, kept));
}

#[test]
fn a_datagram_of_another_sender_is_not_taken_for_the_sources() {
    let plan = plan(Level::Tcp, Test::Latency, 8);
    let (listener, address) = Tcp::listen(&plan).unwrap();
    let stranger = Plan { cookie: "f".repeat(32), ..plan.clone() };
    thread::scope(|scope| {
        let target =
            scope.spawn(|| workload::run(&plan, End::Target, None, &mut Tcp::accept(listener, &plan)?));
        // The stranger is accepted by the kernel, greets wrongly, and is dropped.
        drop(Tcp::connect(&stranger, &address).unwrap());
        let source = workload::run(&plan, End::Source, None, &mut Tcp::connect(&plan, &address).unwrap());
        assert_eq!(source.unwrap().blocks.len(), 3);
        assert_eq!(target.join().unwrap().unwrap().blocks.len(), 3);
    });
}

#[test]
fn a_peer_that_exits_is_an_error_at_once() {
    for level in [Level::Unix, Level::Tcp] {
        let plan = plan(level, Test::Stream, 1000);
        let error = match level {
            Level::Unix => deserted::<Unix>(&plan),
            _ => deserted::<Tcp>(&plan),
        };
        assert!(error.contains("closed the connection"), "{level}: {error}");
    }
}

/// The error of the source when its target ends instead of answering.
fn deserted<L: bywire_measure::transport::Transport<Listener: Send>>(plan: &Plan) -> String {
    let (listener, address) = L::listen(plan).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(L::accept(listener, plan).unwrap()));
        let error = workload::run(plan, End::Source, None, &mut L::connect(plan, &address).unwrap());
        format!("{:#}", error.unwrap_err())
    })
}

/// Messages on their way between two ends in one process.
#[derive(Default)]
struct Wire {
    messages: Mutex<VecDeque<Vec<u8>>>,
    arrived: Condvar,
    /// All has been read, and more is waited for.
    is_idle: AtomicBool,
}

impl Wire {
    fn messages(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.messages.lock().expect("no holder panics")
    }
}

/// Which messages get lost: asked of each one that is sent, in order.
type Loss = Box<dyn FnMut(Mark) -> bool + Send>;

/// A test-only endpoint that may flip a byte of its n-th message, or lose some.
struct Faulty<const RELIABLE: bool> {
    outgoing: Arc<Wire>,
    incoming: Arc<Wire>,
    writer: Writer,
    reader: Reader,
    sent: usize,
    flip_at: Option<usize>,
    shorten_at: Option<usize>,
    lose: Option<Loss>,
    /// Refuses every so-manieth attempt to send payload, as a system that is short of memory does.
    refuse_every: Option<u64>,
    /// How long it takes to read each message.
    reading: Duration,
    attempts: u64,
    send_errors: u64,
}

impl<const RELIABLE: bool> Faulty<RELIABLE> {
    fn pair() -> (Self, Self) {
        let (there, back) = (Arc::new(Wire::default()), Arc::new(Wire::default()));
        (Self::new(&there, &back), Self::new(&back, &there))
    }

    fn new(outgoing: &Arc<Wire>, incoming: &Arc<Wire>) -> Self {
        Self {
            outgoing: Arc::clone(outgoing),
            incoming: Arc::clone(incoming),
            writer: Writer::default(),
            reader: Reader::new(true, RELIABLE),
            sent: 0,
            flip_at: None,
            shorten_at: None,
            lose: None,
            refuse_every: None,
            reading: Duration::ZERO,
            attempts: 0,
            send_errors: 0,
        }
    }
}

impl<const RELIABLE_: bool> Endpoint for Faulty<RELIABLE_> {
    const RELIABLE: bool = RELIABLE_;

    fn try_send(&mut self, length: usize, mark: Mark) -> Result<bool> {
        self.attempts += 1;
        let is_refused = self.refuse_every.is_some_and(|every| self.attempts.is_multiple_of(every));
        if is_refused && mark.kind() == Kind::Data {
            self.send_errors += 1;
            return Ok(false);
        }
        let mut messages = self.outgoing.messages();
        if messages.len() >= 64 {
            return Ok(false);
        }
        let mut message = vec![0; length];
        self.writer.fill(&mut message, mark);
        self.sent += 1;
        if self.flip_at == Some(self.sent) {
            message[length / 2] ^= 4;
        }
        // On a busy machine the message of this number may be one between two blocks, whose length is not checked.
        if matches!(mark.kind(), Kind::Data | Kind::End)
            && self.shorten_at.take_if(|at| *at <= self.sent).is_some()
        {
            message.truncate(length - 1);
        }
        if !self.lose.as_mut().is_some_and(|lose| lose(mark)) {
            messages.push_back(message);
            self.outgoing.is_idle.store(false, Relaxed);
            self.outgoing.arrived.notify_all();
        }
        Ok(true)
    }

    fn try_receive(&mut self) -> Result<Option<Received>> {
        let message = self.incoming.messages().pop_front();
        if message.is_some() {
            thread::sleep(self.reading);
        }
        message.map(|message| self.reader.read(&message)).transpose()
    }

    fn send_errors(&self) -> u64 {
        self.send_errors
    }

    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<()> {
        if interest == Interest::Send {
            thread::yield_now();
            return Ok(());
        }
        let messages = self.incoming.messages();
        self.incoming.is_idle.store(messages.is_empty(), Relaxed);
        let empty = |messages: &mut VecDeque<Vec<u8>>| messages.is_empty();
        drop(self.incoming.arrived.wait_timeout_while(messages, timeout, empty));
        Ok(())
    }
}

/// Longer than the timeout of any end.
const NEVER: Duration = Duration::from_secs(60);

/// Runs `test` between two faulty ends. Returns the error of the target, or of the source if the target has none.
fn with_faults<const RELIABLE: bool>(
    test: Test,
    fault: impl FnOnce(&mut Faulty<RELIABLE>),
) -> (Result<Outcome>, Option<Result<Outcome>>) {
    let (mut source, target) = Faulty::<RELIABLE>::pair();
    fault(&mut source);
    between(plan(Level::Unix, test, 64), vec![source], vec![target])
}

/// The same between such lanes. Nobody waits for ends that never come to one.
fn between<const RELIABLE: bool>(
    plan: Plan,
    source: Vec<Faulty<RELIABLE>>,
    target: Vec<Faulty<RELIABLE>>,
) -> (Result<Outcome>, Option<Result<Outcome>>) {
    let play = |end, mut lanes: Vec<_>| {
        let (plan, (sender, receiver)) = (plan.clone(), mpsc::channel());
        thread::spawn(move || {
            let _left_behind = sender.send(workload::run(&plan, end, None, &mut lanes));
        });
        receiver
    };
    let (source, target) = (play(End::Source, source), play(End::Target, target));
    let outcome = |end: mpsc::Receiver<_>| end.recv_timeout(NEVER).expect("it neither hangs nor panics");
    let target: Result<Outcome> = outcome(target);
    // The source is left behind when the target has failed: it would only wait for its timeout.
    let source = target.is_ok().then(|| outcome(source));
    (target, source)
}

/// Loses every n-th message.
fn every(n: usize) -> Option<Loss> {
    let mut sent = 0;
    Some(Box::new(move |_| {
        sent += 1;
        usize::is_multiple_of(sent, n)
    }))
}

#[test]
fn the_faulty_endpoint_without_faults_is_correct() {
    for test in [Test::Latency, Test::Stream, Test::Bidir] {
        let (target, source) = with_faults::<true>(test, |_| {});
        assert_eq!(target.unwrap().blocks.len(), 3, "{test}");
        assert_eq!(source.unwrap().unwrap().blocks.len(), 3, "{test}");
    }
}

#[test]
fn a_corrupted_message_fails_the_test() {
    for test in [Test::Latency, Test::Stream, Test::Bidir] {
        let (target, _) = with_faults::<true>(test, |source| source.flip_at = Some(5));
        let error = target.expect_err("a flipped bit must not pass").to_string();
        assert!(error.contains("payload corrupted: byte 32"), "{test}: {error}");
    }
}

#[test]
fn a_short_message_fails_the_test() {
    for test in [Test::Latency, Test::Stream, Test::Bidir] {
        let (target, _) = with_faults::<true>(test, |source| source.shorten_at = Some(5));
        let error = target.expect_err("a short message must not pass").to_string();
        assert!(error.contains("63 bytes arrived where 64 were due"), "{test}: {error}");
    }
}

#[test]
fn a_block_of_which_only_the_end_arrives_has_a_time() {
    for test in [Test::Stream, Test::Bidir] {
        let lose: Loss = Box::new(|mark| mark.kind() == Kind::Data);
        let (target, source) = with_faults::<false>(test, |source| source.lose = Some(lose));
        for (source, target) in both(&source.unwrap().unwrap().blocks, &target.unwrap().blocks) {
            assert_eq!(target.received_bytes, 64, "{test}: {target:?}");
            assert!(source.seconds >= 1e-3, "{test}: {source:?}");
            assert!((1e-9..NEVER.as_secs_f64()).contains(&target.seconds), "{test}: {target:?}");
        }
    }
}

#[test]
fn sends_refused_by_the_kernel_are_counted() {
    let (_, source) = with_faults::<false>(Test::Stream, |source| source.refuse_every = Some(2));
    for part in some(source.unwrap().unwrap().blocks) {
        // Between any two messages that went one attempt was refused; the last of a block never is.
        assert!(part.send_errors + 2 >= part.operations, "{part:?}");
    }
    let (_, source) = with_faults::<false>(Test::Stream, |_| {});
    assert!(some(source.unwrap().unwrap().blocks).iter().all(|part| part.send_errors == 0));
}

#[test]
fn repeated_questions_for_a_lost_end_are_not_send_time() {
    // An end asks again after 20 ms.
    let (lost, asking_seconds) = (3, 0.015);
    for test in [Test::Stream, Test::Bidir] {
        let mut ends = HashMap::new();
        let lose: Loss = Box::new(move |mark| {
            let seen = ends.entry(mark.tag()).or_insert(0);
            *seen += u32::from(mark.kind() == Kind::End);
            mark.kind() == Kind::End && *seen <= lost
        });
        let (_, source) = with_faults::<false>(test, |source| source.lose = Some(lose));
        let source = source.unwrap().unwrap();
        let sending: f64 = source.blocks.iter().map(|part| part.seconds).sum();
        let asking = asking_seconds * f64::from(lost) * source.blocks.len() as f64;
        assert!(sending + asking < source.cpu_seconds, "{test}: {source:?}");
    }
}

#[test]
fn messages_read_after_the_last_send_have_their_own_arrival_time() {
    for test in [Test::Stream, Test::Bidir] {
        let (source, mut target) = Faulty::<false>::pair();
        target.reading = Duration::from_millis(1);
        let (target, _) = between(plan(Level::Udp, test, 64), vec![source], vec![target]);
        for part in some(target.unwrap().blocks) {
            // From the first to the last one; the end is not among them.
            let intervals = (part.received_bytes / 64).saturating_sub(2);
            assert!(part.arrival_seconds >= 0.99e-3 * intervals as f64, "{test}: {part:?}");
            assert!(part.arrival_seconds <= part.seconds || test == Test::Bidir, "{test}: {part:?}");
        }
        let (target, _) = with_faults::<true>(test, |_| {});
        let blocks = some(target.unwrap().blocks);
        assert!(blocks.iter().all(|part| part.arrival_seconds == 0.0), "{test}: {blocks:?}");
    }
}

#[test]
fn repeated_questions_for_a_lost_end_are_not_receive_time() {
    let (source, target) = Faulty::<false>::pair();
    let (mut source, wire) = (source, Arc::clone(&target.incoming));
    // The end gets lost until all else has been read, and twice more, 20 ms apart: the time of arrival is over by then.
    let mut seen = HashMap::new();
    source.lose = Some(Box::new(move |mark| {
        if mark.kind() != Kind::End {
            return false;
        }
        let seen = seen.entry(mark.tag()).or_insert(0);
        *seen += u32::from(wire.is_idle.load(Relaxed));
        *seen <= 2
    }));
    let (target, _) = between(plan(Level::Udp, Test::Stream, 64), vec![source], vec![target]);
    for part in some(target.unwrap().blocks) {
        assert!(part.arrival_seconds + 0.03 < part.seconds, "{part:?}");
    }
}

#[test]
fn a_lost_question_or_answer_beside_a_long_transfer_is_repeated() {
    for is_answer in [false, true] {
        let (mut source, mut target): (Vec<_>, Vec<_>) = (0..2).map(|_| Faulty::<false>::pair()).unzip();
        let asked = if is_answer { &mut target[1] } else { &mut source[1] };
        let mut sent = 0;
        asked.lose = Some(Box::new(move |mark| {
            sent += u64::from(mark.kind() == Kind::Data);
            mark.kind() == Kind::Data && sent % 2 == 1
        }));
        let (target, source) = between(plan(Level::Udp, Test::Interleave, 64), source, target);
        let (target, source) = (target.unwrap(), source.unwrap().unwrap());
        let parts = || source.warmup.iter().chain(&source.blocks);
        let (lost, answered) =
            parts().fold((0, 0), |(lost, answered), part| (lost + part.lost, answered + part.operations));
        assert!(answered > 0 && lost >= answered, "{lost} of {answered}");
        // Bytes in flight at the end of the questions belong to their own block.
        for (source, target) in both(&source.blocks, &target.blocks) {
            assert_eq!(source.sent_bytes, target.received_bytes);
        }
    }
}

#[test]
fn lost_messages_are_requested_again_on_lossy_levels() {
    for test in [Test::Stream, Test::Bidir] {
        for n in [2, 3, 5] {
            let (target, source) = with_faults::<false>(test, |source| source.lose = every(n));
            let (target, source) = (target.unwrap(), source.unwrap().unwrap());
            assert_eq!((target.blocks.len(), source.blocks.len()), (3, 3), "{test} {n}");
            let received: u64 = target.blocks.iter().map(|part| part.received_bytes).sum();
            let sent: u64 = source.blocks.iter().map(|part| part.sent_bytes).sum();
            assert!(received < sent, "{test} {n}: {received} of {sent}");
        }
    }
}
