//! Filters of system calls that a process is behind.

/// Says how many of them `bywire run` was behind when it started a program.
pub const VARIABLE: &str = "BYWIRE_SOCKETS_FILTERS";

/// The line of `/proc/PID/status` that counts them, from Linux 5.9 on.
const LINE: &[u8] = b"\nSeccomp_filters:\t";
/// The one that says whether there is one; kernels without filters have none.
const MODE: &[u8] = b"\nSeccomp:\t";
/// One that comes later.
const LATER: &[u8] = b"\nCpus_allowed:\t";

/// How many filters a process is behind, by its `/proc/PID/status`; `None`: that cannot be told.
pub fn count_in(status: &[u8]) -> Option<u32> {
    let after = |line: &[u8]| {
        let at = status.windows(line.len()).position(|window| window == line)?;
        status.get(at + line.len()..)?.split(|byte| *byte == b'\n').next()
    };
    match (after(MODE), after(LINE)) {
        (None, _) => after(LATER).map(|_| 0),
        (Some(b"0"), _) => Some(0),
        (_, digits) => digits?.iter().try_fold(0u32, |sum, digit| {
            sum.checked_mul(10)?.checked_add(u32::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?))
        }),
    }
}

/// How many this process is behind.
pub fn count() -> Option<u32> {
    count_in(&std::fs::read("/proc/self/status").ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood_and_what_it_does_not_say_is_unknown() {
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\nCpus_allowed:\t3\n"), Some(0));
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t17\nCpus_allowed:\t3\n"), Some(17));
        // An older kernel, one without filters, and a text that ends too soon.
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t0\nCpus_allowed:\t3\n"), Some(0));
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t2\nCpus_allowed:\t3\n"), None);
        assert_eq!(count_in(b"Name:\tx\nCpus_allowed:\t3\n"), Some(0));
        assert_eq!(count_in(b"Name:\tx\nGroups:\t1 2 3"), None);
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\tx\n"), None);
        assert!(count().is_some());
    }
}
