//! Changes of the fabric file that keep the user's comments.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_sys::{Errno, directory};
use bywire_wire::handshake::PublicKey;
use toml_edit::{DocumentMut, Item, Value};

use crate::fabric::{self, Fabric, FabricError, Node, stanza};
use crate::file::{self, FileError};

/// How long another change may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How soon the lock is tried again.
const PAUSE: Duration = Duration::from_millis(5);

/// A change of the nodes.
#[derive(Clone, Copy, Debug)]
pub enum Change<'change> {
    /// Add a node.
    Add(&'change Node),
    /// Remove the node of this name.
    Remove(&'change str),
}

/// Why the file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The file, as it is or as it would be.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// It cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another node keeps the file.
    #[error("{0} is the keeper of this fabric: change the nodes there")]
    OtherKeeper(String),
    /// There is a node of this name.
    #[error(
        "there is a node {0} already: choose another name, or remove that node by `bywire node remove {0}`"
    )]
    NameTaken(String),
    /// There is no node of this name.
    #[error("there is no node {0}: `bywire node list` shows the nodes")]
    NoNode(String),
    /// The node is this machine.
    #[error(
        "{0} is this machine: remove it from the fabric on another node, once that is the `keeper` in fabric.toml"
    )]
    Own(String),
    /// The file is valid, but is not written as `bywire init` writes it.
    #[error("{path} lists its nodes in another form than [[node]], so change it by hand", path = .0.display())]
    OtherForm(PathBuf),
    /// The serial cannot grow.
    #[error("{path} has the largest serial that there is: lower it by hand, on all nodes", path = .0.display())]
    LastSerial(PathBuf),
    /// Another program changes the file.
    #[error("another program changes {path}: try again", path = .0.display())]
    Busy(PathBuf),
    /// The directory cannot be locked.
    #[error("cannot lock the directory of {path}: {1}: {hint}", path = .0.display(), hint = unlocked_hint(*.1))]
    Unlocked(PathBuf, Errno),
}

/// What to do about a directory that cannot be locked.
fn unlocked_hint(error: Errno) -> &'static str {
    match error {
        Errno::ACCESS | Errno::ROFS => {
            "run this as the owner of the directory or as root, or give another directory by --config"
        }
        Errno::PERM => {
            "remove the files in it that are named `.NUMBER.lock` and do not belong to you, as root"
        }
        Errno::NOENT | Errno::NOTDIR => {
            "make one by `bywire init NAME`, or give another directory by --config"
        }
        _ => "correct that on this machine, or give another directory by --config",
    }
}

/// Holds off other changes of the files in a directory, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _held: OwnedFd,
}

