//! Address spaces: each network namespace is one, unless a configuration joins several.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::namespace::{Namespace, NamespaceName};
use bywire_sys::socket::Socket;
use bywire_sys::tcp;

use crate::identity::Name;

/// The most namespaces that may be named in all.
pub const NAMES_MAX: usize = 256;
/// How often namespaces are looked for by their names to find an unknown one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The namespaces in which an address names the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// A namespace, by its cookie.
    Own(u64),
    /// Namespaces that were joined.
    Joined(usize),
}

/// The joined namespaces, and the names by which they are found.
///
/// Looking for them starts a thread for each name, so it has a lock of its own. Only connections in a namespace that
/// is not known yet wait for it.
#[derive(Debug, Default)]
pub struct Spaces {
    joined: Vec<Vec<NamespaceName>>,
    known: RwLock<HashMap<u64, usize>>,
    /// The time of the last look.
    looked: Mutex<Option<Instant>>,
}

/// Why namespaces cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A namespace is in two spaces, so its addresses would mean two things.
    #[error("{0} is in two address spaces: leave it in one")]
    Twice(String),
    /// Too many namespaces are named.
    #[error("more than {NAMES_MAX} namespaces are named")]
    TooMany,
}

impl Spaces {
    /// Makes one address space of each entry of `joined`.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn new(joined: Vec<Vec<NamespaceName>>) -> Result<Self, JoinError> {
        let all: Vec<&NamespaceName> = joined.iter().flatten().collect();
        if all.len() > NAMES_MAX {
            return Err(JoinError::TooMany);
        }
        match all.iter().enumerate().find(|(at, name)| all.iter().take(*at).any(|other| other == *name)) {
            Some((_, name)) => Err(JoinError::Twice(name.to_string())),
            None => Ok(Self { joined, ..Self::default() }),
        }
    }

    /// The names without a namespace, or with one that we may not enter, each with the reason.
    pub fn absent(&self) -> Vec<(String, Errno)> {
        let names = self.joined.iter().flatten();
        names.filter_map(|name| Some((name.to_string(), cookie(name).err()?))).collect()
    }

    /// The address space of a connection in `namespace`. Does not wait if the namespace is known.
    pub fn of(&self, namespace: u64, names: [Name; 2]) -> Space {
        if self.joined.is_empty() || names.iter().any(is_private) {
            return Space::Own(namespace);
        }
        if !self.knows(namespace) {
            self.look_if_due(namespace);
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&namespace).map_or(Space::Own(namespace), |joined| Space::Joined(*joined))
    }

    fn knows(&self, namespace: u64) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains_key(&namespace)
    }

    fn look_if_due(&self, namespace: u64) {
        let mut looked: MutexGuard<'_, _> = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have looked while this one waited for the lock.
        let is_due = looked.is_none_or(|looked: Instant| looked.elapsed() >= LOOK_EVERY);
        if is_due && !self.knows(namespace) {
            let found = self.look();
            *self.known.write().unwrap_or_else(PoisonError::into_inner) = found;
            *looked = Some(Instant::now());
        }
    }

    /// Finds the namespaces that have the names now. They change as containers come and go.
    fn look(&self) -> HashMap<u64, usize> {
        let (mut known, mut doubtful) = (HashMap::new(), Vec::new());
        for (index, names) in self.joined.iter().enumerate() {
            for cookie in names.iter().filter_map(|name| cookie(name).ok()) {
                if known.insert(cookie, index).is_some_and(|other| other != index) {
                    doubtful.push(cookie);
                }
            }
        }
        // One namespace has two names in two spaces.
        known.retain(|cookie, _| !doubtful.contains(cookie));
        known
    }
}

/// The kernel's number for the namespace with this name.
fn cookie(name: &NamespaceName) -> Result<u64, Errno> {
    Namespace::open(name)?.run(|| tcp::namespace(&Socket::pair()?.0))?
}

/// Returns whether the name means another end in every namespace. The inodes of Unix sockets are compared within one
/// namespace only.
fn is_private(name: &Name) -> bool {
    let Name::Address(address) = name else { return true };
    match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NamespaceName {
        text.parse().expect("a name")
    }

    #[test]
    fn only_named_namespaces_are_joined_and_loopback_addresses_never() {
        let here = cookie(&NamespaceName::Current).expect("entering it takes no more than being there");
        let routed =
            ["10.1.0.1:1", "10.1.0.2:2"].map(|address| Name::Address(address.parse().expect("an address")));
        let alone = Spaces::default();
        assert_eq!(alone.of(here, routed), Space::Own(here));
        let joined =
            || Spaces::new(vec![vec![name("nobody")], vec![NamespaceName::Current]]).expect("spaces");
        assert_eq!(joined().of(here, routed), Space::Joined(1));
        assert_eq!(joined().of(here + 1, routed), Space::Own(here + 1));
        for private in ["127.0.0.1:1", "[::1]:1", "[fe80::1]:1", "169.254.0.1:1"] {
            let private = Name::Address(private.parse().expect("an address"));
            assert_eq!(joined().of(here, [routed[0], private]), Space::Own(here), "{private:?}");
            assert_eq!(joined().of(here, [private, routed[0]]), Space::Own(here), "{private:?}");
        }
        assert_eq!(joined().absent().len(), 1);
    }

    #[test]
    fn a_namespace_in_two_spaces_is_in_none() {
        let twice = vec![vec![name("blue")], vec![name("red"), name("blue")]];
        assert!(matches!(Spaces::new(twice), Err(JoinError::Twice(name)) if name == "blue"));
        let routed =
            ["10.1.0.1:1", "10.1.0.2:2"].map(|address| Name::Address(address.parse().expect("an address")));
        let here = cookie(&NamespaceName::Current).expect("ours");
        let other_name = name(&format!("/proc/{}/ns/net", std::process::id()));
        let spaces = Spaces::new(vec![vec![NamespaceName::Current], vec![other_name]]).expect("two names");
        assert_eq!(spaces.of(here, routed), Space::Own(here));
    }
}
