//! Filters of system calls (seccomp) on a process.

/// The number of filters on `bywire run` when it started a program.
pub const VARIABLE: &str = "BYWIRE_SOCKETS_FILTERS";

/// The line of `/proc/PID/status` with their number, since Linux 5.9.
const LINE: &[u8] = b"\nSeccomp_filters:\t";
/// The line that says whether there are filters. Kernels without filters do not have it.
const MODE: &[u8] = b"\nSeccomp:\t";
/// A later line, which shows that the text is complete.
const LATER: &[u8] = b"\nCpus_allowed:\t";

/// The number of filters on a process, from its `/proc/PID/status`. `None` if the text does not tell.
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

/// The number of filters on this process.
pub fn count() -> Option<u32> {
    count_in(&std::fs::read("/proc/self/status").ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_parsed_and_unreported_ones_are_unknown() {
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\nCpus_allowed:\t3\n"), Some(0));
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t17\nCpus_allowed:\t3\n"), Some(17));
        // An older kernel, a kernel without filters, and a text that is cut off.
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t0\nCpus_allowed:\t3\n"), Some(0));
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t2\nCpus_allowed:\t3\n"), None);
        assert_eq!(count_in(b"Name:\tx\nCpus_allowed:\t3\n"), Some(0));
        assert_eq!(count_in(b"Name:\tx\nGroups:\t1 2 3"), None);
        assert_eq!(count_in(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\tx\n"), None);
        assert!(count().is_some());
    }
}
