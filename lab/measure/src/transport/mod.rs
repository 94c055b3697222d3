//! Transports carry messages between the two ends of a pair: one file for each.

pub mod byte_stream;
pub mod msg;
pub mod sock;
mod socket;
pub mod tcp;
pub mod udp;
pub mod unix;

use anyhow::{Result, anyhow};

use crate::endpoint::Endpoint;
use crate::plan::Plan;

/// A way to join two ends.
pub trait Transport {
    /// The listening side of the target.
    type Listener;
    /// One end of one lane.
    type Endpoint: Endpoint;

    /// Opens the target's side. Returns it with its address for [`Transport::connect`].
    fn listen(plan: &Plan) -> Result<(Self::Listener, String)>;

    /// Waits for the source that knows the plan's cookie. Returns an endpoint for each of the plan's lanes.
    fn accept(listener: Self::Listener, plan: &Plan) -> Result<Vec<Self::Endpoint>>;

    /// Connects to a listening target. Returns an endpoint for each of the plan's lanes.
    fn connect(plan: &Plan, address: &str) -> Result<Vec<Self::Endpoint>>;
}

/// One line for a peer that has gone away.
fn gone() -> anyhow::Error {
    anyhow!("the peer closed the connection in the middle of the test")
}
