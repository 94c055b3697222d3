//! Notice that memory is released: no process maps it or has a descriptor of it, and none is in a socket's queue.
//!
//! The kernel reports the end of a memory file to a process that watches it. A watch needs no descriptor of the file,
//! and keeps none of its memory. A user may have few inotify instances (128 by default), so a process has one for
//! all.

use core::mem::MaybeUninit;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::inotify;
use rustix::io::Errno;

/// Memory files that are watched for one part of a program. Dropping this ends the watches.
#[derive(Debug)]
pub struct Releases {
    instance: Arc<Instance>,
    /// The number of this part in the instance.
    part: u64,
}

/// The instance that all parts of a process share. A forked child makes its own, and leaves the parent's reports to
/// the parent.
#[derive(Debug)]
struct Instance {
    owner: u32,
    queue: OwnedFd,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    next: u64,
    /// The parts that watch a file, by the number of the watch. The kernel has one number for each file.
    watchers: HashMap<i32, Vec<u64>>,
    /// The releases that have not been reported to each part yet.
    gone: HashMap<u64, Vec<i32>>,
    /// The kernel's queue was full, and the lost reports have not been made up for yet.
    has_missed: bool,
}

/// Holds the instance of a process. It is leaked, as a forked child may find its lock held forever.
#[derive(Debug)]
struct ProcessInstance {
    owner: u32,
    instance: Mutex<Weak<Instance>>,
}

static PROCESS_INSTANCE: AtomicPtr<ProcessInstance> = AtomicPtr::new(core::ptr::null_mut());

impl Releases {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The error of the kernel: [`Errno::MFILE`] if descriptors, or the user's inotify instances, have run out.
    pub fn new() -> Result<Self, Errno> {
        let instance = Instance::own()?;
        let part = {
            let mut parts = lock(&instance.parts);
            parts.next += 1;
            let part = parts.next;
            parts.gone.insert(part, Vec::new());
            part
        };
        Ok(Self { instance, part })
    }

    /// Watches a memory file. The number stands for it until its release has been reported.
    ///
    /// # Errors
    /// The error of the kernel: [`Errno::NOSPC`] if the user has all the watches that it may have, [`Errno::NOENT`]
    /// without `/proc`.
    pub fn watch(&self, file: &impl AsFd) -> Result<i32, Errno> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        // Under the lock, so that no thread takes the number's release off the queue before its watcher is known.
        let mut parts = lock(&self.instance.parts);
        let number = inotify::add_watch(&self.instance.queue, path, inotify::WatchFlags::DELETE_SELF)?;
        let watchers = parts.watchers.entry(number).or_default();
        if !watchers.contains(&self.part) {
            watchers.push(self.part);
        }
        Ok(number)
    }

    /// Calls `gone` for each watched file that has gone since the last look.
    pub fn look(&self, gone: impl FnMut(i32)) {
        let found = {
            let mut parts = lock(&self.instance.parts);
            parts.hear(&self.instance.queue);
            parts.gone.get_mut(&self.part).map(std::mem::take)
        };
        found.unwrap_or_default().into_iter().for_each(gone);
    }
}

impl Drop for Releases {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held the lock at the fork.
        if self.instance.owner != std::process::id() {
            return;
        }
        let mut parts = lock(&self.instance.parts);
        parts.gone.remove(&self.part);
        let part = self.part;
        let queue = &self.instance.queue;
        parts.watchers.retain(|number, watchers| {
            watchers.retain(|watcher| *watcher != part);
            if watchers.is_empty() {
                // A watch that has ended by itself is fine. The kernel's report of the removal has no watcher.
                let _ = inotify::remove_watch(queue, *number);
            }
            !watchers.is_empty()
        });
    }
}

impl Instance {
    /// This process's instance, made if there is none.
    fn own() -> Result<Arc<Self>, Errno> {
        let mut known = lock(&ProcessInstance::own().instance);
        if let Some(instance) = known.upgrade() {
            return Ok(instance);
        }
        let queue = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let instance = Arc::new(Self { owner: std::process::id(), queue, parts: Mutex::default() });
        *known = Arc::downgrade(&instance);
        Ok(instance)
    }
}

impl ProcessInstance {
    /// The instance of this process.
    fn own() -> &'static Self {
        let owner = std::process::id();
        loop {
            // Acquire: pairs with the release of the exchange below, in the thread that made it.
            let found = PROCESS_INSTANCE.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or points to a box that this function has leaked. The box is never freed,
            // and changes only under its lock.
            if let Some(known) = unsafe { found.as_ref() }
                && known.owner == owner
            {
                return known;
            }
            let own = Box::into_raw(Box::new(Self { owner, instance: Mutex::default() }));
            // Release: pairs with the acquire load above. If another thread was first, its one is as good.
            if PROCESS_INSTANCE.compare_exchange(found, own, Ordering::Release, Ordering::Relaxed).is_err() {
                // SAFETY: the pointer comes from `into_raw` above, and the failed exchange has published it to no
                // other thread.
                drop(unsafe { Box::from_raw(own) });
            }
        }
    }
}

