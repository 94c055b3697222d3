//! Tagged messages and RMA over lanes in memory, with honest and hostile peers.

mod endpoint;
mod formats;
mod queues;
mod rma;
