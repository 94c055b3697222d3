//! Packets that wait to be sent.

use crate::path::Path;

/// The most packets that wait. Others are dropped, as a network would do.
const PACKETS_MAX: usize = 1024;

/// Packets that wait for `Channels::transmit`.
#[derive(Debug, Default)]
pub struct Out(Vec<(Path, Vec<u8>)>);

impl Out {
    pub fn push(&mut self, path: Path, packet: Vec<u8>) {
        if self.0.len() < PACKETS_MAX {
            self.0.push((path, packet));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hands out all of them.
    pub fn move_to(&mut self, out: &mut Vec<(Path, Vec<u8>)>) {
        out.append(&mut self.0);
    }
}
