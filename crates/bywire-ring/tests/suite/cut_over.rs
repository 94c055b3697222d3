//! In every interleaving of a writer that leaves the kernel and of a reader that sleeps there, no reader sleeps in the
//! kernel after the cut-over, and bytes that a writer takes back were never read.

use bywire_ring::stream::Segment as _;
use bywire_ring::stream::{ASKS_BACK, HEADER_BYTES, Route, Stream, WORDS};

use crate::model::{Kernel, Modelled, explore};

const STREAM: Stream = Stream::new(64);

struct Fixture {
    kernel: Kernel,
    writer: Modelled,
    reader: Modelled,
}

fn fixture() -> Fixture {
    let words = || WORDS.into_iter().chain([HEADER_BYTES, HEADER_BYTES + 8, HEADER_BYTES + 16]);
    Fixture { kernel: Kernel::new(), writer: Modelled::new(words()), reader: Modelled::new(words()) }
}

impl Fixture {
    /// Sends as a hook does; `given` counts what the kernel has got.
    fn send(&self, value: u64, given: &mut u64) {
        if STREAM.route(&self.writer) == Ok(Route::Kernel) {
            let leaves = STREAM.begin(&self.writer, &self.reader);
            self.kernel.push(value);
            *given += 1;
            if leaves {
                STREAM.cut(&self.writer, *given);
            }
            return;
        }
        assert!(STREAM.room(&self.writer, &self.reader, 64).expect("no corruption") >= 8);
        // SAFETY: a live value.
        unsafe { STREAM.stage(&self.writer, 0, value.to_ne_bytes().as_ptr(), 8, false) };
        STREAM.publish(&self.writer, 8);
    }

    /// Receives as a hook does; `taken` counts what came out of the kernel.
    fn receive(&self, taken: &mut u64) -> u64 {
        loop {
            match STREAM.route(&self.writer).expect("no corruption") {
                Route::Kernel => {
                    let route = STREAM.enter(&self.reader, &self.writer);
                    let value = (route == Ok(Route::Kernel)).then(|| self.kernel.pop());
                    STREAM.leave(&self.reader);
                    if let Some(value) = value {
                        *taken += 1;
                        return value;
                    }
                }
                Route::Pending | Route::Ending => {}
                Route::Back(until) if until == STREAM.head(&self.reader) => {
                    *taken += 1;
                    return self.kernel.pop();
                }
                Route::Ring if *taken < STREAM.cut_offset(&self.writer) => {
                    *taken += 1;
                    return self.kernel.pop();
                }
                Route::Ring | Route::Back(_) => {
                    if let Some(value) = self.take() {
                        return value;
                    }
                }
            }
            loom::thread::yield_now();
        }
    }
}

impl Fixture {
    /// Takes a value out of the ring, if there is one and its writer does not take it back.
    fn take(&self) -> Option<u64> {
        let route = STREAM.begin_taking(&self.reader, &self.writer).expect("no corruption");
        let is_there = matches!(route, Route::Ring | Route::Back(_))
            && STREAM.available(&self.reader, &self.writer).expect("no corruption") >= 8;
        let mut bytes = [0; 8];
        if is_there {
            // SAFETY: a live buffer.
            unsafe {
                STREAM.peek(
                    &self.writer,
                    STREAM.first_unread(&self.reader, &self.writer),
                    0,
                    bytes.as_mut_ptr(),
                    8,
                )
            };
            STREAM.consume(&self.reader, 8);
        }
        STREAM.end_taking(&self.reader);
        is_there.then_some(u64::from_ne_bytes(bytes))
    }

    /// Ends the ring as a hook does, and gives the kernel what nobody has taken.
    fn end_ring(&self) {
        STREAM.begin_end(&self.writer);
        let tail = STREAM.tail(&self.writer);
        let from = STREAM.untaken(&self.writer, &self.reader).expect("no corruption").unwrap_or(tail);
        STREAM.back(&self.writer, from);
        let unread = tail.wrapping_sub(from) as usize;
        for at in (0..unread).step_by(8) {
            let [(place, _), _] = STREAM.places(&self.writer, from + at as u64, 8);
            self.kernel.push(self.writer.load(place, core::sync::atomic::Ordering::Relaxed));
        }
    }
}

#[test]
fn no_reader_sleeps_in_the_kernel_after_the_cut_over_and_no_byte_is_lost() {
    explore(|| {
        let Fixture { kernel, writer, reader } = fixture();
        let ours = Fixture { kernel: kernel.clone(), writer: writer.clone(), reader: reader.clone() };
        let thread = loom::thread::spawn(move || {
            let mut given = 0;
            (1..=2).for_each(|value| ours.send(value, &mut given));
        });
        let fixture = Fixture { kernel, writer, reader };
        STREAM.prepare(&fixture.reader);
        let mut taken = 0;
        assert_eq!((fixture.receive(&mut taken), fixture.receive(&mut taken)), (1, 2));
        thread.join().expect("writer");
    });
}

#[test]
fn a_reader_that_requests_the_kernel_sees_the_cut_over_or_prevents_it() {
    explore(|| {
        let Fixture { kernel: _, writer, reader } = fixture();
        let (own, remote) = (writer.clone(), reader.clone());
        STREAM.prepare(&reader);
        let thread = loom::thread::spawn(move || {
            let leaves = STREAM.begin(&own, &remote);
            if leaves {
                STREAM.cut(&own, 1);
            }
            leaves
        });
        STREAM.raise(&reader, ASKS_BACK);
        let route = STREAM.route(&writer).expect("no corruption");
        let leaves = thread.join().expect("writer");
        // A reader that finds the kernel after it has asked may rely on it.
        assert!(!(leaves && route == Route::Kernel));
    });
}

#[test]
fn bytes_that_a_writer_takes_back_were_never_read_and_none_is_lost() {
    explore(|| {
        let Fixture { kernel, writer, reader } = fixture();
        let ours = Fixture { kernel: kernel.clone(), writer: writer.clone(), reader: reader.clone() };
        STREAM.prepare(&reader);
        // Both in the ring already.
        assert!(STREAM.begin(&writer, &reader));
        STREAM.cut(&writer, 0);
        for value in 1u64..=2 {
            // SAFETY: a live value.
            unsafe { STREAM.stage(&writer, 0, value.to_ne_bytes().as_ptr(), 8, false) };
            STREAM.publish(&writer, 8);
        }
        let thread = loom::thread::spawn(move || ours.end_ring());
        let fixture = Fixture { kernel, writer, reader };
        let mut taken = 0;
        assert_eq!((fixture.receive(&mut taken), fixture.receive(&mut taken)), (1, 2));
        thread.join().expect("writer");
    });
}
