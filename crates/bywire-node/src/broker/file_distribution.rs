//! Which nodes have the fabric file, and a file that arrives in parts.

use std::collections::{BTreeMap, BTreeSet};

use bywire_wire::handshake::PublicKey;
use bywire_wire::service_message::{FilePart, ServiceMessage};

use crate::fabric::BYTES_MAX;

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

/// Which nodes have the file, and a file on its way to this one.
#[derive(Debug, Default)]
pub(super) struct FileDistribution {
    pub file: Option<FabricFile>,
    /// Nodes that do not know the file yet. Each needs its channel.
    pub uninformed: BTreeSet<PublicKey>,
    /// Nodes whose file has a larger serial than that of the keeper, this node: they take nothing from it.
    pub ahead: BTreeMap<PublicKey, u64>,
    /// The keeper, while a newer file is requested from it. It needs its channel.
    pub requested_from: Option<PublicKey>,
    pub incoming: Option<IncomingFile>,
    /// The keeper whose file was passed to the service.
    pub source: Option<PublicKey>,
}

/// A file whose first parts have arrived.
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
