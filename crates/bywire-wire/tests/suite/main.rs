//! What crosses a network between two ports: formats, sealing, lanes, connections, and channels between nodes.

mod channel;
mod connection;
mod formats;
mod lanes;
mod sealing;
mod timing;
