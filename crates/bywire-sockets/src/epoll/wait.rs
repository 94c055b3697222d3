//! Waiting for an epoll set of the program: what the kernel has for it, and what the rings have.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use bywire_ring::{distance, list};
use libc::epoll_event;

use crate::connection::readiness::{ALWAYS, OUT, Ready};
use crate::connection::sockets::STREAM;
use crate::datagram::members as datagrams;
use crate::datagram::readiness::{Asleep, spins};
use crate::epoll::control::ask_again;
use crate::epoll::events::{EDGE, ONCE, Snapshot, asked, has_more, is_any_ready, ready};
use crate::epoll::members::{self, Reported};
use crate::epoll::order::{self, Due, First, REPORTED_MAX};
use crate::epoll::registrations::{self, item};
use crate::epoll::sleepers::{self, Sleeping, Unannounced};
use crate::epoll::{nested, parked, quiet, sets};
use crate::memory::arena::{EpollItem, EpollSet, ITEMS};
use crate::memory::descriptors;
use crate::os::{errno, jumps, kernel, own_call};
use crate::pairing::account;
use crate::wakeup::doorbell;
use crate::wakeup::spin;

/// While rings always have something to report, the kernel is asked at every look of this many.
const KERNEL_EVERY: u32 = 8;

/// A set as one wait sees it.
struct View {
    set_fd: i32,
    name: u32,
    set: &'static EpollSet,
    /// A position on the stack, further up than everything that the wait does.
    place: usize,
    /// The last look has left something for another thread to report.
    is_left: Cell<bool>,
    /// The number of registrations that the last look has examined.
    looked_at: Cell<usize>,
}

/// The outcome for a registration that was to be quiet.
enum Silenced {
    Quiet,
    /// It stays, and is due.
    Not(Option<Due>),
}

/// The wait of a call. `real` takes the events, their number, and a timeout.
pub struct Wait<'a> {
    /// The set's descriptor.
    pub set_fd: i32,
    /// The array for events.
    pub events: *mut epoll_event,
    /// The length of that array.
    pub count: i32,
    /// The timeout: 0 returns at once, `None` never expires.
    pub timeout_ns: Option<u64>,
    /// The kernel's wait, with a timeout in nanoseconds.
    pub real: &'a dyn Fn(*mut epoll_event, i32, Option<u64>) -> i32,
}

