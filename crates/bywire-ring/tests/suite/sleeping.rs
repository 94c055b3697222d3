//! Every interleaving of a reader and a writer that sleep on each other's event word, as blocking calls do.

use bywire_ring::stream::{HEADER_BYTES, News, Sleep, Stream, WORDS};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

use crate::model::{Modelled, explore_with};

const RING_BYTES: usize = 16;
const STREAM: Stream = Stream::new(RING_BYTES);

/// One end: its segment, the peer's, and what its threads share of the last wake.
#[derive(Clone)]
struct End {
    own: Modelled,
    remote: Modelled,
    woken: Arc<AtomicU32>,
    /// The kernel's sleepers, of both ends.
    kernel: Arc<(Mutex<()>, Condvar)>,
}

fn ends() -> (End, End) {
    let segment = || Modelled::new(WORDS.into_iter().chain([HEADER_BYTES, HEADER_BYTES + 8]));
    let (first, second) = (segment(), segment());
    STREAM.found(&first);
    STREAM.found(&second);
    let kernel = Arc::new((Mutex::new(()), Condvar::new()));
    let end = |own: &Modelled, remote: &Modelled| End {
        own: own.clone(),
        remote: remote.clone(),
        woken: Arc::new(AtomicU32::new(0)),
        kernel: Arc::clone(&kernel),
    };
    (end(&first, &second), end(&second, &first))
}

impl End {
    /// As `Connection::tell`.
    fn tell(&self, news: News) {
        let wake = STREAM.wake(&self.own, &self.remote, news, self.woken.load(Ordering::Relaxed));
        if wake.futex {
            self.woken.store(wake.round, Ordering::Relaxed);
            drop(self.kernel.0.lock().expect("no panic"));
            self.kernel.1.notify_all();
        }
    }

    /// As `Connection::sleep`, without the look at the kernel after a while: who is not woken sleeps forever, which ends
    /// the model.
    fn sleep(&self, sleep: Sleep, again: impl Fn() -> bool) {
        let expected = STREAM.arm(&self.own, &self.remote, sleep);
        if !again() {
            let guard = self.kernel.0.lock().expect("no panic");
            if STREAM.event(&self.remote) == expected {
                drop(self.kernel.1.wait(guard).expect("no panic"));
            }
        }
        STREAM.disarm(&self.own, sleep);
    }

    /// The whole ring, or what the reader allows.
    fn window(&self) -> usize {
        match STREAM.allowance(&self.remote) {
            0 => RING_BYTES,
            bytes => bytes as usize,
        }
    }

    fn send(&self, value: u64) {
        let room = || STREAM.room_hint(&self.own, &self.remote, self.window()).expect("no corruption");
        while room() < 8 {
            STREAM.bound(&self.own, self.window());
            self.sleep(Sleep::Room, || room() >= 8);
        }
        STREAM.begin_writing(&self.own, &self.remote).expect("no corruption");
        // SAFETY: a live value of eight bytes.
        unsafe { STREAM.stage(&self.own, 0, value.to_ne_bytes().as_ptr(), 8, false) };
        STREAM.publish(&self.own, 8);
        self.tell(News::Bytes);
    }

    fn receive(&self) -> u64 {
        let available = || STREAM.available(&self.own, &self.remote).expect("no corruption");
        while available() < 8 {
            self.sleep(Sleep::Bytes, || available() >= 8);
        }
        let mut bytes = [0; 8];
        // SAFETY: a live buffer of eight bytes.
        unsafe {
            STREAM.peek(&self.remote, STREAM.first_unread(&self.own, &self.remote), 0, bytes.as_mut_ptr(), 8)
        };
        STREAM.consume(&self.own, 8);
        if STREAM.is_relieved(&self.own, &self.remote, 8) {
            self.tell(News::Room);
        }
        u64::from_ne_bytes(bytes)
    }
}

#[test]
fn a_sleeping_reader_is_woken_by_each_event_that_it_has_not_seen() {
    explore_with(2, || {
        let (writer, reader) = ends();
        let thread = loom::thread::spawn(move || (1..=2).for_each(|value| writer.send(value)));
        assert_eq!((reader.receive(), reader.receive()), (1, 2));
        thread.join().expect("writer");
    });
}

#[test]
fn a_writer_that_sleeps_for_room_is_woken_by_it() {
    explore_with(2, || {
        let (writer, reader) = ends();
        (1..=2).for_each(|value| writer.send(value));
        let thread = loom::thread::spawn(move || writer.send(3));
        assert_eq!((reader.receive(), reader.receive(), reader.receive()), (1, 2, 3));
        thread.join().expect("writer");
    });
}

#[test]
fn a_writer_with_a_bound_is_woken_when_half_of_that_is_free() {
    explore_with(2, || {
        let (writer, reader) = ends();
        STREAM.allow(&reader.own, 8);
        writer.send(1);
        let thread = loom::thread::spawn(move || writer.send(2));
        assert_eq!((reader.receive(), reader.receive()), (1, 2));
        thread.join().expect("writer");
    });
}

#[test]
fn a_writer_that_sleeps_for_room_is_woken_by_a_higher_bound() {
    explore_with(2, || {
        let (writer, reader) = ends();
        STREAM.allow(&reader.own, 8);
        writer.send(1);
        let thread = loom::thread::spawn(move || writer.send(2));
        STREAM.allow(&reader.own, 16);
        reader.tell(News::Room);
        // Nothing is read before it has written.
        thread.join().expect("writer");
        assert_eq!((reader.receive(), reader.receive()), (1, 2));
    });
}
