//! Programs at the other ends of connections: their doorbells, and the pages that say whether they sleep.

use core::ptr;
use core::sync::atomic::Ordering;

use bywire_pairing::protocol::PAGE_BYTES;
use bywire_ring::hints;
use bywire_ring::owner;
use bywire_ring::program_doorbell as rule;
use bywire_ring::stream::Window;

use crate::memory::arena::{self, Counts, PEERS, Peer};
use crate::memory::{descriptors, segment};
use crate::os::real;
use crate::wakeup::doorbell;

/// Wakes the program at the other end, if it sleeps. What the program will find was published before, followed by a
/// fence.
pub fn ring(index: u32) {
    let Some(peer) = peer(index) else { return };
    let base = peer.page.load(Ordering::Relaxed);
    if base.is_null() {
        return;
    }
    // SAFETY: `add` has mapped this many bytes there, for as long as the peer is referred to.
    let page = unsafe { Window::new(base.cast(), PAGE_BYTES) };
    // Relaxed, as below: a reader of an older value rings once more without need.
    let Some(rung) = rule::must_ring(&page, peer.rung.load(Ordering::Relaxed)) else { return };
    let bell = peer.doorbell.load(Ordering::Relaxed);
    if peer.other_user.load(Ordering::Relaxed) == 0 {
        doorbell::ring_eventfd(bell);
    } else {
        doorbell::set_timer(bell, 1);
    }
    peer.rung.store(rung, Ordering::Relaxed);
}

/// Returns whether the engine at the other end has died, or has ended: its page says so.
pub fn has_gone(index: u32) -> bool {
    let Some(peer) = peer(index) else { return true };
    let base = peer.page.load(Ordering::Relaxed);
    // SAFETY: `add` has mapped this many bytes there, for as long as the peer is referred to.
    base.is_null() || owner::has_gone(&unsafe { Window::new(base.cast(), PAGE_BYTES) })
}

fn peer(index: u32) -> Option<&'static Peer> {
    if index == 0 {
        return None;
    }
    arena::private()?.peers.get(index as usize)
}

/// Starts to use a program at the other end, and takes ownership of its doorbell and page. `other_user` is as in
/// [`Peer`].
pub fn add(number: u32, other_user: u64, bell: i32, page: i32) -> Option<u32> {
    let _held = doorbell::ADOPTING.hold();
    let peers = &arena::private()?.peers;
    let known = |peer: &Peer| {
        peer.references.load(Ordering::Relaxed) > 0 && peer.number.load(Ordering::Relaxed) == number
    };
    let index = peers.iter().skip(1).position(known);
    if let Some(index) = index {
        close_both(bell, page);
        peers.get(index + 1)?.references.fetch_add(1, Ordering::Relaxed);
        return Some(index as u32 + 1);
    }
    let index = free_place(peers, other_user).unwrap_or(PEERS);
    let Some(peer) = peers.get(index) else {
        close_both(bell, page);
        return None;
    };
    let is_sound = match other_user {
        0 => doorbell::is_marked(bell) && doorbell::is_eventfd(bell),
        _ => doorbell::is_timer(bell),
    };
    let address = if is_sound { segment::accept_sealed(page, PAGE_BYTES) } else { ptr::null_mut() };
    let address = if address.is_null() { address } else { map_in_place(peer, address) };
    if address.is_null() {
        close_both(bell, page);
        return None;
    }
    // SAFETY: this process owns it.
    unsafe { real::close(page) };
    peer.number.store(number, Ordering::Relaxed);
    peer.other_user.store(other_user, Ordering::Relaxed);
    peer.doorbell.store(doorbell::hide_high(bell), Ordering::Relaxed);
    peer.page.store(address.cast(), Ordering::Relaxed);
    peer.rung.store(0, Ordering::Relaxed);
    peer.references.store(1, Ordering::Relaxed);
    if let Some(own) = arena::private() {
        // SAFETY: mapped above.
        let page = unsafe { Window::new(address, PAGE_BYTES) };
        own.counts.get(index).iter().for_each(|counts| begin_counts(peer, counts, &page));
        own.peers_end.fetch_max(index as u32 + 1, Ordering::Relaxed);
    }
    Some(index as u32)
}

/// Notes what a program has counted so far, which is no news.
fn begin_counts(peer: &Peer, counts: &Counts, page: &Window) {
    peer.sum.store(hints::sum(page), Ordering::Relaxed);
    for (number, known) in counts.iter().enumerate() {
        known.store(hints::counted(page, number), Ordering::Relaxed);
    }
}

