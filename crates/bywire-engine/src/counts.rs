//! The account that an engine gives of itself.

/// Counts of an engine, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// It carries connections to other machines.
    pub is_far: bool,
    /// Connections that are relayed now.
    pub relayed: u64,
    /// Connections that have been relayed.
    pub relayed_ever: u64,
    /// Connections that were asked for and refused: the engine had too many, or no memory.
    pub refused: u64,
    /// Bytes of relayed connections that programs have sent, over connections that have ended or not.
    pub bytes: u64,
    /// Connections that are carried to another machine now.
    pub carried: u64,
    /// Connections that have been carried to another machine.
    pub carried_ever: u64,
    /// Streams between this engine and others that one of them is not done with.
    pub streams: u64,
    /// Bytes that programs have sent to other machines,
    pub bytes_sent: u64,
    /// and that they were sent from there.
    pub bytes_received: u64,
    /// Connections that required to be carried to another machine, and were refused or reset, as they could not be.
    pub unmet: u64,
}
