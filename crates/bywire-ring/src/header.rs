//! The header word of a slot: the only word that publishes, and the only one that is polled.
//!
//! ```text
//!  63          32 31      16 15      8 7      0
//! ┌──────────────┬──────────┬─────────┬────────┐
//! │ check        │ length   │ kind    │ lap    │
//! └──────────────┴──────────┴─────────┴────────┘
//! ```
//!
//! `lap` distinguishes a record of this lap from one of the last lap and from memory never written (0). `length`
//! counts the payload's bytes, in the slot itself or, with [`BULK`], in the bulk area. `check` is the CRC32C of the
//! payload when [`CHECKED`] is set.

/// Set in `kind`: the payload lies in the bulk area.
pub const BULK: u8 = 0x80;
/// Set in `kind`: the consumer returns credit at once.
pub const PROMPT: u8 = 0x40;
/// Set in `kind`: `check` holds the payload's CRC32C.
pub const CHECKED: u8 = 0x20;
/// The bits of `kind` that the rings do not interpret.
pub const KIND_MASK: u8 = 0x1f;

/// The fields of a header word. Every value of every field is possible: a peer wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the record, with its flags.
    pub kind: u8,
    /// Payload bytes.
    pub length: u16,
    /// CRC32C of the payload, or 0.
    pub check: u32,
}

impl Header {
    /// The word that publishes this header in the given lap.
    #[inline(always)]
    pub fn word(self, lap: u8) -> u64 {
        u64::from(lap)
            | u64::from(self.kind) << 8
            | u64::from(self.length) << 16
            | u64::from(self.check) << 32
    }

    /// The header in `word`, if it is of the given lap.
    #[inline(always)]
    pub fn of_lap(word: u64, lap: u8) -> Option<Self> {
        (word as u8 == lap).then_some(Self {
            kind: (word >> 8) as u8,
            length: (word >> 16) as u16,
            check: (word >> 32) as u32,
        })
    }
}

/// The lap tag of the record at `position` in a ring of `1 << slots_log2` slots: never 0, and different
/// in neighbouring laps.
#[inline(always)]
pub fn lap(position: u64, slots_log2: u32) -> u8 {
    0x80 | (position >> slots_log2) as u8
}
