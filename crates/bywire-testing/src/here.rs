//! What this machine lets tests do. What it does not is printed, with what to do about it.

use bywire_sys::namespace::Namespace;
use rustix::process::Uid;

/// Returns whether tests can become other users.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not run: only root can be other users: run as root");
    }
    is_root
}

/// Returns whether TAP devices can be made.
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

/// Does something as another user, on a thread of its own.
///
/// # Panics
///
/// When this user is not root.
pub fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let begin = || {
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
        act()
    };
    std::thread::scope(|scope| scope.spawn(begin).join().expect("no panic"))
}
