//! Notice of memory that nobody has any more: neither mapped nor by a descriptor, in no process and in no socket's queue.
//!
//! The kernel tells whoever watches a memory file of the moment when it goes. A watch needs no descriptor of the file,
//! and keeps none of its memory.

use core::mem::MaybeUninit;
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::inotify;
use rustix::io::Errno;

/// Memory files that are watched.
#[derive(Debug)]
pub struct Releases {
    queue: OwnedFd,
}

/// What a look at [`Releases`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Every release since the last look was told.
    All,
    /// The kernel's queue was full: [`Releases::watched`] tells what is still there.
    Some,
}

impl Releases {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// What the kernel said: [`Errno::MFILE`] when descriptors, or the user's inotify instances, have run out.
    pub fn new() -> Result<Self, Errno> {
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map(|queue| Self { queue })
    }

    /// Watches a memory file; the number stands for it until its release was told.
    ///
    /// # Errors
    /// What the kernel said: [`Errno::NOSPC`] when the user has as many watches as it may have, [`Errno::NOENT`]
    /// without `/proc`.
    pub fn watch(&self, file: &impl AsFd) -> Result<i32, Errno> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        inotify::add_watch(&self.queue, path, inotify::WatchFlags::DELETE_SELF)
    }

    /// Tells of each watched file that has gone since the last look.
    pub fn look(&self, mut gone: impl FnMut(i32)) -> Heard {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        let mut heard = Heard::All;
        while let Ok(event) = reader.next() {
            if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                heard = Heard::Some;
            } else if event.events().contains(inotify::ReadFlags::IGNORED) {
                gone(event.wd());
            }
        }
        heard
    }

    /// The numbers of the watched files that are still there, or whose release [`Self::look`] has yet to tell.
    ///
    /// # Errors
    /// What the kernel said: [`Errno::MFILE`] when descriptors have run out, [`Errno::NOENT`] without `/proc`.
    pub fn watched(&self) -> Result<HashSet<i32>, Errno> {
        let found = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.queue.as_raw_fd()));
        let text = found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let number = |line: &str| {
            let digits = line.strip_prefix("inotify wd:")?.split(' ').next()?;
            i32::from_str_radix(digits, 16).ok()
        };
        Ok(text.lines().filter_map(number).collect())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::memory::Mapping;

    fn told(releases: &Releases) -> Vec<i32> {
        let mut numbers = Vec::new();
        assert_eq!(releases.look(|number| numbers.push(number)), Heard::All);
        numbers
    }

    #[test]
    fn memory_is_released_when_the_last_mapping_and_the_last_descriptor_have_gone() {
        let releases = Releases::new().expect("inotify");
        let (mapping, file) = Mapping::create("bywire-test", 8192).expect("memory");
        let number = releases.watch(&file).expect("a watch");
        let reader = Mapping::accept(&file, 8192).expect("sealed");
        // One that can be used for nothing, and keeps the memory all the same.
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
        assert!(releases.watched().expect("fdinfo").is_empty());
        assert_eq!(told(&releases), []);
    }

    #[test]
    fn what_is_still_there_can_be_asked_for_and_stays_watched() {
        let releases = Releases::new().expect("inotify");
        let mut files = Vec::new();
        // More than one digit, in whatever base.
        for _ in 0..40 {
            let file = Mapping::create("bywire-test", 4096).expect("memory").1;
            files.push((releases.watch(&file).expect("a watch"), file));
        }
        files.drain(..10).for_each(drop);
        let numbers: HashSet<i32> = files.iter().map(|(number, _)| *number).collect();
        assert_eq!(releases.watched().expect("fdinfo"), numbers);
        assert_eq!(told(&releases).len(), 10);
        let (last, file) = files.pop().expect("the last one");
        drop(file);
        assert_eq!(told(&releases), [last], "what was asked for is watched all the same");
    }
}
