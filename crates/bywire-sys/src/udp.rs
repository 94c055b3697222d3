//! Non-blocking UDP sockets of links between machines. Packets are sent in batches where the kernel supports that (GSO), and
//! are never fragmented.
//!
//! Anyone may send to these sockets, and can forge error reports of the network (ICMP). So [`ReceiveError::Reported`] and
//! [`SendError::Unreachable`] are hints and prove nothing.

mod control;
mod options;
mod receiving;
mod report;
mod sending;
mod sizes;
mod socket;
#[cfg(test)]
mod tests;

pub use options::{Backlog, Buffers, backlog};
pub use receiving::{Arrival, Datagrams, ReceiveError};
pub use sending::SendError;
pub use sizes::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX, RECEIVE_BYTES};
pub use socket::{Route, UdpSocket, has_v6, route};
