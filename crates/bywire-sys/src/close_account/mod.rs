//! Accounts of the files that wait to be closed, and the threads that close them.
//!
//! An account covers the descriptors of one user, its sockets, or the files that two users have in common. While
//! something waits, the account has a thread of its own. Each account has its own limit, and a share of the places
//! and threads for all.

#[cfg(test)]
mod backlog;
mod held;
mod kind;
mod registry;
#[cfg(test)]
mod tests;

use core::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::interrupt::Interrupter;
use kind::Kind;
use registry::{LANES_MAX, Lane, Registry, lock};

#[cfg(test)]
pub(crate) use backlog::{Backlog, is_alone, places};
pub use held::{Held, Ticket};

/// The most descriptors in one packet.
pub const DESCRIPTORS_MAX: usize = 4;
/// The threads do nothing but close.
const STACK_BYTES: usize = 64 << 10;

/// The files held of one user.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    lane: Arc<Lane>,
    registry: &'static Registry,
    kind: Kind,
}

/// See [`crate::deferred::may_have_common`].
pub(crate) fn may_have_common(users: [u32; 2]) -> bool {
    Registry::own().may_have_common(users)
}

/// From now on this process closes everything at once, as it may start no threads. Only programs of its own user may
/// be able to reach it. A close that waits is interrupted on the calling thread, unless a file system makes it wait.
pub fn forgo() {
    INTERRUPTER.with(|own| {
        own.get_or_init(Interrupter::here);
    });
    Registry::own().is_forgone.store(true, Ordering::Relaxed);
}

thread_local! {
    /// Set in a thread that closes everything itself.
    static INTERRUPTER: OnceCell<Interrupter> = const { OnceCell::new() };
}

/// Closes the file in the calling thread.
fn close_here(file: Held) {
    INTERRUPTER.with(|own| match own.get() {
        Some(interrupter) => interrupter.bound(|| drop(file)),
        None => drop(file),
    });
}

/// Is there room for one more socket of any user? Each has to be closed later.
pub(crate) fn has_room() -> bool {
    let registry = Registry::own();
    registry.sockets.load(Ordering::Relaxed) < registry.places_max
}

/// Is there a user whose connections are refused because many of its sockets wait?
pub(crate) fn is_pressed() -> bool {
    let registry = Registry::own();
    attend_all(registry);
    registry.users_refused.load(Ordering::Relaxed) > 0 || registry.is_full(Kind::Sockets(0))
}

/// Starts the threads that could not be started before, as far as there is room for them by now.
fn attend_all(registry: &'static Registry) {
    if registry.owner != std::process::id() || !registry.has_unattended.swap(false, Ordering::Relaxed) {
        return;
    }
    let lanes: Vec<(Kind, Arc<Lane>)> =
        lock(&registry.lanes).iter().map(|(kind, lane)| (*kind, Arc::clone(lane))).collect();
    for (kind, lane) in lanes {
        Account { lane, registry, kind }.is_attended();
    }
}

impl Account {
    /// The account of the descriptors that this user has sent.
    pub fn of(user: u32) -> Self {
        Self::in_registry(Registry::own(), Kind::Files(user))
    }

    /// The account of the connections with this user's programs.
    pub fn of_sockets(user: u32) -> Self {
        Self::in_registry(Registry::own(), Kind::Sockets(user))
    }

    /// The account of the files that programs of these two users have had in common.
    pub fn of_common(users: [u32; 2]) -> Self {
        Self::in_registry(Registry::own(), Kind::common(users))
    }

