//! Keys of nodes: 32 bytes in base64, as in WireGuard.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bywire_wire::handshake::{PrivateKey, PublicKey};

use crate::file::{self, FileError};

/// The name of the private key's file in the directory of the configuration.
pub const FILE_NAME: &str = "node.key";
/// The longest file of a key: 44 characters and line ends.
const BYTES_MAX: u64 = 128;

/// The error of a private key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The content of the file.
    #[error("{} is not a key, which is 32 bytes in base64: make one by `bywire init NAME`", .0.display())]
    Malformed(std::path::PathBuf),
    /// The kernel has no random numbers.
    #[error("cannot make a key: {0}")]
    Random(bywire_sys::Errno),
}

/// Reads this node's private key.
///
/// # Errors
/// [`KeyError`].
pub fn read(path: &Path) -> Result<PrivateKey, KeyError> {
    let text = file::read_secret(path, BYTES_MAX)?;
    let bytes = decode(text.trim()).ok_or_else(|| KeyError::Malformed(path.to_owned()))?;
    Ok(PrivateKey::new(bytes))
}

/// Makes a private key in a new file.
///
/// # Errors
/// [`KeyError`].
pub fn make(path: &Path) -> Result<PrivateKey, KeyError> {
    let mut bytes = [0; 32];
    bywire_sys::process::random(&mut bytes).map_err(KeyError::Random)?;
    file::make(path, 0o600, &format!("{}\n", STANDARD.encode(bytes)))?;
    Ok(PrivateKey::new(bytes))
}

/// A public key as text.
pub fn to_text(key: &PublicKey) -> String {
    STANDARD.encode(key.0)
}

/// The public key in a text.
pub fn from_text(text: &str) -> Option<PublicKey> {
    decode(text).map(PublicKey)
}

fn decode(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE_NAME);
        let made = make(&path).expect("made");
        assert_eq!(read(&path).expect("read").public(), made.public());
        assert!(matches!(make(&path), Err(KeyError::File(FileError::Exists(_)))));
        let text = to_text(&made.public());
        assert_eq!(from_text(&text), Some(made.public()));
        for wrong in [&text[1..], "", "!", &format!("{text}{text}")] {
            assert_eq!(from_text(wrong), None, "{wrong:?}");
        }
    }
}