impl Parts {
    /// Takes the kernel's reports off the queue, and keeps them for the parts that watch the files.
    fn hear(&mut self, queue: &OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(queue, &mut buffer);
        while let Ok(event) = reader.next() {
            if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                self.has_missed = true;
            } else if event.events().contains(inotify::ReadFlags::IGNORED) {
                self.release(event.wd());
            }
        }
        // If the list cannot be read, the next call tries again.
        if self.has_missed
            && let Ok(watched) = watched(queue)
        {
            self.has_missed = false;
            let gone: Vec<i32> =
                self.watchers.keys().copied().filter(|number| !watched.contains(number)).collect();
            gone.into_iter().for_each(|number| self.release(number));
        }
    }

    fn release(&mut self, number: i32) {
        for part in self.watchers.remove(&number).unwrap_or_default() {
            if let Some(gone) = self.gone.get_mut(&part) {
                gone.push(number);
            }
        }
    }
}

/// The numbers of the watched files that still exist, or whose release is still in the queue. Reading them ends no
/// watch.
fn watched(queue: &OwnedFd) -> Result<HashSet<i32>, Errno> {
    let found = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", queue.as_raw_fd()));
    let text = found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let number = |line: &str| {
        let digits = line.strip_prefix("inotify wd:")?.split(' ').next()?;
        i32::from_str_radix(digits, 16).ok()
    };
    Ok(text.lines().filter_map(number).collect())
}

/// No code that runs under these locks can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::memory::Mapping;

    fn told(releases: &Releases) -> Vec<i32> {
        let mut numbers = Vec::new();
        releases.look(|number| numbers.push(number));
        numbers
    }

    fn watched_here(releases: &Releases) -> HashSet<i32> {
        watched(&releases.instance.queue).expect("fdinfo")
    }

    #[test]
    fn memory_is_released_when_the_last_mapping_and_the_last_descriptor_have_gone() {
        let releases = Releases::new().expect("inotify");
        let (mapping, file) = Mapping::create("bywire-test", 8192).expect("memory");
        let number = releases.watch(&file).expect("a watch");
        let reader = Mapping::accept(&file, 8192).expect("sealed");
        // This descriptor can be used for nothing, but keeps the memory.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mere_path = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("open");
        drop(file);
        assert_eq!(told(&releases), []);
        drop(mapping);
        assert_eq!(told(&releases), []);
        drop(reader);
        assert_eq!(told(&releases), []);
        drop(mere_path);
        assert_eq!(told(&releases), [number]);
        assert!(!watched_here(&releases).contains(&number));
        assert_eq!(told(&releases), []);
    }

    #[test]
    fn existing_memory_can_be_listed_and_stays_watched() {
        let releases = Releases::new().expect("inotify");
        let mut files = Vec::new();
        // Enough for numbers of more than one digit, in decimal and in hexadecimal.
        for _ in 0..40 {
            let file = Mapping::create("bywire-test", 4096).expect("memory").1;
            files.push((releases.watch(&file).expect("a watch"), file));
        }
        let gone: HashSet<i32> = files.drain(..10).map(|(number, _)| number).collect();
        let there: HashSet<i32> = files.iter().map(|(number, _)| *number).collect();
        let watched = watched_here(&releases);
        assert!(watched.is_superset(&there) && watched.is_disjoint(&gone));
        // As after a full queue.
        lock(&releases.instance.parts).has_missed = true;
        assert_eq!(told(&releases).into_iter().collect::<HashSet<_>>(), gone, "each once");
        let (last, file) = files.pop().expect("the last one");
        drop(file);
        assert_eq!(told(&releases), [last], "what was asked for is watched all the same");
    }

    #[test]
    fn all_watchers_of_a_process_share_one_inotify_instance() {
        let text = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").expect("inotify");
        let instances: usize = text.trim().parse().expect("a number");
        if instances > 10_000 {
            println!("not run: this user may have {instances} instances (fs.inotify.max_user_instances)");
            return;
        }
        let parts: Vec<_> = (0..=instances).map(|_| Releases::new().expect("one more")).collect();
        // Each part is told of its own files, and both parts of the file that they share.
        let [one, other] = [&parts[0], &parts[1]];
        let [own, shared] = [(); 2].map(|()| Mapping::create("bywire-test", 4096).expect("memory").1);
        let number = one.watch(&own).expect("a watch");
        let twice = [one, other].map(|part| part.watch(&shared).expect("a watch"));
        drop((own, shared));
        assert_eq!(told(other), [twice[1]]);
        assert_eq!(told(one), [number, twice[0]]);
        assert_eq!(told(&parts[2]), []);
    }

    #[test]
    fn a_dropped_watcher_removes_only_its_own_watches() {
        let [one, other] = [(); 2].map(|()| Releases::new().expect("inotify"));
        let [own, shared] = [(); 2].map(|()| Mapping::create("bywire-test", 4096).expect("memory").1);
        let number = one.watch(&own).expect("a watch");
        let twice = [&one, &other].map(|part| part.watch(&shared).expect("a watch"));
        drop(one);
        let left = watched_here(&other);
        assert!(!left.contains(&number) && left.contains(&twice[1]));
        drop(shared);
        assert_eq!(told(&other), [twice[1]]);
    }
}
