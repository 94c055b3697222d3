//! The size of a page of memory, which a kernel is built with. Mappings begin at multiples of it.

/// The largest size of a page that any kernel has, in bytes.
pub const BYTES_MAX: usize = 64 << 10;

/// The size of a page of this kernel, in bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub const fn bytes() -> usize {
    4096
}

/// The size of a page of this kernel, in bytes: 4, 16 or 64 KiB on aarch64. It comes from the C library: rustix would open
/// files for it, which a confined process must not, and panic.
#[cfg(not(target_arch = "x86_64"))]
pub fn bytes() -> usize {
    // SAFETY: `sysconf` takes a number and touches no memory of ours.
    let found = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(found).unwrap_or(BYTES_MAX)
}

/// The largest piece of memory that one entry of a higher page table maps, a huge page: as many pages as a table of one
/// page has entries of eight bytes.
pub fn huge_bytes() -> usize {
    bytes() * (bytes() / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_pages_of_this_size() {
        // SAFETY: `sysconf` takes a number and touches no memory of ours.
        let found = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        assert_eq!(i64::try_from(bytes()), Ok(found));
        assert!(BYTES_MAX.is_multiple_of(bytes()));
        assert!([2 << 20, 32 << 20, 512 << 20].contains(&huge_bytes()));
    }
}
