//! Hints of news, for programs that have many connections of which few are busy.
//!
//! A reader that has looked at a connection in vain for a while stops looking. The connection is *quiet* from then on: the header
//! of the reader's segment says so, with a number of the reader's choice. After each publication the writer counts its news for
//! that number, in a page that only the writer's program writes. The reader looks at the sum of each such page, instead of at all
//! connections.
//!
//! ```text
//! reader: quiet → fence → look               writer: publish → fence → quiet? count → fence → look at the doorbell's word
//! reader: announce → fence → look at sums
//! ```
//!
//! The first fences ensure that either the reader's last look finds what was published, or the writer finds the connection quiet.
//! The others are those of [`crate::program_doorbell`]: either the reader finds the count, or the writer finds a sleeper.
//!
//! A writer that does not count keeps its own news from the reader, and nobody else's. One that counts without news makes the reader
//! look at its quiet connections in vain, as it looked at all connections before.

use core::sync::atomic::Ordering;

use crate::stream::Segment;

/// The numbers that a reader may choose are lower than this.
pub const NUMBERS: usize = 256;
/// The lowest of them are for connections that were busy lately.
const WARM: usize = 64;
/// The offset of the sum in the writer's page, and of the count for each number.
const SUM: usize = 1984;
const COUNTS: usize = 2048;
/// The length of a page that has all counts.
pub const PAGE_BYTES_MIN: usize = COUNTS + 8 * NUMBERS;

/// The number of a connection that was busy lately, which has this name at the reader.
pub const fn warm(name: u64) -> usize {
    (name % WARM as u64) as usize
}

/// The number of a connection without news while others of its number had some. So those that are busy now and then soon have their
/// numbers for themselves, however many others there are.
pub const fn cold(name: u64) -> usize {
    WARM + (name % (NUMBERS - WARM) as u64) as usize
}

/// Returns whether a number is one of [`cold`].
pub const fn is_cold(number: usize) -> bool {
    number >= WARM
}

/// Counts news for this number. The caller has published them before. [`crate::program_doorbell::must_ring`] follows.
pub fn count<S: Segment>(page: &S, number: usize) {
    // Release: pairs with the acquire load in `counted`. The news come before.
    page.add(COUNTS + 8 * (number % NUMBERS), 1, Ordering::Release);
    // Release: pairs with the acquire load in `sum`. The count comes before.
    page.add(SUM, 1, Ordering::Release);
    // Pairs with the fences of `program_doorbell::announce` and `program_doorbell::take`.
    page.fence();
}

/// The sum of all counts: while it stays the same, there are no news.
pub fn sum<S: Segment>(page: &S) -> u64 {
    // Acquire: pairs with the release addition in `count`.
    page.load(SUM, Ordering::Acquire)
}

/// The count for one number, which may have news that the sum does not have yet.
pub fn counted<S: Segment>(page: &S, number: usize) -> u64 {
    // Acquire: pairs with the release addition in `count`. What is found changed is looked at next.
    page.load(COUNTS + 8 * (number % NUMBERS), Ordering::Acquire)
}

/// The words of a page that news of one number change, for models.
pub fn words(number: usize) -> [usize; 2] {
    [SUM, COUNTS + 8 * (number % NUMBERS)]
}
