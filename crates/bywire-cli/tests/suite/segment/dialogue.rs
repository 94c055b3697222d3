//! Requests and responses over one TCP connection, which measure how long a response was missing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bywire_testing::eventually;
use bywire_testing::test_network::Machine;
use bywire_testing::test_network::stopwatch::Stopwatch;

use super::connected;

/// The length of a request and of its response.
const BYTES: usize = 512;
/// The pause between a response and the next request.
const PAUSE: Duration = Duration::from_millis(1);
/// A response that is missing for so long is lost. Longer than any test stops a machine.
const LOST: Duration = Duration::from_secs(180);

/// A dialogue under way.
pub struct Dialogue {
    /// Dropped at the end.
    going_on: mpsc::Sender<()>,
    responses: Arc<Mutex<u64>>,
    near: JoinHandle<Duration>,
    far: JoinHandle<()>,
}

impl Dialogue {
    /// Begins one over a new connection to the machine with an address.
    pub fn start(from: &Machine, to: &Machine, address: std::net::SocketAddr) -> Self {
        let (near, far) = connected(from, to, address);
        for end in [&near, &far] {
            end.set_read_timeout(Some(LOST)).expect("set");
            end.set_write_timeout(Some(LOST)).expect("set");
            end.set_nodelay(true).expect("set");
        }
        let (going_on, goes_on) = mpsc::channel();
        let responses = Arc::new(Mutex::new(0));
        let count = responses.clone();
        let near = std::thread::spawn(move || ask(&near, &goes_on, &count));
        let far = std::thread::spawn(move || respond(&far));
        Self { going_on, responses, near, far }
    }

    /// Waits for responses to requests that are made from now on.
    pub fn await_more(&self, what: &str) {
        // The next response may be to an earlier request.
        let responses = || *self.responses.lock().expect("no response is lost");
        let enough = responses() + 3;
        eventually(what, || responses() >= enough);
    }

    /// Ends it. Returns how many responses came, all of them right, and the longest time for one in which this machine ran.
    pub fn end(self) -> (u64, Duration) {
        drop(self.going_on);
        let longest = self.near.join().expect("no response is lost");
        self.far.join().expect("no request is lost");
        let responses = *self.responses.lock().expect("no response is lost");
        (responses, longest)
    }
}

/// The bytes of a request, which differ from those of every other one.
fn request(number: u64) -> [u8; BYTES] {
    std::array::from_fn(|at| (number.wrapping_add(at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
}

fn ask(mut stream: &TcpStream, goes_on: &mpsc::Receiver<()>, responses: &Mutex<u64>) -> Duration {
    let (stopwatch, mut longest) = (Stopwatch::start(), Duration::ZERO);
    for number in 0.. {
        if goes_on.try_recv() == Err(TryRecvError::Disconnected) {
            break;
        }
        let began = stopwatch.elapsed();
        stream.write_all(&request(number)).expect("sent");
        let mut response = [0; BYTES];
        stream.read_exact(&mut response).expect("a response");
        let expected = request(number).map(|byte| !byte);
        assert!(response == expected, "response {number} has wrong bytes");
        longest = longest.max(stopwatch.since(began));
        *responses.lock().expect("nobody panics with it") += 1;
        std::thread::sleep(PAUSE);
    }
    stream.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0, "a response too many");
    longest
}

fn respond(mut stream: &TcpStream) {
    for number in 0.. {
        let mut found = [0; BYTES];
        match stream.read_exact(&mut found) {
            Ok(()) => assert!(found == request(number), "request {number} has wrong bytes"),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "request {number}");
                return;
            }
        }
        stream.write_all(&found.map(|byte| !byte)).expect("sent");
    }
}
