//! Calls that a signal handler has left by a jump (`siglongjmp`): what they had taken is given back.
//!
//! A call that may sleep notes what it has taken, with its place on the stack. The C library's jumps are seen, and give back
//! what lies below the place that they go to. A jump by other means (`__builtin_longjmp`, a language's own) is not: what the
//! next call of the thread finds at its own depth, or below, was left by one, as a call that is still under way lies further up
//! there than whatever comes upon it. Threads that change stacks by themselves can mislead both: whatever was given back too
//! early is taken anew by the call that wakes up, before it is used.

use core::cell::Cell;

use crate::os::errno;
use crate::os::signal_deferral::{self, THREAD};

/// Notes of one thread at once: a call makes a few, and so does a handler upon it. What is not noted is lost by a jump.
const NOTES_MAX: usize = 12;

/// How something is given back, with the number that stands for it.
#[derive(Clone, Copy)]
pub struct GiveBack {
    /// By the call itself.
    pub ends: fn(usize),
    /// For a call that was left: what it held besides, too.
    pub left: fn(usize),
    /// Handed to either.
    pub argument: usize,
}

struct Notes {
    count: Cell<usize>,
    notes: [Note; NOTES_MAX],
    /// Counts notes, so that none is taken for an earlier one of the same index.
    serial: Cell<u64>,
}

struct Note {
    serial: Cell<u64>,
    /// Where on the stack its call is.
    place: Cell<usize>,
    give_back: Cell<GiveBack>,
}

thread_local! {
    // Constant and without a destructor: nothing is allocated or registered for it.
    static NOTES: Notes = const {
        Notes {
            count: Cell::new(0),
            notes: [const {
                Note {
                    serial: Cell::new(0),
                    place: Cell::new(0),
                    give_back: Cell::new(GiveBack { ends: nothing, left: nothing, argument: 0 }),
                }
            }; NOTES_MAX],
            serial: Cell::new(0),
        }
    };
}

fn nothing(_: usize) {}

/// Something that a call has taken, until dropped.
pub struct Noted {
    index: usize,
    serial: u64,
    give_back: GiveBack,
}

/// Takes something, and notes how it is given back: by the drop of what is returned, or by [`forget`] after a jump. No handler
/// comes between.
#[inline]
pub fn taking(give_back: GiveBack, take: impl FnOnce()) -> Noted {
    let here = 0u8;
    signal_deferral::hold_off();
    take();
    let noted = NOTES.with(|notes| notes.add((&raw const here) as usize, give_back));
    signal_deferral::admit();
    noted
}

/// The same for what was taken at another place of the stack, by a thread whose handlers wait already.
pub fn note(place: usize, give_back: GiveBack) -> Noted {
    NOTES.with(|notes| notes.add(place, give_back))
}

/// Before this thread goes on at that place of the stack: gives back what was taken by calls that it leaves so.
pub fn leave_for(place: usize) {
    if NOTES.with(|notes| notes.count.get()) != 0 {
        errno::keep(|| forget_below(place));
    }
}

/// Gives back what was taken by calls of this thread that handlers have left without being seen. For a call that has noted
/// nothing yet: its own notes may lie anywhere in its frame.
#[inline(always)]
pub fn forget() {
    if NOTES.with(|notes| notes.count.get()) != 0 {
        let here = 0u8;
        forget_below((&raw const here) as usize);
    }
}

/// The same, seen from this place of the stack.
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
        // A handler that jumps further out finds the note, or finds it given back.
        signal_deferral::hold_off();
        is_any = NOTES.with(forget_next);
        signal_deferral::admit();
    }
}

/// Was a call at `place` left, as one at `here` has come? The stack that handlers are on says nothing about another one.
fn is_left(place: usize, here: usize, (base, length): (usize, usize)) -> bool {
    let is_on = |at: usize| at.wrapping_sub(base) < length;
    place <= here && is_on(place) == is_on(here) || is_on(place) && !is_on(here)
}

/// The child has one thread, and what calls of its parent have taken was counted anew.
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
        note.give_back.set(give_back);
        self.count.set(index + 1);
        Noted { index, serial, give_back }
    }

    fn last(&self) -> Option<&Note> {
        self.notes.get(self.count.get().checked_sub(1)?)
    }

    /// Gives back what was noted last, by a call that was left. No handler may come meanwhile.
    fn forget_last(&self) {
        if let Some(give_back) = self.last().map(|last| last.give_back.get()) {
            self.count.set(self.count.get() - 1);
            (give_back.left)(give_back.argument);
        }
    }

    /// `false`: it is not there any more.
    #[inline]
    fn take_out(&self, noted: &Noted) -> bool {
        let is_there = noted.index < self.count.get()
            && self.notes.get(noted.index).is_some_and(|note| note.serial.get() == noted.serial);
        if is_there {
            // What lies above was left.
            while self.count.get() > noted.index + 1 {
                self.forget_last();
            }
            self.count.set(noted.index);
        }
        is_there
    }
}

impl Noted {
    /// Gives it back in this way; `false`: it was given back already, as its call was taken for one that was left.
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
