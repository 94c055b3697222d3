//! In every interleaving, within loom's bounds, of a writer of datagrams and of a reader that sleeps in the kernel: the
//! reader never sleeps there beside a ring that has something, and gets what was sent in its order.

use bywire_ring::datagrams::{Datagrams, Next, Reader, WORDS, Way, Writer};
use bywire_ring::stream::HEADER_BYTES;

use crate::model::{Kernel, Modelled, explore};

const RULES: Datagrams = Datagrams::new(64);

struct End {
    kernel: Kernel,
    own: Modelled,
    remote: Modelled,
}

impl End {
    fn send(&self, writer: &mut Writer, value: u64) {
        if writer.way(&RULES, &self.own, &self.remote, 8, 1) == Way::Ring {
            // SAFETY: a live value.
            unsafe { writer.stage(&RULES, &self.own, 0, value.to_ne_bytes().as_ptr(), 8) };
            if writer.publish(&RULES, &self.own, &self.remote, 8) {
                return;
            }
        }
        writer.begin_kernel(&self.own, 1);
        self.kernel.push(value);
        writer.end_kernel(&self.own);
    }

    /// Receives as a hook does: what is there, or else asleep in the kernel with a closed gate.
    fn receive(&self, reader: &mut Reader) -> u64 {
        loop {
            match reader.next(&RULES, &self.remote).expect("no corruption") {
                Next::Due(_) => return self.take(reader),
                Next::Kernel => {
                    // What is in the ring before the one that is seen in the kernel comes first.
                    if self.kernel.has_some() {
                        return match reader.next(&RULES, &self.remote) {
                            Ok(Next::Due(_)) => self.take(reader),
                            _ => {
                                let value = self.kernel.pop();
                                self.count(reader, value)
                            }
                        };
                    }
                    loom::thread::yield_now();
                }
                Next::Nothing => {
                    reader.close(&self.own);
                    while !reader.is_quiet(&self.remote) {
                        loom::thread::yield_now();
                    }
                    if matches!(reader.next(&RULES, &self.remote), Ok(Next::Due(_))) {
                        return self.take(reader);
                    }
                    let value = self.kernel.pop();
                    return self.count(reader, value);
                }
            }
        }
    }

    fn take(&self, reader: &mut Reader) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: a live buffer.
        unsafe { reader.peek(&RULES, &self.remote, 0, bytes.as_mut_ptr(), 8) };
        reader.consume(&self.own, 8);
        reader.open(&self.own);
        u64::from_ne_bytes(bytes)
    }

    fn count(&self, reader: &mut Reader, value: u64) -> u64 {
        assert!(reader.count(&self.own, &self.remote));
        reader.open(&self.own);
        value
    }
}

#[test]
fn no_reader_sleeps_in_the_kernel_beside_a_ring_with_something_and_order_is_kept() {
    explore(|| {
        let words = || WORDS.into_iter().chain((0..8).map(|word| HEADER_BYTES + 8 * word));
        let kernel = Kernel::new();
        let (ours, theirs) = (Modelled::new(words()), Modelled::new(words()));
        let mut reader = Reader::NEW;
        RULES.allow(&theirs, 1 << 20);
        Writer::NEW.begin(&ours);
        reader.found_empty(&theirs, &ours, reader.before_look(&ours), 1);
        reader.open(&theirs);
        let sender = End { kernel: kernel.clone(), own: ours.clone(), remote: theirs.clone() };
        let thread = loom::thread::spawn(move || {
            let mut writer = Writer::NEW;
            (1..=3).for_each(|value| sender.send(&mut writer, value));
        });
        let receiver = End { kernel, own: theirs, remote: ours };
        let received = [(); 3].map(|()| receiver.receive(&mut reader));
        assert_eq!(received, [1, 2, 3]);
        thread.join().expect("writer");
    });
}
