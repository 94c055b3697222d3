//! What this machine lets tests do. What it does not is printed, with what to do about it.

use bywire_sys::namespace::Namespace;

/// Can tests become other users?
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not run: only root can be other users: run as root");
    }
    is_root
}

/// Can TAP devices be made?
pub fn has_taps() -> bool {
    let found = std::fs::metadata("/dev/net/tun");
    if let Err(error) = &found {
        println!("not run: no TAP device can be made here (/dev/net/tun: {error}): `modprobe tun`");
    }
    found.is_ok()
}

/// A network namespace, if one can be made.
pub fn namespace() -> Option<Namespace> {
    let made = Namespace::fresh();
    if let Err(error) = &made {
        println!("not run: no network namespace can be made here ({error}): run as root");
    }
    made.ok()
}
