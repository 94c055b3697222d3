//! The settings of one machine's service, which other machines do not have to know.
//!
//! ```toml
//! lend_network = true
//! metrics = "127.0.0.1:9478"
//! ```

use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;

use crate::fabric::{Complaint, FabricError};
use crate::file::{self, FileError};

/// The name of the file in the directory of the configuration. It need not exist.
pub const FILE_NAME: &str = "service.toml";
/// The longest file.
const BYTES_MAX: u64 = 1 << 16;

/// The settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Does a port of another network namespace get a UDP socket of the service's? Then a container needs the runtime
    /// directory only, and whoever has that has the machine's UDP.
    pub lend_network: bool,
    /// The address for Prometheus. There is none by default.
    pub metrics: Option<SocketAddr>,
}

impl Settings {
    /// Reads the file in a directory of the configuration.
    ///
    /// # Errors
    /// [`FabricError::File`], or [`FabricError::Line`].
    pub fn read(configuration: &Path) -> Result<Self, FabricError> {
        let path = configuration.join(FILE_NAME);
        match file::read_public(&path, BYTES_MAX) {
            Ok(text) => {
                toml::from_str(&text).map_err(|error| Complaint::of_toml(&error).in_file(&path, &text))
            }
            Err(FileError::Missing(_)) => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_optional_and_errors_name_their_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let read = || Settings::read(directory.path());
        assert_eq!(read().expect("none"), Settings::default());
        let path = directory.path().join(FILE_NAME);
        let write = |text: &str| {
            let _none = std::fs::remove_file(&path);
            file::make(&path, 0o644, text).expect("written");
        };
        write("lend_network = true\n");
        assert!(read().expect("one").lend_network);
        write("metrics = \"127.0.0.1:9478\"\n");
        assert_eq!(read().expect("one").metrics, Some(([127, 0, 0, 1], 9478).into()));
        write("lend_network = true\nmetrics = \"localhost\"\n");
        assert!(read().expect_err("no address").to_string().contains("line 2: "));
        write("\nlend_networks = true\n");
        assert!(read().expect_err("unknown").to_string().contains("line 2: unknown field"));
    }
}