impl Wait<'_> {
    /// Waits.
    pub fn run(&self) -> i32 {
        if datagrams::are_any() { self.run_beside_datagrams() } else { self.run_tracked() }
    }

    #[cold]
    #[inline(never)]
    fn run_beside_datagrams(&self) -> i32 {
        let set = if self.count > 0 { descriptors::set(self.set_fd) } else { None };
        let found = set.and_then(|(name, _)| self.run_with_datagrams(name));
        found.unwrap_or_else(|| self.run_tracked())
    }

    /// Waits for a set with UDP sockets. `None`: there is none in it.
    fn run_with_datagrams(&self, name: u32) -> Option<i32> {
        let inside = datagrams::enter(name)?;
        let end_ns = self.timeout_ns.map(|timeout| kernel::now_ns().saturating_add(timeout));
        let found = loop {
            if datagrams::is_any_readable(name) {
                match self.report_with_datagrams(name) {
                    0 => continue,
                    found => break found,
                }
            }
            if self.timeout_ns == Some(0) {
                break self.run_tracked();
            }
            if spins(|| datagrams::is_any_readable(name), end_ns) {
                continue;
            }
            let mut asleep = Asleep::default();
            datagrams::sleep(name, &mut asleep);
            if datagrams::is_any_readable(name) {
                continue;
            }
            let timeout_ns = end_ns.map(|end| end.saturating_sub(kernel::now_ns()));
            let found = Wait { timeout_ns, ..*self }.run_tracked();
            errno::keep(|| drop(asleep));
            break found;
        };
        errno::keep(|| drop(inside));
        Some(found)
    }

    /// Reports what is in memory, and what there is beside it. An event of one registration is reported once.
    fn report_with_datagrams(&self, name: u32) -> i32 {
        // SAFETY: the program's own array, with room for so many events.
        let events = unsafe { core::slice::from_raw_parts_mut(self.events, self.count as usize) };
        let found = datagrams::report(name, events);
        let Some((known, rest)) = events.split_at_mut_checked(found).filter(|(known, _)| !known.is_empty())
        else {
            return 0;
        };
        if rest.is_empty() {
            return found as i32;
        }
        let (events, count) = (rest.as_mut_ptr(), rest.len() as i32);
        let beside = Wait { events, count, timeout_ns: Some(0), ..*self }.run_tracked();
        let mut kept = 0;
        for at in 0..beside.max(0) as usize {
            let Some(event) = rest.get(at).copied() else { break };
            match known.iter_mut().find(|known| { known.u64 } == { event.u64 }) {
                Some(known) => known.events |= event.events,
                None => {
                    if let Some(place) = rest.get_mut(kept) {
                        *place = event;
                    }
                    kept += 1;
                }
            }
        }
        (found + kept) as i32
    }

    /// Waits without regard to UDP sockets.
    #[inline(always)]
    fn run_tracked(&self) -> i32 {
        let Some((name, set)) = descriptors::set(self.set_fd) else {
            return (self.real)(self.events, self.count, self.timeout_ns);
        };
        if self.count <= 0 || self.events.is_null() {
            return (self.real)(self.events, self.count, self.timeout_ns);
        }
        sets::note_user(set);
        let here = 0u8;
        let place = (&raw const here) as usize;
        // Releases what a call at this place has left by a jump.
        jumps::forget_below(place);
        let (is_left, looked_at) = (Cell::new(false), Cell::new(0));
        let view = View { set_fd: self.set_fd, name, set, place, is_left, looked_at };
        let end = self.timeout_ns.map(|timeout| kernel::now_ns().saturating_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_sub(kernel::now_ns()));
            if own_call::are_over() {
                return (self.real)(self.events, self.count, left);
            }
            view.is_left.set(false);
            if let Some(result) = self.turn(&view, left) {
                if result > 0 {
                    view.pass_on();
                }
                return result;
            }
            if left == Some(0) {
                return 0;
            }
        }
    }

    /// Looks once, and sleeps if there is nothing; `None`: look again.
    #[inline(never)]
    fn turn(&self, view: &View, left_ns: Option<u64>) -> Option<i32> {
        let Some(unannounced) = Unannounced::enter(view.name, view.set, view.place) else {
            return self.turn_of_carried(view, left_ns);
        };
        let heard = (self.real)(self.events, self.count, account::before_wait(left_ns));
        errno::keep(|| drop(unannounced));
        self.result(view, heard)
    }

    #[inline(never)]
    fn turn_of_carried(&self, view: &View, left_ns: Option<u64>) -> Option<i32> {
        // The kernel's events come first then: a full array would leave no room for them.
        let mut found = 0;
        if view.set.turn.load(Ordering::Relaxed) >= KERNEL_EVERY {
            view.set.turn.store(0, Ordering::Relaxed);
            found = self.ask(view);
        }
        found += view.look(self.at(found), self.count - found);
        if found > 0 {
            return Some(view.without_kernel(found));
        }
        if left_ns != Some(0) {
            let deadline = left_ns.map(|left| kernel::now_ns().saturating_add(left));
            spin::until(
                view.looked_at.get(),
                || {
                    found = view.look(self.events, self.count);
                    found > 0
                },
                deadline,
            );
            if found > 0 {
                return Some(view.without_kernel(found));
            }
        }
        let sleeping = Sleeping::announce(view.name, view.set, view.place)?;
        nested::tell_kernel(view.name, view.set);
        view.sweep();
        let found = view.look(self.events, self.count);
        if found > 0 {
            drop(sleeping);
            return Some(view.without_kernel(found));
        }
        // Without a page or a doorbell nobody would wake it, so sleeps are short.
        // A call that does not sleep needs neither: a doorbell that is added makes the set ready for sets around it.
        let is_wakeable =
            left_ns == Some(0) || sleeping.is_announced() && members::restore_doorbell(view.set_fd, view.set);
        let left_ns = match is_wakeable {
            true => left_ns,
            false => Some(left_ns.unwrap_or(u64::MAX).min(10_000_000)),
        };
        let heard = (self.real)(self.events, self.count, account::before_wait(left_ns));
        errno::keep(|| drop(sleeping));
        self.result(view, heard)
    }

    /// The kernel's answer at once, without the events for [`View::look`].
    fn ask(&self, view: &View) -> i32 {
        view.sweep();
        nested::tell_kernel(view.name, view.set);
        let (mut was_flag, mut was_parked) = (false, false);
        loop {
            let heard = (self.real)(self.events, self.count, Some(0));
            let (kept, own) = view.sort(self.events, heard);
            // The library's own events may have taken the room of others. The kernel reports the flag behind all others
            // the next time.
            let is_new = own.doorbell || own.flag && !was_flag || own.parked && !was_parked;
            if kept > 0 || heard < self.count || !is_new {
                return kept;
            }
            if own.parked {
                parked::remove_all(view.set_fd, view.set);
            }
            was_flag |= own.flag;
            was_parked |= own.parked;
        }
    }

    /// Combines what the kernel has reported with what the rings have by now.
    fn result(&self, view: &View, heard: i32) -> Option<i32> {
        if heard < 0 {
            return Some(heard);
        }
        let (mut sorted, own) = view.sort(self.events, heard);
        if sorted == 0 && (own.doorbell || own.flag || own.parked) && heard == self.count {
            sorted = self.ask(view);
        }
        let found = sorted + view.look(self.at(sorted), self.count - sorted);
        if found > 0 {
            return Some(found);
        }
        if own.flag {
            nested::lower_idle_flag(view.set_fd, view.set);
        }
        None
    }

    fn at(&self, index: i32) -> *mut epoll_event {
        self.events.wrapping_add(index.max(0) as usize)
    }
}

