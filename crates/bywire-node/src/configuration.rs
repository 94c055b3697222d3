//! The directory of a node's configuration.

use std::path::{Path, PathBuf};

use bywire_sys::process;

/// The directory for root.
const OF_ROOT: &str = "/etc/bywire";

/// The given directory, or the default one. `None`: this user has no home directory.
pub fn directory(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    if process::user() == 0 {
        return Some(PathBuf::from(OF_ROOT));
    }
    // The specification says that a relative path is ignored.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let configuration = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    configuration.map(|path| path.join("bywire"))
}
