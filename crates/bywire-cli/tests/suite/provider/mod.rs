//! The provider for libfabric, which was built as a dependency of these tests. They use nothing of `bywire_ofi::`: libfabric loads it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// The variable that tells the command where the provider is.
pub const VARIABLE: &str = "BYWIRE_LIBFABRIC_DIRECTORY";

/// A directory with a link to it, under the name that libfabric looks for.
pub fn directory() -> PathBuf {
    let built = std::env::current_exe().expect("this test").with_file_name("libbywire_fi.so");
    assert!(built.exists(), "{} is missing", built.display());
    let directory = built.with_file_name("libfabric");
    fs::create_dir_all(&directory).expect("made");
    match symlink(built, directory.join("libbywire-fi.so")) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("{error}"),
        _ => directory,
    }
}