impl View {
    fn sweep(&self) {
        if self.set.quiet_count.load(Ordering::Relaxed) != 0 {
            quiet::sweep(self.set, kernel::now_ns());
        }
    }

    /// Counts a turn in which the kernel was not asked.
    fn without_kernel(&self, found: i32) -> i32 {
        self.set.turn.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps what the kernel reports of carried connections for [`Self::look`], and leaves the rest to the program.
    /// Returns the number left, and what was the library's own.
    fn sort(&self, events: *mut epoll_event, count: i32) -> (i32, Reported) {
        let (mut kept, mut own, mut held) = (0, Reported::default(), None);
        for index in 0..count.max(0) as usize {
            // SAFETY: the kernel has written `count` events there.
            let mut event = unsafe { events.add(index).read_unaligned() };
            let data = { event.u64 };
            if own.note(data) {
                continue;
            }
            if registrations::is_name(data) {
                held.get_or_insert_with(|| self.set.lock.hold());
                match registrations::named(data, self.name)
                    .filter(|_| descriptors::set_named(self.name).is_some())
                {
                    // The next look removes it from the kernel.
                    Some(item) if registrations::is_parked(item) => {
                        own.parked = true;
                        continue;
                    }
                    Some(item) if item.listed.load(Ordering::Relaxed) == 0 => {
                        item.spent.store(1, Ordering::Relaxed);
                        event.u64 = item.data.load(Ordering::Relaxed);
                    }
                    Some(item) => {
                        quiet::end(self.set, registrations::index(data), item);
                        if item.heard.fetch_or(event.events, Ordering::Relaxed) == 0
                            && let Some(connection) = registrations::connection(item)
                        {
                            order::note_kernels(item, &connection);
                        }
                        continue;
                    }
                    // The event belongs to a registration that was replaced or removed since.
                    None => continue,
                }
            }
            // SAFETY: no further than was read.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        }
        drop(held);
        if own.doorbell {
            doorbell::take_ring();
        }
        if own.flag {
            members::note_reported_flag(self.set);
        }
        (kept as i32, own)
    }

    /// What is left wakes the next sleeper, as with the kernel's own sets, and threads that watch this set.
    fn pass_on(&self) {
        // A thread that has looked before this one is counted, by the set's lock. One that looks afterwards finds what is
        // left.
        if self.is_left.get() && sleepers::are_there(self.set) {
            doorbell::ring_own();
        }
    }

    /// Reports carried connections that are ready.
    fn look(&self, events: *mut epoll_event, count: i32) -> i32 {
        if !self.set.has_carried() {
            return 0;
        }
        let mut reported = [MaybeUninit::<epoll_event>::uninit(); REPORTED_MAX];
        let room = (count.max(0) as usize).min(REPORTED_MAX);
        let found = self.collect(reported.get_mut(..room).unwrap_or_default());
        // The program's array may be invalid: a handler that jumps out of here leaves no lock held.
        // SAFETY: it has room for `count` events, which are at least as many as were found and initialised.
        unsafe { events.copy_from_nonoverlapping(reported.as_ptr().cast(), found) };
        found as i32
    }

    /// Collects what is to be reported, in the order in which it became ready, as far as there is room. Returns the
    /// number.
    fn collect(&self, events: &mut [MaybeUninit<epoll_event>]) -> usize {
        let _held = self.set.lock.hold();
        // A thread that has closed the set meanwhile may have made another one in its record.
        if descriptors::set_named(self.name).is_none() {
            return 0;
        }
        quiet::follow(self.set);
        // Acquire: pairs with the release exchange in `list::put` and the release store in `rotate`.
        let at = self.set.carried.load(Ordering::Acquire);
        let has_quiet = self.set.quiet_count.load(Ordering::Relaxed) != 0;
        match item(at) {
            Some(alone) if order::is_alone(alone) && !has_quiet => self.collect_one(at, alone, events),
            _ => self.collect_in_order(at, events),
        }
    }

    /// Does it for the only registration of the set, which is in no order.
    fn collect_one(&self, at: u32, item: &EpollItem, events: &mut [MaybeUninit<epoll_event>]) -> usize {
        self.looked_at.set(1);
        let Some(place) = events.first_mut() else {
            self.leave(at);
            return 0;
        };
        if registrations::is_parked(item) {
            let _is_removed = parked::remove(self.set_fd, self.set, at, item, None);
            return 0;
        }
        let Some(due) = self.due(at, item, true) else { return 0 };
        place.write(self.report(item, &due));
        order::report_alone(item);
        1
    }

    /// Does it for several, of which `at` is the first on the list.
    fn collect_in_order(&self, mut at: u32, events: &mut [MaybeUninit<epoll_event>]) -> usize {
        let mut first = First::new(events.len());
        let mut last = 0;
        for looked_at in 0..ITEMS {
            self.looked_at.set(looked_at);
            let Some(item) = item(at) else { break };
            if first.is_enough() {
                self.leave(at);
                self.rotate(at, last);
                break;
            }
            let next = list::step(&item.next_of_set);
            if registrations::is_parked(item) {
                if !parked::remove(self.set_fd, self.set, at, item, None) {
                    last = at;
                }
                at = next;
                continue;
            }
            let mut due = self.due(at, item, false);
            if due.is_none() && quiet::is_due(self.set, item, looked_at) {
                match self.silence(at, item, last) {
                    Silenced::Quiet => {
                        at = next;
                        continue;
                    }
                    Silenced::Not(found) => due = found,
                }
            }
            if let Some(due) = due {
                quiet::note_found(self.set, item);
                first.put(due);
            }
            (last, at) = (at, next);
        }
        if first.leaves_any() {
            self.is_left.set(true);
        }
        let now = if first.is_empty() { 0 } else { distance::moment() };
        let mut found = 0;
        if !first.is_empty() {
            self.set.walks.fetch_add(1, Ordering::Relaxed);
        }
        for ((due, place), now) in first.in_order().iter().zip(events).zip(now..) {
            let Some(item) = item(due.at) else { continue };
            place.write(self.report(item, due));
            order::report(item, due.mark, now);
            found += 1;
        }
        found
    }

    /// A registration for which many looks have found nothing is quiet from here on, unless one more finds something.
    #[cold]
    fn silence(&self, at: u32, item: &EpollItem, before: u32) -> Silenced {
        let possible =
            registrations::connection(item).filter(|connection| quiet::is_possible(at, item, connection));
        let Some(connection) = possible else {
            // Not each walk asks again.
            quiet::note_found(self.set, item);
            return Silenced::Not(None);
        };
        quiet::begin_counting(item, &connection);
        let found = self.due(at, item, false);
        if found.is_none() && connection.is_at_rest() {
            quiet::leave(self.set, at, item, before);
            return Silenced::Quiet;
        }
        quiet::end_counting(&connection);
        Silenced::Not(found)
    }

    /// Notes whether one of the registrations from this one on is ready, as they are not examined now.
    fn leave(&self, first: u32) {
        self.is_left.set(self.is_left.get() || sleepers::are_there(self.set) && is_any_ready(first));
    }

    /// The event of a registration that is ready, which counts as reported from here on.
    fn report(&self, item: &EpollItem, due: &Due) -> epoll_event {
        let wanted = item.events.load(Ordering::Relaxed);
        item.heard.store(0, Ordering::Relaxed);
        if wanted & EDGE != 0 {
            due.snapshot(wanted).take_news(item);
        }
        if wanted & ONCE != 0 {
            item.spent.store(1, Ordering::Relaxed);
            if let Some(connection) = registrations::connection(item) {
                ask_again(self.set_fd, &connection, due.at, item, &Ready::default());
            }
        }
        // A level-triggered event stays until somebody has read the bytes.
        if wanted & (EDGE | ONCE) == 0 {
            self.is_left.set(true);
        }
        epoll_event { events: due.bits, u64: item.data.load(Ordering::Relaxed) }
    }

    /// Moves the registrations that were not examined to the front, so that a few busy ones do not starve them.
    fn rotate(&self, first: u32, before: u32) {
        let (Some(split), head) = (item(before), self.set.carried.load(Ordering::Relaxed)) else { return };
        let mut end = first;
        for _ in 0..ITEMS {
            match item(end).map(|item| item.next_of_set.load(Ordering::Relaxed)) {
                Some(0) | None => break,
                Some(next) => end = next,
            }
        }
        if let Some(end) = item(end) {
            split.next_of_set.store(0, Ordering::Relaxed);
            end.next_of_set.store(head, Ordering::Relaxed);
            // Release: pairs with the acquire loads of the list's head. The links are changed before.
            self.set.carried.store(first, Ordering::Release);
        }
    }

    /// The events due for a registration, if any.
    fn due(&self, at: u32, item: &EpollItem, is_alone: bool) -> Option<Due> {
        let connection = registrations::connection(item)?;
        let heard = item.heard.load(Ordering::Relaxed);
        if heard == 0 && item.settled.load(Ordering::Relaxed) != 0 && connection.is_at_rest() {
            order::pass(item, &connection, is_alone);
            return None;
        }
        if heard != 0 {
            connection.heard(heard as i16);
        }
        if item.spent.load(Ordering::Relaxed) != 0 {
            item.heard.store(0, Ordering::Relaxed);
            return None;
        }
        let wanted = item.events.load(Ordering::Relaxed);
        let mark = if is_alone { 0 } else { STREAM.last_mark(&connection.remote) };
        let tail = STREAM.tail(&connection.remote);
        let full = connection.shared.full.load(Ordering::Relaxed);
        let mut found = ready(&connection, wanted);
        ask_again(self.set_fd, &connection, at, item, &found);
        let mut bits = found.bits & (wanted | ALWAYS);
        // One report contains everything, from the rings and from the kernel. What the kernel has reported may have
        // been taken since, as an error or as bytes: the kernel, too, checks again before it reports.
        let elsewhere = found.elsewhere(wanted);
        // The kernel cannot watch it by a descriptor that this process has closed.
        let is_unasked = registrations::number(item).is_none();
        let is_told = (bits | heard & elsewhere) != 0;
        if elsewhere != 0 && (is_told || has_more(item, wanted, tail) || is_unasked) {
            let told = kernel::ready(connection.fd, elsewhere as i16 | libc::POLLRDHUP);
            connection.heard(told);
            // What is reported now is not new at the next look.
            found = ready(&connection, wanted);
            bits |= (found.bits | u32::from(told as u16)) & (wanted | ALWAYS);
        }
        let snapshot = Snapshot { wanted, bits, heard, tail, full, ended: found.ended };
        if bits != 0 && (wanted & EDGE == 0 || snapshot.is_news(item)) {
            let place = if is_alone { 0 } else { order::place(item, &connection, &snapshot) };
            return Some(Due { at, bits, place, tail, mark, full, ended: found.ended });
        }
        item.heard.store(0, Ordering::Relaxed);
        if wanted & EDGE != 0 {
            snapshot.take_news(item);
        }
        order::pass(item, &connection, is_alone);
        // Most connections of a large set are idle most of the time. One that waits for room is not.
        let is_settled = wanted & OUT == 0
            && bits == 0
            && connection.is_at_rest()
            && item.asked.load(Ordering::Relaxed) == asked(&found, wanted);
        item.settled.store(is_settled.into(), Ordering::Relaxed);
        None
    }
}
