//! The fabric file, which its keeper spreads to the other nodes. [`bywire_wire::service_message`] has the messages.
//!
//! A node takes a file only from the keeper that its present file names, over the channel that proves the keeper's key, and
//! only one with a larger serial. The keeper keeps no state for a node but that it has to be told.

use std::collections::BTreeSet;

use bywire_wire::handshake::PublicKey;
use bywire_wire::service::LIST_BYTES_MAX;
use bywire_wire::service_message::{FilePart, ServiceMessage};

use crate::fabric::BYTES_MAX;

use super::{Action, Broker};

/// The fabric file that this node uses.
#[derive(Clone, Debug)]
pub struct FabricFile {
    /// Its serial.
    pub serial: u64,
    /// The node that may change it for all others.
    pub keeper: Option<PublicKey>,
    /// Its text.
    pub text: String,
}

/// The state of the file among the nodes.
#[derive(Debug, Default)]
pub(super) struct Spread {
    file: Option<FabricFile>,
    /// Nodes that have to be told of the file. Each needs its channel.
    untold: BTreeSet<PublicKey>,
    /// The keeper, while it is asked for a newer file. It needs its channel.
    asked: Option<PublicKey>,
    incoming: Option<IncomingFile>,
    /// The keeper whose file was passed to the service.
    source: Option<PublicKey>,
}

/// A file of which the first parts have arrived.
#[derive(Debug)]
pub struct IncomingFile {
    serial: u64,
    length: usize,
    bytes: Vec<u8>,
}

impl IncomingFile {
    /// Adds a part, which begins a file or continues the present one. `false`: it does neither, and nothing has changed.
    pub fn add(file: &mut Option<Self>, part: FilePart) -> bool {
        let FilePart { serial, length, offset, bytes } = part;
        let (length, offset) = (length as usize, offset as usize);
        if bytes.is_empty() || length > BYTES_MAX || offset.saturating_add(bytes.len()) > length {
            return false;
        }
        if offset == 0 {
            *file = Some(Self { serial, length, bytes });
            return true;
        }
        let present = file.as_mut().filter(|file| (file.serial, file.length) == (serial, length));
        let Some(present) = present.filter(|file| file.bytes.len() == offset) else { return false };
        present.bytes.extend(bytes);
        true
    }

    /// The text, once it is whole. `Err`: it is no text.
    pub fn take_whole(file: &mut Option<Self>) -> Option<Result<String, std::string::FromUtf8Error>> {
        let whole = file.take_if(|file| file.bytes.len() == file.length)?;
        Some(String::from_utf8(whole.bytes))
    }

    /// Asks for the next part, for a node whose own file has the serial `held`.
    pub fn ask_next(file: Option<&Self>, held: u64) -> ServiceMessage {
        let (wanted, offset) = file.map_or((0, 0), |file| (file.serial, file.bytes.len() as u32));
        ServiceMessage::FileAsk { held, wanted, offset }
    }
}