    fn in_registry(registry: &'static Registry, kind: Kind) -> Self {
        let mut lanes = lock(&registry.lanes);
        if lanes.len() > LANES_MAX {
            // Unused lanes go: no account refers to them, and they hold nothing.
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1 || lane.held.load(Ordering::Relaxed) > 0);
        }
        let lane = lanes.entry(kind).or_insert_with(|| Arc::new(Lane::new(kind.is_reserved())));
        Self { lane: Arc::clone(lane), registry, kind }
    }

    /// Counts one more held file.
    pub fn hold(&self) {
        let before = self.lane.held.fetch_add(1, Ordering::Relaxed);
        self.registry.count(&self.lane, self.kind, [before, before + 1]);
    }

    /// Counts one held file less.
    pub fn release(&self) {
        let before = self.lane.held.fetch_sub(1, Ordering::Relaxed);
        self.registry.count(&self.lane, self.kind, [before, before - 1]);
    }

    /// Do so many sockets of this user wait that its connections are refused?
    pub fn refuses_connections(&self) -> bool {
        let held = self.lane.held.load(Ordering::Relaxed);
        held >= self.share() || self.is_kept_out(held)
    }

    /// Are no more descriptors taken from this user?
    pub fn is_over(&self) -> bool {
        let is_attended = self.is_attended();
        let held = self.lane.held.load(Ordering::Relaxed);
        if held + DESCRIPTORS_MAX > self.share() || self.is_kept_out(held) {
            return true;
        }
        !is_attended && !self.lane.is_reserved && !self.registry.may_start(self.kind)
    }

    /// Is there no place for this user? Either all places are taken and the user holds something already, or other
    /// users have taken all places twice.
    fn is_kept_out(&self, held: usize) -> bool {
        let taken = self.registry.places[self.kind.pool()].load(Ordering::Relaxed);
        let most = self.registry.places_max;
        !self.lane.is_reserved && (held > 0 && taken >= most || taken >= 2 * most)
    }

    fn share(&self) -> usize {
        self.registry.share(&self.lane, self.kind)
    }

    /// Does a thread serve the lane? If files wait because a thread could not be started, this starts one. Nothing
    /// else would, as no more files are taken then.
    fn is_attended(&self) -> bool {
        // Nothing waits, or this is a forked child, in which a lock may stay held forever.
        if self.lane.held.load(Ordering::Relaxed) == 0 || self.registry.owner != std::process::id() {
            return false;
        }
        let mut waiting = lock(&self.lane.waiting);
        if !waiting.files.is_empty() && !waiting.is_attended {
            waiting.is_attended = self.start_thread();
        }
        waiting.is_attended
    }

    /// Leaves `file` to the thread. The account has counted it before.
    pub fn close(&self, file: impl Into<Held>) {
        let file = file.into();
        let is_forked = self.registry.owner != std::process::id();
        // A forked child's copy is not the last one, or concerns the child alone.
        if is_forked {
            drop(file);
            return self.release();
        }
        if self.registry.is_forgone.load(Ordering::Relaxed) {
            close_here(file);
            return self.release();
        }
        let mut waiting = lock(&self.lane.waiting);
        waiting.files.push_back(file);
        if !waiting.is_attended {
            // Without a thread the file stays on the account until `is_attended` can start one.
            waiting.is_attended = self.start_thread();
        }
        drop(waiting);
        self.lane.news.notify_one();
    }

    fn start_thread(&self) -> bool {
        let (registry, kind) = (self.registry, self.kind);
        let may_start = self.lane.is_reserved || lock(&registry.threads)[kind.pool()].take(kind.user());
        let account = self.clone();
        let builder = std::thread::Builder::new().name("bywire-closer".to_owned()).stack_size(STACK_BYTES);
        let is_started = may_start && without_signals(|| builder.spawn(move || account.attend())).is_ok();
        if may_start && !is_started {
            self.give_back_thread();
        }
        if !is_started {
            registry.has_unattended.store(true, Ordering::Relaxed);
        }
        is_started
    }

    /// The body of the thread.
    fn attend(&self) {
        let interrupter = Interrupter::here();
        while let Some(file) = self.lane.next() {
            interrupter.bound(|| drop(file));
            self.release();
        }
        self.give_back_thread();
    }

    fn give_back_thread(&self) {
        if !self.lane.is_reserved {
            lock(&self.registry.threads)[self.kind.pool()].give_back(self.kind.user());
        }
    }
}

/// Does `work` with every signal blocked. A thread started by it inherits that: the program's signals are for its own
/// threads.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the sets live here, and zeroes are a valid value of them. This thread's mask is restored afterwards.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        done
    }
}
