//! Network namespaces: found by name, by process or by path. A thread enters one for a single action.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::process;

/// Where `ip netns` keeps its namespaces.
const NAMED: &str = "/run/netns";
/// The name of a namespace is a file name.
const NAME_BYTES_MAX: usize = 255;

/// How a network namespace is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamespaceName {
    /// The namespace of this process: `-`.
    Current,
    /// A namespace made by `ip netns add`.
    Named(String),
    /// The namespace of a process: `pid:N`.
    Process(Resident),
    /// A file such as `/proc/N/ns/net`.
    Path(PathBuf),
}

/// A process named by its number. The kernel reuses numbers, so all copies of this mean the process that had the
/// number when the name was first opened.
#[derive(Clone, Debug)]
pub struct Resident {
    number: u32,
    watch: Arc<OnceLock<OwnedFd>>,
}

/// A handle of a network namespace, which lives at least as long.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
}

impl FromStr for NamespaceName {
    type Err = Errno;

    /// # Errors
    /// [`Errno::INVAL`] if `text` has none of the forms.
    fn from_str(text: &str) -> Result<Self, Errno> {
        if text == "-" {
            return Ok(Self::Current);
        }
        if let Some(number) = text.strip_prefix("pid:") {
            let process = number.parse().ok().filter(|process| *process > 0);
            return process.map(|number| Self::Process(Resident::new(number))).ok_or(Errno::INVAL);
        }
        if text.starts_with('/') {
            return Ok(Self::Path(text.into()));
        }
        let is_name = !text.is_empty() && text.len() <= NAME_BYTES_MAX && text != "." && text != "..";
        if is_name && !text.contains(['/', '\0']) {
            Ok(Self::Named(text.to_owned()))
        } else {
            Err(Errno::INVAL)
        }
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Current => formatter.write_str("-"),
            Self::Named(name) => formatter.write_str(name),
            Self::Process(process) => write!(formatter, "pid:{}", process.number),
            Self::Path(path) => write!(formatter, "{}", path.display()),
        }
    }
}

impl NamespaceName {
    /// The file of the namespace.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Current => "/proc/thread-self/ns/net".into(),
            Self::Named(name) => PathBuf::from(NAMED).join(name),
            Self::Process(process) => format!("/proc/{}/ns/net", process.number).into(),
            Self::Path(path) => path.clone(),
        }
    }
}

impl Resident {
    /// The process that has this number when its name is first opened.
    pub fn new(number: u32) -> Self {
        Self { number, watch: Arc::default() }
    }

    /// Opens the process, unless that has been done before.
    fn meet(&self) -> Result<&OwnedFd, Errno> {
        if self.watch.get().is_none() {
            let number = i32::try_from(self.number).map_err(|_| Errno::SRCH)?;
            // Another thread that was faster opened the same process.
            let _ = self.watch.set(process::watch(number)?);
        }
        self.watch.get().ok_or(Errno::SRCH)
    }
}

impl PartialEq for Resident {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Resident {}

impl Hash for Resident {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl Namespace {
    /// Opens the namespace with this `name`.
    ///
    /// # Errors
    /// [`Errno::NOENT`] if there is none; [`Errno::SRCH`] if its process has ended, even if another process has the
    /// number now; [`Errno::ACCESS`] for a process that we may not look at.
    pub fn open(name: &NamespaceName) -> Result<Self, Errno> {
        let resident = match name {
            NamespaceName::Process(resident) => Some(resident.meet()?),
            _ => None,
        };
        let file = rustix::fs::open(name.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        // Checked after the open: if the process has not ended, the number was still its own.
        match resident {
            Some(process) if process::has_ended(process) => Err(Errno::SRCH),
            _ => Ok(Self { file: file? }),
        }
    }

    /// Makes an empty namespace, which ends with its last handle.
    ///
    /// # Errors
    /// [`Errno::PERM`] without CAP_SYS_ADMIN.
    pub fn fresh() -> Result<Self, Errno> {
        on_own_thread(|| {
            // SAFETY: FILES is not among the flags, so this thread goes on sharing its table of descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Self::open(&NamespaceName::Current)
        })?
    }

    /// Runs `action` inside, on a thread of its own that ends afterwards.
    ///
    /// # Errors
    /// [`Errno::PERM`] without CAP_SYS_ADMIN, [`Errno::INVAL`] for a file that is no network namespace.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> Result<T, Errno> {
        on_own_thread(|| {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(action())
        })?
    }

    /// Is this the calling thread's namespace?
    pub fn is_current(&self) -> bool {
        let Ok(current) = Self::open(&NamespaceName::Current) else { return false };
        let identity = |file: &OwnedFd| rustix::fs::fstat(file).map(|found| (found.st_dev, found.st_ino));
        identity(&self.file).is_ok_and(|ours| identity(&current.file) == Ok(ours))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `action` on a new thread. A thread that has changed its namespace must not be used for anything else.
fn on_own_thread<T: Send>(action: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned());
        let thread = thread.spawn_scoped(scope, action).map_err(|_| Errno::AGAIN)?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_print_as_given() {
        for text in ["-", "blue", "pid:17", "/proc/1/ns/net"] {
            assert_eq!(text.parse::<NamespaceName>().expect("a name").to_string(), text);
        }
        for text in ["", "pid:", "pid:0", "pid:x", "a/b", ".."] {
            assert_eq!(text.parse::<NamespaceName>(), Err(Errno::INVAL), "{text:?}");
        }
        assert_eq!(NamespaceName::Named("blue".to_owned()).path(), PathBuf::from("/run/netns/blue"));
    }

    #[test]
    fn the_current_namespace_is_found_and_a_fresh_one_is_another() {
        assert!(Namespace::open(&NamespaceName::Current).expect("ours").is_current());
        match Namespace::fresh() {
            Ok(fresh) => {
                assert!(!fresh.is_current());
                assert!(fresh.run(|| Namespace::open(&NamespaceName::Current)).expect("entered").is_ok());
            }
            Err(error) => println!("not run: no network namespace can be made here ({error}): run as root"),
        }
    }

    #[test]
    fn a_reused_process_number_is_not_the_named_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("`sleep`");
        let name: NamespaceName = format!("pid:{}", child.id()).parse().expect("a name");
        assert!(Namespace::open(&name).expect("its").is_current());
        child.kill().expect("killed");
        child.wait().expect("waited for");
        assert_eq!(Namespace::open(&name).err(), Some(Errno::SRCH));
        // Its number belongs to another process now: to this one.
        let NamespaceName::Process(resident) = &name else { unreachable!("told so") };
        let heir = NamespaceName::Process(Resident { number: std::process::id(), ..resident.clone() });
        assert_eq!(Namespace::open(&heir).err(), Some(Errno::SRCH));
        let told_anew: NamespaceName = heir.to_string().parse().expect("a name");
        assert!(Namespace::open(&told_anew).expect("ours").is_current());
    }

    #[test]
    fn a_file_other_than_a_namespace_is_refused() {
        let none = Namespace::open(&NamespaceName::Named("there-is-none-of-this-name".to_owned()));
        assert_eq!(none.err(), Some(Errno::NOENT));
        let wrong = Namespace::open(&NamespaceName::Path("/dev/null".into())).expect("a file");
        assert_eq!(wrong.run(|| ()), Err(Errno::INVAL));
    }
}