impl Broker {
    /// Uses a file from now on. [`Broker::follow`] has applied its nodes.
    pub fn use_file(&mut self, file: FabricFile) {
        let own = self.own.key;
        let before = self.spread.file.as_ref();
        let is_newer = before.is_none_or(|before| before.serial < file.serial);
        // A keeper that hands over to another one tells the others of that.
        let is_keeper = [before.and_then(|before| before.keeper), file.keeper].contains(&Some(own));
        let (serial, keeper) = (file.serial, file.keeper.filter(|keeper| *keeper != own));
        self.spread.file = Some(file);
        let nodes = &self.nodes;
        self.spread.untold.retain(|node| nodes.contains_key(node));
        if is_keeper && is_newer {
            for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                if self.spread.untold.insert(node) {
                    self.need(node);
                }
                self.send(node, ServiceMessage::FileSerial { serial });
            }
        }
        self.stop_asking();
        let source = self.spread.source.take();
        if let Some(source) = source {
            self.send(source, ServiceMessage::FileHeld { serial });
        }
        if let Some(keeper) = keeper.filter(|keeper| source != Some(*keeper)) {
            self.ask_keeper(keeper);
        }
    }

    /// A channel has come up.
    pub(super) fn spread_to(&mut self, node: PublicKey) {
        let Some(file) = &self.spread.file else { return };
        let serial = file.serial;
        if self.spread.untold.contains(&node) {
            self.send(node, ServiceMessage::FileSerial { serial });
        }
        if self.spread.asked == Some(node) {
            self.ask_keeper(node);
        }
    }

    /// The file of another node has this serial.
    pub(super) fn hear_serial(&mut self, node: PublicKey, serial: u64) {
        let Some(file) = self.spread.file.as_ref().filter(|file| file.keeper == Some(node)) else { return };
        let held = file.serial;
        if serial > held {
            self.ask_keeper(node);
        } else if self.spread.asked.is_some() {
            self.stop_asking();
        } else {
            self.send(node, ServiceMessage::FileHeld { serial: held });
        }
    }

    /// Another node asks for a part of the file.
    pub(super) fn answer_ask(&mut self, node: PublicKey, held: u64, wanted: u64, offset: u32) {
        let Some(file) = &self.spread.file else { return };
        let serial = file.serial;
        if held >= serial {
            self.hear_held(node, held);
            return self.send(node, ServiceMessage::FileSerial { serial });
        }
        let bytes = file.text.as_bytes();
        // The file may have changed since the part before.
        let offset = if wanted == serial && (offset as usize) < bytes.len() { offset } else { 0 };
        let part = bytes.get(offset as usize..).unwrap_or_default();
        let part = part.get(..LIST_BYTES_MAX).unwrap_or(part).to_vec();
        let part = FilePart { serial, length: bytes.len() as u32, offset, bytes: part };
        self.send(node, ServiceMessage::FilePart(part));
    }

    /// A part of another node's file.
    pub(super) fn take_part(&mut self, node: PublicKey, part: FilePart) {
        let Some(file) = self.spread.file.as_ref().filter(|file| file.keeper == Some(node)) else { return };
        let held = file.serial;
        if self.spread.asked != Some(node) || part.serial <= held {
            return;
        }
        let incoming = &mut self.spread.incoming;
        if !IncomingFile::add(incoming, part) {
            return;
        }
        match IncomingFile::take_whole(incoming) {
            None => {
                let next = IncomingFile::ask_next(incoming.as_ref(), held);
                self.send(node, next);
            }
            Some(text) => {
                self.stop_asking();
                if let Ok(text) = text {
                    self.spread.source = Some(node);
                    self.actions.push_back(Action::Adopt(text));
                }
            }
        }
    }

    /// Another node uses a file with this serial.
    pub(super) fn hear_held(&mut self, node: PublicKey, serial: u64) {
        let is_told = self.spread.file.as_ref().is_some_and(|file| file.serial <= serial);
        if is_told && self.spread.untold.remove(&node) {
            self.need_less(node);
        }
    }

    /// Asks the keeper for a newer file, from its first part on.
    fn ask_keeper(&mut self, keeper: PublicKey) {
        let Some(file) = &self.spread.file else { return };
        let ask = IncomingFile::ask_next(None, file.serial);
        self.spread.incoming = None;
        if self.spread.asked.is_none() {
            self.spread.asked = Some(keeper);
            self.need(keeper);
        }
        self.send(keeper, ask);
    }

    fn stop_asking(&mut self) {
        self.spread.incoming = None;
        if let Some(keeper) = self.spread.asked.take() {
            self.need_less(keeper);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(serial: u64, length: u32, offset: u32, bytes: &[u8]) -> FilePart {
        FilePart { serial, length, offset, bytes: bytes.to_vec() }
    }

    #[test]
    fn parts_of_a_file_are_taken_in_their_order_only() {
        let mut file = None;
        let too_long = BYTES_MAX as u32 + 1;
        for wrong in
            [part(2, 4, 2, b"cd"), part(2, 4, 0, b""), part(2, 1, 0, b"ab"), part(2, too_long, 0, b"a")]
        {
            assert!(!IncomingFile::add(&mut file, wrong) && file.is_none());
        }
        assert!(IncomingFile::add(&mut file, part(2, 4, 0, b"ab")));
        for wrong in [part(3, 4, 2, b"cd"), part(2, 5, 2, b"cd"), part(2, 4, 1, b"cd"), part(2, 4, 2, b"cde")]
        {
            assert!(!IncomingFile::add(&mut file, wrong));
        }
        assert!(!IncomingFile::add(&mut file, part(2, 4, u32::MAX, b"cd")));
        assert!(IncomingFile::take_whole(&mut file).is_none());
        let ask = ServiceMessage::FileAsk { held: 1, wanted: 2, offset: 2 };
        assert_eq!(IncomingFile::ask_next(file.as_ref(), 1), ask);
        assert!(IncomingFile::add(&mut file, part(2, 4, 2, b"cd")));
        assert_eq!(IncomingFile::take_whole(&mut file), Some(Ok("abcd".to_owned())));
        assert!(file.is_none());
        // A newer file begins anew.
        assert!(IncomingFile::add(&mut file, part(2, 4, 0, b"ab")));
        assert!(IncomingFile::add(&mut file, part(3, 1, 0, &[0xff])));
        assert!(matches!(IncomingFile::take_whole(&mut file), Some(Err(_))));
    }
}
