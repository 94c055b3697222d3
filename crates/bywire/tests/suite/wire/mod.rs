//! Transfers between machines, over a perfect network between the two ends of a connection.

mod endings;
mod pair;
mod rules;
mod transfers;
