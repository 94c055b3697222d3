//! The provider for libfabric, and the settings by which MPI implementations use it.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The name that libfabric looks for.
const LIBRARY: &str = "libbywire-fi.so";

/// The name that cargo builds it under.
const BUILT: &str = "libbywire_fi.so";

/// The environment variable with the directory of another provider.
const DIRECTORY_VARIABLE: &str = "BYWIRE_LIBFABRIC_DIRECTORY";

/// Its directory, relative to that of the installed command. It is none of libfabric's own: only those who name it load it.
const INSTALLED: &str = "../lib/bywire/libfabric";

/// The variables that Open MPI does not take to other machines by itself.
const FORWARDED: [&str; 2] = ["FI_PROVIDER_PATH", "FI_PROVIDER"];

/// The variable with the options by which Open MPI takes them there.
pub const OPTIONS_VARIABLE: &str = "BYWIRE_MPI";

/// The directory that holds the provider: the one named by `BYWIRE_LIBFABRIC_DIRECTORY`, the installed one, or that of
/// a build. Fails with one line if there is none: what to do.
pub fn directory() -> Result<PathBuf> {
    let command = env::current_exe().context("cannot find this program's own file")?;
    let beside = command.parent().unwrap_or(Path::new("/"));
    let named = env::var_os(DIRECTORY_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let place = match named {
        Some(named) => named,
        None if beside.join(INSTALLED).join(LIBRARY).exists() => beside.join(INSTALLED),
        None => of_build(beside)?.unwrap_or_else(|| beside.join(INSTALLED)),
    };
    let found = fs::canonicalize(&place).ok().filter(|found| found.join(LIBRARY).exists());
    let Some(directory) = found else {
        bail!("there is no {LIBRARY} in {}: install it with `./x install`", place.display());
    };
    ensure!(
        !directory.as_os_str().as_encoded_bytes().contains(&b':'),
        "libfabric takes no directory with a colon in its path: install Bywire elsewhere than {}",
        directory.display()
    );
    Ok(directory)
}

/// A directory beside the library that cargo has built, if it has, with a link of the right name.
fn of_build(beside: &Path) -> Result<Option<PathBuf>> {
    if !beside.join(BUILT).exists() {
        return Ok(None);
    }
    let place = beside.join("libfabric");
    if !place.join(LIBRARY).exists() {
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        match symlink(Path::new("..").join(BUILT), place.join(LIBRARY)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make a link in {}", place.display()));
            }
            _ => {}
        }
    }
    Ok(Some(place))
}

/// The variables that send all messages of Open MPI, MPICH and Intel MPI through the provider in `directory`.
pub fn variables(directory: &Path) -> Vec<(&'static str, String)> {
    let mut variables = vec![("FI_PROVIDER_PATH", directory.display().to_string())];
    variables.extend(SETTINGS.map(|(name, value)| (name, value.to_owned())));
    variables
}

/// The names of these variables.
pub fn names() -> impl Iterator<Item = &'static str> {
    ["FI_PROVIDER_PATH"].into_iter().chain(SETTINGS.map(|(name, _)| name))
}

/// Options of Open MPI's launcher that take the variables to other machines. Those of its own go there by themselves.
pub fn options() -> Vec<&'static str> {
    FORWARDED.iter().flat_map(|name| ["-x", name]).collect()
}

const SETTINGS: [(&str, &str); 10] = [
    ("FI_PROVIDER", "bywire"),
    // All messages of Open MPI go through libfabric, those within a machine too, and by no other provider.
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_opal_common_ofi_provider_include", "bywire"),
    // Nor do collective operations use shared memory of its own, or a library of an adapter's vendor. Windows may use memory, as nothing
    // else makes shared ones.
    ("OMPI_MCA_coll", "^sm,hcoll"),
    // Nor do windows go to other machines by UCX, TCP or adapters, unencrypted. What is tried and not used takes time besides:
    // `btl/ofi` sleeps for a second.
    ("OMPI_MCA_osc", "^ucx"),
    ("OMPI_MCA_btl", "^tcp,ofi,openib,portals4,ugni,uct,usnic"),
    // The same for MPICH.
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    // Intel MPI has shared memory of its own unless it is told to use libfabric alone.
    ("I_MPI_FABRICS", "ofi"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cargo_built_gets_the_name_that_libfabric_looks_for() {
        let built = tempfile::tempdir().unwrap();
        assert_eq!(of_build(built.path()).unwrap(), None);
        assert!(!built.path().join("libfabric").exists());
        fs::write(built.path().join(BUILT), "library").unwrap();
        for _ in 0..2 {
            let place = of_build(built.path()).unwrap().expect("a library");
            assert_eq!(fs::read_to_string(place.join(LIBRARY)).unwrap(), "library");
        }
    }

    #[test]
    fn every_forwarded_variable_is_one_that_is_set() {
        let names: Vec<_> = names().collect();
        assert!(FORWARDED.iter().all(|name| names.contains(name)));
        let set: Vec<_> = variables(Path::new("/x")).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, set);
    }
}
