//! Memory that two users keep of each other after their connections have ended.
//!
//! Each end of a carried connection maps the other's segment. A process that goes on mapping it, or keeps a
//! descriptor, keeps its memory. The cost falls on the process that made it, or, for pages that were never written,
//! on the process that read them. Neither can take the memory back. So the connections between two users are counted
//! until the kernel reports that no process has their memory any more.

use std::collections::HashMap;
use std::os::fd::AsFd;

use bywire_sys::Errno;
use bywire_sys::deferred::Ticket;
use bywire_sys::release::Releases;

/// Ended connections of two users that may keep memory, beyond the number of their live connections.
const KEPT_MAX: usize = 16;

/// An end: its program, and the token that the program gave it.
pub type Name = (u64, u64);

/// The connections between programs of different users.
#[derive(Debug, Default)]
pub struct KeptMemory {
    /// Made with the first connection.
    releases: Option<Releases>,
    connections: HashMap<u64, Connection>,
    next: u64,
    /// The connection of each memory file, by the number of the file's watch.
    files: HashMap<i32, u64>,
    /// The connection of each end, until one of its ends is over.
    ends: HashMap<Name, u64>,
    users: HashMap<[u32; 2], Count>,
}

#[derive(Debug)]
struct Connection {
    users: [u32; 2],
    ends: [Name; 2],
    is_over: bool,
    files: usize,
    /// Given back once the connection is over and its memory has gone.
    _places: Vec<Ticket>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    live: usize,
    kept: usize,
}

impl KeptMemory {
    /// May two users have one more connection?
    pub fn may_begin(&mut self, users: [u32; 2]) -> bool {
        self.hear();
        let count = self.users.get(&sorted(users)).copied().unwrap_or_default();
        count.kept < KEPT_MAX + count.live
    }

    /// Counts a new connection with the memory of both ends, which takes these places.
    ///
    /// # Errors
    /// The error of the kernel if it cannot watch the memory. Then the connection must not begin.
    pub fn begin(
        &mut self,
        users: [u32; 2],
        ends: [Name; 2],
        places: Vec<Ticket>,
        files: impl IntoIterator<Item: AsFd>,
    ) -> Result<(), Errno> {
        let releases = match self.releases.take() {
            Some(releases) => releases,
            None => Releases::new()?,
        };
        let releases = self.releases.insert(releases);
        let id = self.next;
        let numbers = files.into_iter().map(|file| releases.watch(&file)).collect::<Result<Vec<_>, _>>()?;
        self.next += 1;
        let users = sorted(users);
        let mut connection = Connection { users, ends, is_over: false, files: 0, _places: places };
        for number in numbers {
            // Memory that is watched already counts for the connection that came first.
            if let std::collections::hash_map::Entry::Vacant(place) = self.files.entry(number) {
                place.insert(id);
                connection.files += 1;
            }
        }
        self.connections.insert(id, connection);
        self.ends.extend(ends.map(|end| (end, id)));
        self.users.entry(users).or_default().live += 1;
        Ok(())
    }

    /// Ends the connection of an end that is over.
    pub fn end(&mut self, end: Name) {
        if let Some(id) = self.ends.get(&end).copied() {
            self.finish(id);
        }
        self.hear();
    }

    fn finish(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_over = true;
        for end in connection.ends {
            self.ends.remove(&end);
        }
        let (users, is_kept) = (connection.users, connection.files > 0);
        self.count(users, |count| {
            count.live = count.live.saturating_sub(1);
            count.kept += usize::from(is_kept);
        });
        if !is_kept {
            self.connections.remove(&id);
        }
    }

    /// Removes the memory that has been released.
    fn hear(&mut self) {
        let Some(releases) = self.releases.take() else { return };
        releases.look(|number| self.release(number));
        self.releases = Some(releases);
    }

    fn release(&mut self, number: i32) {
        let Some(id) = self.files.remove(&number) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.files = connection.files.saturating_sub(1);
        if connection.files == 0 && connection.is_over {
            let users = connection.users;
            self.connections.remove(&id);
            self.count(users, |count| count.kept = count.kept.saturating_sub(1));
        }
    }

    fn count(&mut self, users: [u32; 2], change: impl FnOnce(&mut Count)) {
        let count = self.users.entry(users).or_default();
        change(count);
        if (count.live, count.kept) == (0, 0) {
            self.users.remove(&users);
        }
    }
}

fn sorted([first, second]: [u32; 2]) -> [u32; 2] {
    [first.min(second), first.max(second)]
}

