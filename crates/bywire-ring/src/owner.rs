//! Whether the process that has made a page still lives, by a word of the page.
//!
//! The word is that of a robust mutex, which a thread of the process holds for life. When the thread dies, however it
//! dies, the kernel marks the word. Processes that have the page for reading see the mark without a system call.

use core::sync::atomic::Ordering;

use crate::stream::Segment;

/// The mutex's offset in the page. Its first four bytes are the word.
pub const MUTEX_OFFSET: usize = 1024;
/// `FUTEX_TID_MASK` and `FUTEX_OWNER_DIED` of linux/futex.h.
const HOLDER: u64 = 0x3FFF_FFFF;
const DIED: u64 = 0x4000_0000;

/// Returns whether nobody holds the mutex of this page any more: its holder has died, or has let it go.
pub fn has_gone<S: Segment>(page: &S) -> bool {
    // Acquire: pairs with the kernel's exchange of the word. A reader of the mark sees every earlier store of the
    // holder. The low half of the word comes first in memory on every processor that this is built for.
    let word = page.load(MUTEX_OFFSET, Ordering::Acquire);
    word & DIED != 0 || word & HOLDER == 0
}

#[cfg(test)]
mod tests {
    use bywire_sys::life::Life;
    use bywire_sys::memory::Mapping;

    use super::*;
    use crate::stream::Mapped;

    /// A page in which a thread has made a mutex, as its readers see it after the thread has ended.
    fn seen_after(end: fn(Life)) -> bool {
        let (page, file) = Mapping::create("bywire-test", 4096).expect("memory");
        let seen = Mapping::accept(&file, 4096).expect("sealed");
        assert!(has_gone(&Mapped::new(&seen)), "nobody has it yet");
        let thread = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let life = Life::begin(page, MUTEX_OFFSET).expect("a mutex");
                assert!(!has_gone(&Mapped::new(&seen)), "it lives");
                end(life);
            });
            holder.join()
        });
        thread.expect("no panic");
        has_gone(&Mapped::new(&seen))
    }

    #[test]
    fn a_holder_that_dies_and_one_that_lets_go_are_seen_to_have_gone() {
        // The memory of a killed process goes as well. Here it stays, and only the kernel's mark tells.
        assert!(seen_after(std::mem::forget), "it has died");
        assert!(seen_after(drop), "it has let go");
    }
}
