//! What is on its way from one node to another one.

use std::collections::VecDeque;

use bywire_match::SendId;

/// What is carried beside messages.
#[derive(Debug)]
pub enum Bulk {
    Piece(Vec<u8>),
    Put { send: SendId, bytes: Vec<u8>, key: u64, note: [u8; 8] },
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Lane {
    pub messages: VecDeque<Vec<u8>>,
    pub bulk: VecDeque<Bulk>,
    /// Puts that have arrived, for their sender.
    pub answers: VecDeque<SendId>,
    /// The messages that have been sent and have not arrived, in order.
    pub order: VecDeque<usize>,
}
