//! The functions that libfabric and programs call, by object. No panic leaves them.

mod address_vector;
mod call;
mod counter;
mod domain;
mod endpoint;
mod event_queue;
mod fabric;
mod info;
mod memory_region;
mod message;
mod message_calls;
mod object;
mod provider;
mod queue;
mod rma;
