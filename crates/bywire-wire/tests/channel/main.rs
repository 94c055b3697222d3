//! The channels of nodes in memory: what they deliver, and what strangers, repeated packets and restarts do to them.

mod foreign;
mod hostile;
mod making;
#[cfg(planted)]
mod planted;
mod replays;
mod simulation;
