//! The cores to measure on, and pinning threads to them.

use std::fs;
use std::io;

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to `core`. Fails with `EINVAL` if the core does not exist or may not be used.
pub fn pin_to(core: u32) -> io::Result<()> {
    let index = core as usize;
    if index >= CpuSet::MAX_CPU {
        return Err(io::Error::from(rustix::io::Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(index);
    Ok(sched_setaffinity(None, &set)?)
}

/// Pins the calling thread to its core, if it has one. Fails with the core's number.
pub(crate) fn pin(core: Option<u32>) -> anyhow::Result<()> {
    core.map_or(Ok(()), |core| pin_to(core).with_context(|| format!("cannot run on core {core}")))
}

/// The cores that the calling thread may use, ascending. Never empty on a running system.
pub fn allowed_cores() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).map(|core| core as u32).collect()
}

/// Two allowed cores for source and target: two physical cores if there are two, otherwise two hardware threads of one,
/// otherwise the single core twice. Call this before pinning, because a pinned thread has only one core.
pub fn two_cores() -> (u32, u32) {
    choose_two(&allowed_cores(), siblings)
}

fn choose_two(allowed: &[u32], siblings: impl Fn(u32) -> Vec<u32>) -> (u32, u32) {
    let first = allowed.first().copied().unwrap_or(0);
    let of_first = siblings(first);
    let others = || allowed.iter().copied().filter(|&core| core != first);
    let second = others().find(|core| !of_first.contains(core)).or_else(|| others().next()).unwrap_or(first);
    (first, second)
}

/// The hardware threads of `core`'s physical core, including `core`. Empty if the kernel does not report them.
pub fn siblings(core: u32) -> Vec<u32> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    fs::read_to_string(path).map_or_else(|_| Vec::new(), |list| core_list(&list))
}

/// Parses the kernel's form of a set of cores, such as `0-3,8`. Malformed parts are ignored.
pub fn core_list(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_parsed() {
        assert_eq!(core_list("0\n"), [0]);
        assert_eq!(core_list("0-2,8\n"), [0, 1, 2, 8]);
        assert!(core_list("\n").is_empty());
    }

    #[test]
    fn physical_cores_come_before_siblings() {
        let paired = |core: u32| vec![core & !1, core | 1];
        assert_eq!(choose_two(&[0, 1, 2, 3], paired), (0, 2));
        assert_eq!(choose_two(&[2, 3], paired), (2, 3));
        assert_eq!(choose_two(&[5], paired), (5, 5));
    }

    #[test]
    fn a_pinned_thread_stays_and_a_missing_core_is_refused() {
        let (first, _) = two_cores();
        std::thread::spawn(move || {
            pin_to(first).unwrap();
            assert_eq!(allowed_cores(), [first]);
            assert!(pin_to(u32::MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