#[cfg(test)]
mod tests {
    use bywire_sys::memory::Mapping;

    use std::os::fd::OwnedFd;

    use super::*;

    const USERS: [u32; 2] = [7, 3];

    fn memory() -> OwnedFd {
        Mapping::create("bywire-test", 4096).expect("memory").1
    }

    fn counts_nothing(kept_memory: &KeptMemory) -> bool {
        kept_memory.users.is_empty() && kept_memory.connections.is_empty() && kept_memory.files.is_empty()
    }

    #[test]
    fn kept_memory_counts_until_it_is_released() {
        let mut kept_memory = KeptMemory::default();
        let mut kept = Vec::new();
        while kept_memory.may_begin(USERS) {
            let (ours, theirs) = (memory(), memory());
            let number = kept.len() as u64;
            kept_memory
                .begin(USERS, [(1, number), (2, number)], Vec::new(), [&ours, &theirs])
                .expect("watched");
            // Both ends report the end, in any order.
            kept_memory.end((1 + number % 2, number));
            kept_memory.end((2 - number % 2, number));
            kept.push(theirs);
        }
        assert_eq!(kept.len(), KEPT_MAX);
        assert!(!kept_memory.may_begin([3, 7]), "whoever asks");
        assert!(kept_memory.may_begin([3, 8]), "others are not concerned");
        kept.pop();
        assert!(kept_memory.may_begin(USERS));
        drop(kept);
        assert!(kept_memory.may_begin(USERS));
        assert!(counts_nothing(&kept_memory));
        assert!(kept_memory.ends.is_empty());
    }

    #[test]
    fn connections_that_go_on_are_not_kept() {
        let mut kept_memory = KeptMemory::default();
        let files: Vec<_> = (0..2 * KEPT_MAX as u64).map(|number| (number, [memory(), memory()])).collect();
        for (number, [ours, theirs]) in &files {
            assert!(kept_memory.may_begin(USERS));
            kept_memory
                .begin(USERS, [(1, *number), (2, *number)], Vec::new(), [ours, theirs])
                .expect("watched");
        }
        assert_eq!(kept_memory.users[&[3, 7]].live, files.len());
        // The memory is released before the ends are reported.
        drop(files);
        assert!(kept_memory.may_begin(USERS));
        (0..2 * KEPT_MAX as u64).for_each(|number| kept_memory.end((1, number)));
        assert!(counts_nothing(&kept_memory));
    }

    #[test]
    fn memory_offered_twice_is_counted_once() {
        let mut kept_memory = KeptMemory::default();
        let one = memory();
        kept_memory.begin(USERS, [(1, 1), (2, 1)], Vec::new(), [&one, &one]).expect("watched");
        kept_memory.begin(USERS, [(1, 2), (2, 2)], Vec::new(), [&one, &one]).expect("watched");
        kept_memory.end((1, 1));
        kept_memory.end((1, 2));
        drop(one);
        assert!(kept_memory.may_begin(USERS));
        assert!(counts_nothing(&kept_memory));
    }

    #[test]
    fn memory_is_counted_correctly_after_lost_notices() {
        let events: u64 = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .expect("a number");
        if events > 100_000 {
            println!("not run: the kernel would queue {events} notices (fs.inotify.max_queued_events)");
            return;
        }
        let mut kept_memory = KeptMemory::default();
        let kept: Vec<_> = (0..KEPT_MAX as u64).map(|number| (number, [memory(), memory()])).collect();
        for (number, [ours, theirs]) in &kept {
            kept_memory
                .begin(USERS, [(1, *number), (2, *number)], Vec::new(), [ours, theirs])
                .expect("watched");
            kept_memory.end((1, *number));
        }
        // The programs of two other users are killed at once: their memory goes before the service looks.
        let others = [8, 9];
        for number in 0..events {
            let file = memory();
            kept_memory
                .begin(others, [(3, number), (4, number)], Vec::new(), [&file, &file])
                .expect("watched");
        }
        (0..events).for_each(|number| kept_memory.end((3, number)));
        assert!(kept_memory.may_begin(others), "what went untold has gone");
        assert_eq!(kept_memory.files.len(), 2 * KEPT_MAX);
        // The second call looks again.
        assert!(!kept_memory.may_begin(USERS) && !kept_memory.may_begin(USERS), "what is there is there");
        drop(kept);
        assert!(kept_memory.may_begin(USERS));
        assert!(counts_nothing(&kept_memory));
    }
}
