//! Calls that a signal handler leaves by a jump (`siglongjmp`): what they had taken is released.
//!
//! A call that may sleep notes what it has taken, with its position on the stack. The C library's jump functions are
//! hooked, and release everything noted below the position that they jump to. Jumps by other means
//! (`__builtin_longjmp`, a language's own) are not hooked. The next call of the thread releases what is noted at its
//! own depth or deeper: such a note was left by a jump, because a call that is still active lies further up the stack.
//! Threads that switch stacks by themselves can mislead both rules. What was released too early is taken again by the
//! call that wakes up, before it is used.

use core::cell::Cell;

use crate::os::errno;
use crate::os::per_thread::{Zeroed, per_thread};
use crate::os::signal_deferral::{self, THREAD};

/// Notes of one thread at once. A call makes a few, and so does a handler that interrupts it. A jump leaks what is not
/// noted.
const NOTES_MAX: usize = 12;

/// How something is released, with the number that identifies it.
#[derive(Clone, Copy)]
pub struct GiveBack {
    /// By the call itself.
    pub ends: fn(usize),
    /// After a call that was left, together with what else it held.
    pub left: fn(usize),
    /// Passed to either function.
    pub argument: usize,
}

struct Notes {
    count: Cell<usize>,
    notes: [Note; NOTES_MAX],
    /// Counts notes, so that a note is not confused with an earlier one of the same index.
    serial: Cell<u64>,
}

struct Note {
    serial: Cell<u64>,
    /// The position of its call on the stack.
    place: Cell<usize>,
    /// [`GiveBack::left`]; `None`: the place was never used.
    left: Cell<Option<fn(usize)>>,
    argument: Cell<usize>,
}

// SAFETY: zeros are numbers, and no function.
unsafe impl Zeroed for Notes {}

per_thread!(static NOTES: Notes, "bywire_thread_notes");

/// Something that a call has taken, until dropped.
pub struct Noted {
    index: usize,
    serial: u64,
    give_back: GiveBack,
}

/// Takes something, and notes how it is released: by dropping the returned value, or by [`forget`] after a jump. No
/// handler runs in between.
#[inline]
pub fn taking(give_back: GiveBack, take: impl FnOnce()) -> Noted {
    let here = 0u8;
    signal_deferral::hold_off();
    take();
    let noted = NOTES.with(|notes| notes.add((&raw const here) as usize, give_back));
    signal_deferral::admit();
    noted
}

/// The same for what was taken at another position of the stack, by a thread that has deferred handlers already.
pub fn note(place: usize, give_back: GiveBack) -> Noted {
    NOTES.with(|notes| notes.add(place, give_back))
}

/// Before this thread continues at that position of the stack: releases what was taken by calls that it leaves.
pub fn leave_for(place: usize) {
    if NOTES.with(|notes| notes.count.get()) != 0 {
        errno::keep(|| forget_below(place));
    }
}

/// Releases what was taken by calls of this thread that a handler has left by an unhooked jump. The caller has noted
/// nothing yet, because its own notes may lie anywhere in its frame.
#[inline(always)]
pub fn forget() {
    if NOTES.with(|notes| notes.count.get()) != 0 {
        let here = 0u8;
        forget_below((&raw const here) as usize);
    }
}

/// The same, seen from this position of the stack.
#[inline(never)]
pub fn forget_below(here: usize) {
    let stack = THREAD.with(|thread| thread.stack.get());
    let forget_next = |notes: &Notes| {
        let is_next = notes.last().is_some_and(|last| is_left(last.place.get(), here, stack));
        if is_next {
            notes.forget_last();
        }
        is_next
    };
    let mut is_any = true;
    while is_any {
        // A handler that jumps further out finds the note, or finds it released.
        signal_deferral::hold_off();
        is_any = NOTES.with(forget_next);
        signal_deferral::admit();
    }
}

/// Whether a call at `place` was left, given that one at `here` is running. The handlers' stack says nothing about
/// another stack.
fn is_left(place: usize, here: usize, (base, length): (usize, usize)) -> bool {
    let is_on = |at: usize| at.wrapping_sub(base) < length;
    place <= here && is_on(place) == is_on(here) || is_on(place) && !is_on(here)
}

/// Clears the notes in a forked child: it has one thread, and what calls of its parent have taken was counted again.
pub fn after_fork_in_child() {
    NOTES.with(|notes| notes.count.set(0));
}

impl Notes {
    fn add(&self, place: usize, give_back: GiveBack) -> Noted {
        let (index, serial) = (self.count.get(), self.serial.get() + 1);
        let Some(note) = self.notes.get(index) else {
            return Noted { index, serial: 0, give_back };
        };
        self.serial.set(serial);
        note.serial.set(serial);
        note.place.set(place);
        note.left.set(Some(give_back.left));
        note.argument.set(give_back.argument);
        self.count.set(index + 1);
        Noted { index, serial, give_back }
    }

    fn last(&self) -> Option<&Note> {
        self.notes.get(self.count.get().checked_sub(1)?)
    }

    /// Releases what was noted last, by a call that was left. The caller has deferred handlers.
    fn forget_last(&self) {
        if let Some((left, argument)) = self.last().map(|last| (last.left.get(), last.argument.get())) {
            self.count.set(self.count.get() - 1);
            left.into_iter().for_each(|left| left(argument));
        }
    }

    /// `false`: the note is gone.
    #[inline]
    fn take_out(&self, noted: &Noted) -> bool {
        let is_there = noted.index < self.count.get()
            && self.notes.get(noted.index).is_some_and(|note| note.serial.get() == noted.serial);
        if is_there {
            // The notes above it belong to calls that were left.
            while self.count.get() > noted.index + 1 {
                self.forget_last();
            }
            self.count.set(noted.index);
        }
        is_there
    }
}

impl Noted {
    /// Releases it in this way. `false`: it was released already, because its call was taken for one that was left.
    #[inline]
    pub fn end(self, ends: impl FnOnce()) -> bool {
        core::mem::ManuallyDrop::new(self).end_by(ends)
    }

    #[inline]
    fn end_by(&self, ends: impl FnOnce()) -> bool {
        signal_deferral::hold_off();
        let is_ours = self.serial == 0 || NOTES.with(|notes| notes.take_out(self));
        if is_ours {
            ends();
        }
        signal_deferral::admit();
        is_ours
    }
}

impl Drop for Noted {
    #[inline]
    fn drop(&mut self) {
        let GiveBack { ends, argument, .. } = self.give_back;
        self.end_by(|| ends(argument));
    }
}
