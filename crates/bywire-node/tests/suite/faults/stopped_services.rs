//! A transfer never notices that services are killed, stopped or started again. Connects fail by name or wait
//! meanwhile.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywire::{ConnectError, Event, NoFabric, Port, PortOptions};
use bywire_testing::actor::Actor;
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork};
use rustix::process::Signal;

use super::cable::Stream;
use super::ends::{next, open, options, stop, try_connect};
use super::node::start_node;

/// A port that connects to another machine while the stream goes on.
pub struct Connector<'network> {
    pub here: &'network Machine,
    pub port: Port,
    /// Where it connects to.
    pub address: &'static str,
}

/// A port on a thread of its own that accepts connections and counts them.
pub struct Acceptor {
    done: mpsc::Sender<()>,
    thread: JoinHandle<u64>,
}

impl Acceptor {
    pub fn open(machine: &Machine) -> Self {
        let mut port = open(machine, options(&machine.runtime(), "open"));
        let (done, is_done) = mpsc::channel();
        let accept = move || {
            let mut count = 0;
            while is_done.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                let event = port.wait(Some(Duration::from_millis(50))).expect("wait");
                count += u64::from(matches!(event, Some(Event::Connected(_))));
            }
            count
        };
        Self { done, thread: std::thread::spawn(accept) }
    }

    /// Returns how many connections there were.
    pub fn close(self) -> u64 {
        drop(self.done);
        self.thread.join().expect("no panic")
    }
}

impl<'network> Connector<'network> {
    pub fn of(here: &'network Machine, address: &'static str) -> Self {
        // Without a name each port gets a number, so several fit on one machine.
        let options = PortOptions { name: None, ..options(&here.runtime(), "any") };
        Self { here, port: open(here, options), address }
    }

    /// Tries to connect once, and disconnects again.
    pub fn once(&mut self) -> Result<(), ConnectError> {
        let peer = try_connect(&mut self.port, self.here, self.address)?;
        self.port.disconnect(peer);
        assert!(matches!(next(&mut self.port), Event::Disconnected { .. }));
        Ok(())
    }

    /// Tries until a connect succeeds. Returns the time that took.
    pub fn until_it_succeeds(&mut self) -> Duration {
        let began = Instant::now();
        while let Err(error) = self.once() {
            let waits = [
                ConnectError::Unreachable,
                ConnectError::NoPort,
                ConnectError::NoFabric(NoFabric::NotRunning),
            ];
            assert!(waits.contains(&error), "{error:?}");
            assert!(began.elapsed() < TIMEOUT, "still {error:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        began.elapsed()
    }
}

/// Two services, a stream from the first machine to the second, and a connector that has connected meanwhile.
pub struct Transfer<'network> {
    pub ours: Actor,
    pub theirs: Actor,
    pub stream: Stream,
    pub acceptor: Acceptor,
    pub connector: Connector<'network>,
}

impl<'network> Transfer<'network> {
    pub fn start(here: &'network Machine, there: &Machine) -> Self {
        let (ours, theirs) = (start_node(here), start_node(there));
        let mut stream = Stream::start(here, there, 1, [Duration::from_secs(2); 2]);
        let acceptor = Acceptor::open(there);
        let mut connector = Connector::of(here, "b/open");
        meanwhile(&mut stream, || connector.once()).expect("both serve");
        Self { ours, theirs, stream, acceptor, connector }
    }
}

/// Runs a closure while the stream continues. The stream must deliver something in every second in which this machine runs.
pub fn meanwhile<Result: Send>(stream: &mut Stream, run: impl FnOnce() -> Result + Send) -> Result {
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        let mut last = stream.time();
        loop {
            if stream.go_slowly(Duration::from_millis(100)).is_some() {
                last = stream.time();
            }
            assert!(stream.time() < last + Duration::from_secs(1), "the stream continues");
            if running.is_finished() {
                return running.join().expect("no panic");
            }
        }
    })
}

#[test]
fn a_transfer_is_unaffected_by_killed_and_stopped_services() {
    let Some(network) = TestNetwork::without_services(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let Transfer { mut ours, mut theirs, mut stream, acceptor, mut connector } = Transfer::start(here, there);

    theirs.kill();
    let error = meanwhile(&mut stream, || connector.once()).expect_err("the service is stopped");
    assert_eq!(error, ConnectError::Unreachable);
    theirs = start_node(there);
    let after = meanwhile(&mut stream, || connector.until_it_succeeds());
    println!("the other service was killed: `{error}`; {after:?} after the next one began, connects succeed");

    stop(&theirs);
    let began = Instant::now();
    let error = meanwhile(&mut stream, || connector.once()).expect_err("the service is stopped");
    assert_eq!(error, ConnectError::Unreachable);
    let waited = began.elapsed();
    theirs.signal(Signal::CONT);
    let after = meanwhile(&mut stream, || connector.until_it_succeeds());
    println!(
        "the other service was stopped: an error after {waited:?}; {after:?} after it goes on, connects succeed"
    );

    ours.kill();
    let error = meanwhile(&mut stream, || connector.once()).expect_err("the service is stopped");
    assert_eq!(error, ConnectError::NoFabric(NoFabric::NotRunning));
    ours = start_node(here);
    let after = meanwhile(&mut stream, || connector.until_it_succeeds());
    println!("this service was killed: `{error}`; {after:?} after the next one began, connects succeed");

    // A request waits while a service is stopped for a moment.
    stop(&ours);
    let after = meanwhile(&mut stream, || {
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| connector.once());
            std::thread::sleep(Duration::from_secs(1));
            assert!(!connecting.is_finished(), "it waits");
            let goes_on = Instant::now();
            ours.signal(Signal::CONT);
            connecting.join().expect("no panic").expect("it succeeds");
            goes_on.elapsed()
        })
    });
    println!("this service was stopped: a connect waited, and succeeded {after:?} after it goes on");

    // Both services end in order and start again.
    theirs.tell("end");
    theirs.finish();
    ours.tell("end");
    ours.finish();
    meanwhile(&mut stream, || std::thread::sleep(Duration::from_millis(300)));
    let (_ours, _theirs) = (start_node(here), start_node(there));
    let after = meanwhile(&mut stream, || connector.until_it_succeeds());
    println!("both ended and began: connects succeed {after:?} later");
    let (count, reason) = stream.finish();
    println!("{count} messages, each right; then {reason:?}");
    acceptor.close();
}
