//! How far a writer goes ahead of its reader, where the programs at the ends bound what a connection buffers.
//!
//! The kernel counts what its buffers take up, not the bytes in them. The rules here give, within a factor of two, the
//! bytes that it accepts on a connection of one machine whose reader takes none.

/// The kernel's room for a sender that has set nothing.
const SENDS_BY_DEFAULT: u64 = 3 << 20;
/// Its room for a receiver that has set nothing and takes nothing.
const RECEIVES_BY_DEFAULT: u64 = 128 << 10;
/// The least that either end allows: half of the smallest buffers that the kernel makes.
const BYTES_MIN: u64 = 2304;

/// A sender's room, by the `SO_SNDBUF` that its program has set, as the kernel reports it, and by
/// `TCP_NOTSENT_LOWAT`; 0 for either: not set. The result is 0 if nothing bounds it.
pub fn sends(buffer: u32, unsent_max: u32) -> u32 {
    let is_set = buffer != 0;
    let buffer = if is_set { u64::from(buffer) / 4 * 3 } else { SENDS_BY_DEFAULT };
    let unsent_max = if unsent_max == 0 { u64::MAX } else { unsent_max.into() };
    if !is_set && unsent_max >= SENDS_BY_DEFAULT { 0 } else { buffer.min(unsent_max).max(1) as u32 }
}

/// The allowance of a receiver in a domain whose kernel counts unread bytes at the sender only: the least that is counted.
pub const RECEIVES_NOTHING: u64 = 1;

/// The bytes that may be unread in a ring of `ring_bytes`, by what the sender allows and what the receiver allows, 0
/// for either: not set. The receiver's value may be anything.
#[inline]
pub fn window(sends: u32, receives: u64, ring_bytes: usize) -> usize {
    if sends == 0 && receives == 0 {
        return ring_bytes;
    }
    let bytes_of = |allowed: u64, default: u64| match allowed {
        0 => default,
        bytes => bytes.clamp(BYTES_MIN, ring_bytes as u64),
    };
    let both = bytes_of(sends.into(), SENDS_BY_DEFAULT) + bytes_of(receives, RECEIVES_BY_DEFAULT);
    both.min(ring_bytes as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: usize = 4 << 20;

    /// The bytes that Linux 6.18 accepts by pieces of 64 KiB, for buffers that the programs have set: what the sender asks for,
    /// what the receiver asks for, and the bytes. The kernel doubles both values. 0: not set.
    const ACCEPTED: [(u32, u32, usize); 30] = [
        (0, 0, 4_227_072),
        (0, 2304, 2_445_696),
        (0, 4096, 2_998_272),
        (0, 16_384, 3_842_048),
        (0, 65_536, 4_223_718),
        (0, 212_992, 4_584_128),
        (2304, 0, 175_616),
        (4096, 0, 175_616),
        (16_384, 0, 175_616),
        (65_536, 0, 258_048),
        (212_992, 0, 557_056),
        (1 << 20, 0, 2_195_456),
        (4096, 2304, 10_368),
        (4096, 4096, 14_336),
        (4096, 16_384, 32_768),
        (4096, 65_536, 175_616),
        (4096, 212_992, 458_381),
        (16_384, 2304, 28_800),
        (16_384, 4096, 38_912),
        (16_384, 16_384, 57_344),
        (16_384, 212_992, 458_381),
        (65_536, 4096, 108_544),
        (65_536, 65_536, 258_628),
        (65_536, 212_992, 589_559),
        (212_992, 4096, 319_488),
        (212_992, 65_536, 556_614),
        (212_992, 212_992, 851_597),
        (1 << 20, 4096, 1_507_328),
        (1 << 20, 65_536, 2_193_714),
        (1 << 20, 1 << 20, 4_126_171),
    ];

    #[test]
    fn a_window_holds_what_the_kernel_accepts_within_a_factor_of_two() {
        for (sent, received, accepted) in ACCEPTED {
            let window = window(sends(2 * sent, 0), u64::from(2 * received), RING);
            assert!(
                window <= 2 * accepted && accepted <= 2 * window,
                "SO_SNDBUF {sent}, SO_RCVBUF {received}: {window} and {accepted}"
            );
        }
    }

    #[test]
    fn a_larger_buffer_always_gives_room_until_the_ring_is_full() {
        // Of 4 MiB three quarters count, as much as the kernel gives a sender that has set nothing.
        let windows =
            [1 << 20, 2 << 20, 4 << 20, 5 << 20, 6 << 20].map(|buffer| window(sends(buffer, 0), 0, RING));
        assert!(windows.is_sorted_by(|less, more| less < more), "{windows:?}");
        assert_eq!(windows.last(), Some(&RING));
    }

    #[test]
    fn a_limit_of_unsent_bytes_replaces_a_larger_buffer() {
        assert_eq!(sends(0, 0), 0);
        assert_eq!(sends(0, u32::MAX), 0);
        assert_eq!(sends(0, 1 << 17), 1 << 17);
        assert_eq!(sends(8192, 1 << 17), 6144);
        assert_eq!(sends(8192, 1), 1);
        assert_eq!(window(sends(0, 1 << 17), 0, RING), (1 << 17) + (128 << 10));
    }

    #[test]
    fn whatever_a_receiver_claims_a_window_is_within_the_ring_and_not_empty() {
        for claimed in (0..64).map(|shift| 1u64 << shift).chain([u64::MAX, 3, (1 << 32) + 1]) {
            for allowed in [0, 1, 4096, u32::MAX] {
                let window = window(allowed, claimed, RING);
                assert!((2 * BYTES_MIN as usize..=RING).contains(&window), "{allowed} {claimed}: {window}");
            }
        }
        assert_eq!(window(0, 0, RING), RING);
    }
}