/// Waits until no other program changes the files, for a bounded time.
///
/// # Errors
/// [`ChangeError::Busy`], [`ChangeError::Unlocked`].
pub fn lock(configuration: &Path) -> Result<Lock, ChangeError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match try_lock(configuration) {
            Err(ChangeError::Busy(_)) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// The same, without waiting.
///
/// # Errors
/// [`ChangeError::Busy`], [`ChangeError::Unlocked`].
pub fn try_lock(configuration: &Path) -> Result<Lock, ChangeError> {
    let path = configuration.join(fabric::FILE_NAME);
    directory::try_lock(configuration).map(|held| Lock { _held: held }).map_err(|error| match error {
        Errno::AGAIN => ChangeError::Busy(path),
        error => ChangeError::Unlocked(path, error),
    })
}

/// Changes the file in a directory, whose lock is held. `own` is the key of this machine.
///
/// # Errors
/// [`ChangeError`]. The file is as it was.
pub fn make(
    configuration: &Path,
    _lock: &Lock,
    own: &PublicKey,
    change: Change,
) -> Result<Fabric, ChangeError> {
    let path = configuration.join(fabric::FILE_NAME);
    let text = fabric::read_text(&path)?;
    let before = Fabric::of(&path, &text, own)?;
    if let Some(keeper) = before.keeper().filter(|keeper| keeper.key != *own) {
        return Err(ChangeError::OtherKeeper(keeper.name.clone()));
    }
    let serial = before.serial.checked_add(1).and_then(|serial| i64::try_from(serial).ok());
    let serial = serial.ok_or_else(|| ChangeError::LastSerial(path.clone()))?;
    let mut document: DocumentMut = text.parse().map_err(|_| ChangeError::OtherForm(path.clone()))?;
    set_serial(&mut document, serial);
    let text = match change {
        Change::Add(node) => {
            if before.nodes.iter().any(|other| other.name == node.name) {
                return Err(ChangeError::NameTaken(node.name.clone()));
            }
            with_node(&document.to_string(), node)
        }
        Change::Remove(name) => {
            let Some(node) = before.nodes.iter().find(|node| node.name == name) else {
                return Err(ChangeError::NoNode(name.to_owned()));
            };
            if node.key == *own {
                return Err(ChangeError::Own(name.to_owned()));
            }
            remove_node(&mut document, name).ok_or_else(|| ChangeError::OtherForm(path.clone()))?;
            document.to_string()
        }
    };
    // What is written is read as any other file is, with its limits.
    let after = Fabric::of(&path, &text, own)?;
    file::replace(&path, &text)?;
    Ok(after)
}

/// Sets the serial. The comment behind it stays.
fn set_serial(document: &mut DocumentMut, serial: i64) {
    if let Some(value) = document.get_mut("serial").and_then(Item::as_value_mut) {
        let decor = value.decor().clone();
        *value = Value::from(serial);
        *value.decor_mut() = decor;
    }
}

/// A node at the end of a file is a valid end.
fn with_node(text: &str, node: &Node) -> String {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{}", stanza(node))
}

/// Removes a node, with the comment above it. `None`: the file does not list nodes as `[[node]]`.
fn remove_node(document: &mut DocumentMut, name: &str) -> Option<()> {
    let nodes = document.get_mut("node")?.as_array_of_tables_mut()?;
    nodes.retain(|node| node.get("name").and_then(Item::as_str) != Some(name));
    Some(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::key;

    const FILE: &str = "\
# Ours.
name = \"lab\"      # of the fabric
serial = 7          # raised by each change
keeper = \"web1\"
security = \"encrypted\"

# In the cellar.
[[node]]
name = \"web1\"
addresses = [
    \"10.0.0.1\",   # the old network
]
key = \"iC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=\"

# Under the roof.
[[node]]
name = \"web2\"
addresses = [\"10.0.0.2\"]
key = \"AC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=\"  # new
";

    struct Fixture(tempfile::TempDir);

    impl Fixture {
        fn new(text: &str) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            file::make(&directory.path().join(fabric::FILE_NAME), 0o644, text).expect("written");
            Self(directory)
        }

        fn change(&self, own: &PublicKey, change: Change) -> Result<Fabric, ChangeError> {
            let lock = lock(self.0.path()).expect("nobody else has it");
            make(self.0.path(), &lock, own, change)
        }

        fn text(&self) -> String {
            fs::read_to_string(self.0.path().join(fabric::FILE_NAME)).expect("read")
        }
    }

    fn key_of(first: &str) -> PublicKey {
        key::from_text(&format!("{first}C8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=")).expect("a key")
    }

    fn node(name: &str, first: &str) -> Node {
        let addresses = vec!["10.0.0.9".parse().expect("one")];
        Node { name: name.to_owned(), addresses, key: key_of(first), is_bridge: false }
    }

    #[test]
    fn a_change_raises_the_serial_and_keeps_every_comment_of_the_nodes_that_stay() {
        let fixture = Fixture::new(FILE);
        let fabric = fixture.change(&key_of("i"), Change::Add(&node("web3", "B"))).expect("added");
        assert_eq!((fabric.serial, fabric.nodes.len()), (8, 3));
        let raised = FILE.replace("serial = 7", "serial = 8");
        assert_eq!(fixture.text(), format!("{raised}{}", stanza(&node("web3", "B"))));
        let fabric = fixture.change(&key_of("i"), Change::Remove("web3")).expect("removed");
        assert_eq!((fabric.serial, fabric.nodes.len()), (9, 2));
        assert_eq!(fixture.text(), FILE.replace("serial = 7", "serial = 9"));
        let fabric = fixture.change(&key_of("i"), Change::Remove("web2")).expect("removed");
        assert_eq!(fabric.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["web1"]);
        let text = fixture.text();
        for comment in ["# Ours.", "# of the fabric", "# raised by", "# In the cellar.", "# the old network"]
        {
            assert!(text.contains(comment), "{text}");
        }
        assert!(!text.contains("roof"), "{text}");
    }

    #[test]
    fn changes_of_two_fabrics_of_one_user_do_not_wait_for_each_other() {
        use std::os::unix::fs::PermissionsExt;
        for mode in [0o700, 0o755] {
            let [one, other] = [Fixture::new(FILE), Fixture::new(FILE)];
            for fixture in [&one, &other] {
                fs::set_permissions(fixture.0.path(), fs::Permissions::from_mode(mode)).expect("chmod");
            }
            let _held = lock(one.0.path()).expect("free");
            try_lock(other.0.path()).expect("free as well");
        }
    }

    #[test]
    fn a_change_that_cannot_be_made_leaves_the_file_as_it_was() {
        let fixture = Fixture::new(FILE);
        let own = key_of("i");
        let refused = |own: &PublicKey, change: Change<'_>| fixture.change(own, change).expect_err("refused");
        assert!(matches!(refused(&own, Change::Add(&node("web2", "B"))), ChangeError::NameTaken(_)));
        assert!(matches!(refused(&own, Change::Add(&node("web3", "A"))), ChangeError::Fabric(_)));
        assert!(matches!(refused(&own, Change::Add(&node("a b", "B"))), ChangeError::Fabric(_)));
        assert!(matches!(refused(&own, Change::Remove("web3")), ChangeError::NoNode(_)));
        assert!(matches!(refused(&own, Change::Remove("web1")), ChangeError::Own(_)));
        assert!(matches!(refused(&key_of("A"), Change::Remove("web1")), ChangeError::OtherKeeper(_)));
        assert!(matches!(refused(&key_of("B"), Change::Remove("web1")), ChangeError::Fabric(_)));
        let absent = lock(&fixture.0.path().join("absent")).expect_err("there is nothing to lock");
        assert!(absent.to_string().contains("absent/fabric.toml: No such file"), "{absent}");
        assert!(absent.to_string().contains("`bywire init NAME`"), "{absent}");
        let held = try_lock(fixture.0.path()).expect("free");
        assert!(matches!(try_lock(fixture.0.path()), Err(ChangeError::Busy(_))));
        drop(held);
        assert_eq!(fixture.text(), FILE);

        let keeperless = Fixture::new(&FILE.replace("keeper", "# keeper"));
        let fabric = keeperless.change(&key_of("A"), Change::Remove("web1")).expect("each changes its own");
        assert_eq!(fabric.nodes.len(), 1);
        let last = Fixture::new(&FILE.replace("serial = 7", "serial = 9223372036854775807"));
        let error = last.change(&own, Change::Remove("web2")).expect_err("refused");
        assert!(matches!(error, ChangeError::LastSerial(_)));
        let inline = FILE.split("\n# In").next().expect("a first part").to_owned()
            + "node = [{ name = \"web1\", addresses = [\"h\"], key = \"iC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=\" }, \
               { name = \"web2\", addresses = [\"h\"], key = \"AC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=\" }]\n";
        let other = Fixture::new(&inline);
        assert!(matches!(other.change(&own, Change::Remove("web2")), Err(ChangeError::OtherForm(_))));
        assert!(other.change(&own, Change::Add(&node("web3", "B"))).is_err());
        assert_eq!(other.text(), inline);
    }
}
