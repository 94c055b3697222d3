//! The memory that the machine and the control group leave to this process.

use crate::os::small_file;

/// The places of the limits of control groups, by the beginning of a line of `/proc/self/cgroup`.
const GROUPS: [(&[u8], &[u8], &[u8]); 2] = [
    (b"0::", b"/sys/fs/cgroup", b"/memory.max"),
    (b":memory:", b"/sys/fs/cgroup/memory", b"/memory.limit_in_bytes"),
];

/// The bytes that the machine has available, or that the control group may have if that is less. `None`: unknown.
pub fn bytes() -> Option<u64> {
    [of_machine(), of_groups()].into_iter().flatten().min()
}

// Two functions, one after the other: a thread of the program may have little stack.

#[inline(never)]
fn of_machine() -> Option<u64> {
    small_file::read(&[b"/proc/meminfo"], &mut [0; 256]).and_then(available)
}

#[inline(never)]
fn of_groups() -> Option<u64> {
    let mut text = [0; 1024];
    let lines = small_file::read(&[b"/proc/self/cgroup"], &mut text)?;
    lines.split(|byte| *byte == b'\n').filter_map(limit).min()
}

fn available(text: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"MemAvailable:";
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(NAME))?;
    number(line.get(NAME.len()..)?.trim_ascii_start())?.checked_mul(1024)
}

/// The least limit of a group and of the groups around it. `line` names it.
fn limit(line: &[u8]) -> Option<u64> {
    let (place, folder, file) = GROUPS.iter().find_map(|(name, folder, file)| {
        let at = line.windows(name.len()).position(|part| part == *name)?;
        Some((at + name.len(), folder, file))
    })?;
    let mut group = line.get(place..)?.trim_ascii_end();
    group = group.strip_suffix(b"/").unwrap_or(group);
    let mut least = None;
    loop {
        let mut text = [0; 32];
        let found = small_file::read(&[folder, group, file], &mut text).and_then(number);
        least = [least, found].into_iter().flatten().min();
        // The group itself is out of sight in some containers; what they see as the root is their own.
        match group.iter().rposition(|byte| *byte == b'/') {
            Some(end) => group = group.get(..end)?,
            None => return least,
        }
    }
}

/// The number at the beginning of a text.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let sum = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    if text.first()?.is_ascii_digit() { digits.clone().try_fold(0, sum) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_to_their_end() {
        assert_eq!(number(b"268435456\n"), Some(268_435_456));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!((number(b"max\n"), number(b"")), (None, None));
        let text = b"MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:   12 kB\n";
        assert_eq!(available(text), Some(12 << 10));
        assert_eq!(available(b"MemTotal: 24 kB"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
