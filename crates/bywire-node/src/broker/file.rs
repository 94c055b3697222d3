//! The fabric file, which its keeper spreads to the other nodes. [`bywire_wire::service_message`] has the messages.
//!
//! A node takes a file only from the keeper that its present file names, over the channel that proves the keeper's key, and
//! only one with a larger serial. The keeper keeps no state for a node but that it has to be told.

use bywire_wire::handshake::PublicKey;
use bywire_wire::service::LIST_BYTES_MAX;
use bywire_wire::service_message::{FilePart, ServiceMessage};

use super::{Action, Broker, FabricFile, IncomingFile};

impl Broker {
    /// Uses a file from now on. [`Broker::follow`] has applied its nodes.
    pub fn use_file(&mut self, file: FabricFile) {
        let own = self.own.key;
        let before = self.distribution.file.as_ref();
        let is_newer = before.is_none_or(|before| before.serial < file.serial);
        // A keeper that hands over to another one tells the others of that.
        let is_keeper = [before.and_then(|before| before.keeper), file.keeper].contains(&Some(own));
        let (serial, keeper) = (file.serial, file.keeper.filter(|keeper| *keeper != own));
        self.distribution.file = Some(file);
        let nodes = &self.nodes;
        self.distribution.uninformed.retain(|node| nodes.contains_key(node));
        self.distribution.ahead.retain(|node, ahead| nodes.contains_key(node) && *ahead > serial);
        if is_keeper && is_newer {
            for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                if self.distribution.uninformed.insert(node) {
                    self.need(node);
                }
                self.send(node, ServiceMessage::FileSerial { serial });
            }
        }
        // The keeper may have announced another one while this one was on its way into use.
        let is_outdated = self.distribution.requested_from.is_some();
        self.stop_asking();
        // One that could not be used is asked for again.
        let source = self.distribution.source.take().filter(|_| is_newer);
        if let Some(source) = source {
            self.send(source, ServiceMessage::FileHeld { serial });
        }
        if let Some(keeper) = keeper.filter(|keeper| source != Some(*keeper) || is_outdated) {
            self.ask_keeper(keeper);
        }
    }

    /// A channel has come up.
    pub(super) fn spread_to(&mut self, node: PublicKey) {
        let Some(file) = &self.distribution.file else { return };
        let serial = file.serial;
        if self.distribution.uninformed.contains(&node) {
            self.send(node, ServiceMessage::FileSerial { serial });
        }
        if self.distribution.requested_from == Some(node) {
            self.ask_keeper(node);
        }
    }

    /// The file of another node has this serial.
    pub(super) fn hear_serial(&mut self, node: PublicKey, serial: u64) {
        let Some(file) = self.distribution.file.as_ref().filter(|file| file.keeper == Some(node)) else {
            return;
        };
        let held = file.serial;
        if serial > held {
            self.ask_keeper(node);
        } else if self.distribution.requested_from.is_some() {
            self.stop_asking();
        } else {
            self.send(node, ServiceMessage::FileHeld { serial: held });
        }
    }

    /// Another node asks for a part of the file.
    pub(super) fn answer_ask(&mut self, node: PublicKey, held: u64, wanted: u64, offset: u32) {
        let Some(file) = &self.distribution.file else { return };
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
        let Some(file) = self.distribution.file.as_ref().filter(|file| file.keeper == Some(node)) else {
            return;
        };
        let held = file.serial;
        if self.distribution.requested_from != Some(node) || part.serial <= held {
            return;
        }
        let incoming = &mut self.distribution.incoming;
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
                    self.distribution.source = Some(node);
                    self.actions.push_back(Action::Adopt(text));
                }
            }
        }
    }

    /// Another node uses a file with this serial.
    pub(super) fn hear_held(&mut self, node: PublicKey, serial: u64) {
        let Some(file) = &self.distribution.file else { return };
        let is_keeper = file.keeper == Some(self.own.key);
        if serial > file.serial && is_keeper {
            return self.note_ahead(node, serial);
        }
        let is_told = serial >= file.serial;
        self.distribution.ahead.remove(&node);
        if is_told && self.distribution.uninformed.remove(&node) {
            self.need_less(node);
        }
    }

    /// A node has a larger serial than its keeper, this node. Somebody raised it by hand, so it does not have this node's file and takes
    /// no change.
    fn note_ahead(&mut self, node: PublicKey, serial: u64) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        if self.distribution.uninformed.insert(node) {
            self.need(node);
        }
        if self.distribution.ahead.insert(node, serial) != Some(serial) {
            self.actions.push_back(Action::ReportAhead(node, serial));
        }
    }

    /// The serial of a node's file, if it is larger than that of its keeper, this node.
    pub fn ahead(&self, node: &PublicKey) -> Option<u64> {
        self.distribution.ahead.get(node).copied()
    }

    /// Asks the keeper for a newer file, from its first part on.
    fn ask_keeper(&mut self, keeper: PublicKey) {
        let Some(file) = &self.distribution.file else { return };
        let ask = IncomingFile::ask_next(None, file.serial);
        self.distribution.incoming = None;
        if self.distribution.requested_from.is_none() {
            self.distribution.requested_from = Some(keeper);
            self.need(keeper);
        }
        self.send(keeper, ask);
    }

    fn stop_asking(&mut self) {
        self.distribution.incoming = None;
        if let Some(keeper) = self.distribution.requested_from.take() {
            self.need_less(keeper);
        }
    }
}
