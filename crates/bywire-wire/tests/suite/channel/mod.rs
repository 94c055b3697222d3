//! Channels between the services of nodes, in memory: delivery, unknown senders, replayed packets, and restarts.

mod copied_key;
mod echoes;
mod foreign;
mod guests;
mod hostile;
mod making;
#[cfg(debug_assertions)]
mod planted;
mod renewal;
mod replays;
mod simulation;
