//! Where a node's configuration is.

use std::path::{Path, PathBuf};

use bywire_sys::process;

/// Root's.
const OF_ROOT: &str = "/etc/bywire";

/// The directory that was named, or the default one. `None`: this user has no home.
pub fn directory(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    if process::user() == 0 {
        return Some(PathBuf::from(OF_ROOT));
    }
    // The specification has a relative path ignored.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let configuration = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    configuration.map(|path| path.join("bywire"))
}
