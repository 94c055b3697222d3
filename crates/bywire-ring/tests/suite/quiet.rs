//! In every interleaving of a reader that stops looking at a connection and a writer that publishes, the reader's last look finds
//! what was published, or the counts of the writer's page tell of it, or the writer rings for the reader that sleeps.

use bywire_ring::stream::{HEADER_BYTES, News, Stream, WORDS};
use bywire_ring::{hints, program_doorbell};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use crate::model::{Modelled, explore};

const STREAM: Stream = Stream::new(16);
const NUMBER: usize = 5;

/// The memory of both ends: the segment of each, and the page of each program.
#[derive(Clone)]
struct Shared {
    writer: Modelled,
    reader: Modelled,
    writers_page: Modelled,
    readers_page: Modelled,
}

impl Shared {
    fn new() -> Self {
        let segment = || Modelled::new(WORDS.into_iter().chain([HEADER_BYTES, HEADER_BYTES + 8]));
        let shared = Self {
            writer: segment(),
            reader: segment(),
            writers_page: Modelled::new(hints::words(NUMBER)),
            readers_page: Modelled::new([program_doorbell::WORD_OFFSET]),
        };
        STREAM.found(&shared.writer);
        STREAM.found(&shared.reader);
        shared
    }

    /// As `Connection::tell` of a writer, after it has published a byte. Returns whether it has rung.
    fn publish(&self) -> bool {
        STREAM.begin_writing(&self.writer, &self.reader).expect("no corruption");
        // SAFETY: a live byte.
        unsafe { STREAM.stage(&self.writer, 0, [1].as_ptr(), 1, false) };
        STREAM.publish(&self.writer, 1);
        let wake = STREAM.wake(&self.writer, &self.reader, News::Bytes, 0);
        if let Some(number) = wake.hint {
            hints::count(&self.writers_page, number);
        }
        program_doorbell::must_ring(&self.readers_page, 0).is_some()
    }

    fn has_bytes(&self) -> bool {
        STREAM.available(&self.reader, &self.writer).expect("no corruption") > 0
    }

    /// Returns whether the counts have changed since they were `known`, which they are from then on.
    fn has_hint(&self, known: &mut [u64; 2]) -> bool {
        let sum = hints::sum(&self.writers_page);
        if sum == known[0] {
            return false;
        }
        let counted = hints::counted(&self.writers_page, NUMBER);
        let is_news = counted != known[1];
        *known = [sum, counted];
        is_news
    }
}

#[test]
fn news_that_nobody_looks_for_are_found_or_rung_for() {
    explore(|| {
        let shared = Shared::new();
        let writer = shared.clone();
        let thread = loom::thread::spawn(move || writer.publish());
        STREAM.begin_quiet(&shared.reader, NUMBER);
        if shared.has_bytes() {
            STREAM.end_quiet(&shared.reader);
            thread.join().expect("writer");
            return;
        }
        let mut known = [0; 2];
        program_doorbell::announce(&shared.readers_page);
        let has_found = shared.has_hint(&mut known);
        assert!(!has_found || shared.has_bytes(), "a hint comes behind its news");
        let has_rung = thread.join().expect("writer");
        assert!(has_found || has_rung, "the reader sleeps on news");
        assert!(has_found || shared.has_hint(&mut known), "the reader that was rung for finds the hint");
        assert!(shared.has_bytes());
    });
}

/// Two threads of the writer's program have news of two connections that have the same number. A reader that follows their hints
/// finds the news of each, and no hint is lost behind another one.
#[test]
fn a_hint_that_comes_while_another_one_is_followed_is_seen_next() {
    explore(|| {
        let page = Modelled::new(hints::words(NUMBER));
        let news = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let threads = news.clone().map(|news| {
            let page = page.clone();
            loom::thread::spawn(move || {
                news.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                hints::count(&page, NUMBER);
            })
        });
        let shared = Shared { writers_page: page, ..Shared::new() };
        let found = || news.iter().map(|news| news.load(Ordering::Relaxed)).sum::<u64>();
        let mut known = [0; 2];
        for _ in 0..2 {
            let is_news = shared.has_hint(&mut known);
            assert!(!is_news || found() >= known[1], "each hint comes behind its news");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("writer"));
        let _late = shared.has_hint(&mut known);
        assert_eq!(known, [2, 2], "all of them were seen");
    });
}