/// Moves a page to the place in the address space that its record has had before, if it has one. Returns where the page is.
///
/// A thread that looks at all records may read there at any moment, so this space is never given back.
fn map_in_place(peer: &Peer, page: *mut u8) -> *mut u8 {
    let place = peer.place.load(Ordering::Relaxed);
    if place.is_null() {
        peer.place.store(page.cast(), Ordering::Relaxed);
        return page;
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the page was mapped just now, and the place holds what `vacate` has left there.
    let moved = unsafe { libc::mremap(page.cast(), PAGE_BYTES, PAGE_BYTES, flags, place) };
    if moved == libc::MAP_FAILED {
        // SAFETY: the caller has mapped it just now, and nobody else knows it.
        unsafe { libc::munmap(page.cast(), PAGE_BYTES) };
        abandon(peer);
        return ptr::null_mut();
    }
    moved.cast()
}

/// A record whose place the kernel may have emptied is never used again.
fn abandon(peer: &Peer) {
    peer.number.store(u32::MAX, Ordering::Relaxed);
    peer.references.fetch_add(1, Ordering::Relaxed);
}

/// Replaces a page to which no connection refers any more by zeros. Returns whether they are there.
fn vacate(page: *mut u8) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: mapped by `add` with this length, in a place that is the record's own.
    let put = unsafe { libc::mmap(page.cast(), PAGE_BYTES, libc::PROT_READ, flags, -1, 0) };
    put != libc::MAP_FAILED
}

/// Visits the pages of all programs at the other ends of connections.
pub fn each_page(mut visit: impl FnMut(&'static Peer, &'static Counts, &Window)) {
    let Some(own) = arena::private() else { return };
    let end = own.peers_end.load(Ordering::Relaxed) as usize;
    for (peer, counts) in own.peers.iter().zip(&own.counts).take(end).skip(1) {
        let page = peer.page.load(Ordering::Relaxed);
        if !page.is_null() {
            // SAFETY: a page that `add` has mapped, or the zeros that `vacate` has put there since.
            visit(peer, counts, &unsafe { Window::new(page.cast(), PAGE_BYTES) });
        }
    }
}

/// Returns whether this program counts its news for quiet connections: it has a page.
pub fn has_page(index: u32) -> bool {
    peer(index).is_some_and(|peer| !peer.page.load(Ordering::Relaxed).is_null())
}

/// A place for one more program. Another user has at most a third of what it leaves free, however many programs it
/// starts.
fn free_place(peers: &[Peer], other_user: u64) -> Option<usize> {
    const PART: usize = 3;
    let (mut first, mut free, mut taken) = (None, 0, 0);
    for (index, peer) in peers.iter().enumerate().skip(1) {
        if peer.references.load(Ordering::Relaxed) == 0 {
            first = first.or(Some(index));
            free += 1;
        } else if peer.other_user.load(Ordering::Relaxed) == other_user {
            taken += 1;
        }
    }
    first.filter(|_| other_user == 0 || taken < free / PART)
}

fn close_both(bell: i32, page: i32) {
    // SAFETY: received for this process alone.
    unsafe {
        real::close(bell);
        real::close(page);
    }
}

/// Ends the use by one connection to that program.
pub fn release(index: u32) {
    let Some(peer) = peer(index) else { return };
    let held = doorbell::ADOPTING.hold();
    if peer.references.load(Ordering::Relaxed) == 1 {
        let bell = peer.doorbell.swap(-1, Ordering::Relaxed);
        let is_ours = match peer.other_user.load(Ordering::Relaxed) {
            0 => doorbell::is_marked(bell),
            _ => doorbell::is_timer(bell),
        };
        if is_ours && descriptors::kind(bell) == descriptors::DescriptorKind::Hidden {
            doorbell::discard(bell);
        }
        let page = peer.page.swap(ptr::null_mut(), Ordering::Relaxed);
        if !page.is_null() && !vacate(page.cast()) {
            abandon(peer);
        }
    }
    peer.references.fetch_sub(1, Ordering::Relaxed);
    drop(held);
    doorbell::leave_inherited();
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

    use super::*;

    #[test]
    fn the_programs_of_one_other_user_leave_places_to_others() {
        let peer = || Peer {
            number: AtomicU32::new(0),
            references: AtomicU32::new(0),
            doorbell: AtomicI32::new(-1),
            other_user: AtomicU64::new(0),
            page: AtomicPtr::new(ptr::null_mut()),
            rung: AtomicU64::new(0),
            place: AtomicPtr::new(ptr::null_mut()),
            sum: AtomicU64::new(0),
        };
        let peers: Vec<Peer> = (0..PEERS).map(|_| peer()).collect();
        let take_all = |user: u64| {
            let taken = std::iter::from_fn(|| free_place(&peers, user)).map(|place| {
                assert!(place > 0, "the first one is never used");
                peers[place].references.store(1, Ordering::Relaxed);
                peers[place].other_user.store(user, Ordering::Relaxed);
            });
            taken.count()
        };
        let taken = [7, 8, 9].map(take_all);
        assert_eq!(taken, [512, 384, 288]);
        assert!((10..23).all(|user| take_all(user) > 0), "as many users as a program has connections with");
        // The own user has no bound.
        assert!(take_all(0) > 15);
        assert_eq!(free_place(&peers, 0), None);
    }
}
