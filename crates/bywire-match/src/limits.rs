//! What bounds an endpoint.

/// What an eager message takes of its window besides its payload, in bytes.
pub const ENVELOPE_BYTES: u64 = 64;

/// The bounds of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most peers.
    pub peers: usize,
    /// The most sends that have not completed.
    pub sends: usize,
    /// The most receives that have not completed.
    pub receives: usize,
    /// The longest payload that follows its head at once, and that a grant asks for in pieces, in bytes.
    pub eager_bytes: u64,
    /// The most requests and synchronous messages to a peer that it has not answered. Equal at both ends.
    pub requests: u32,
    /// The window of a new peer, in bytes. Equal at both ends.
    pub window_bytes: u64,
    /// The largest window of a peer, in bytes.
    pub window_bytes_max: u64,
    /// What all windows may have grown by, in bytes. So eager messages that nobody receives take at most this and
    /// `window_bytes` of each peer.
    pub growth_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers: 1 << 16,
            sends: 1 << 20,
            receives: 1 << 20,
            eager_bytes: 32 << 10,
            requests: 1 << 16,
            window_bytes: 256 << 10,
            window_bytes_max: 1 << 20,
            growth_bytes_max: 64 << 20,
        }
    }
}
