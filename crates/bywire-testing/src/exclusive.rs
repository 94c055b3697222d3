//! Locks between tests. Tests run in processes of their own, so a mutex would not keep them apart.

use std::fs::{File, OpenOptions};

/// A lock that is held. Dropping it, or the end of the process, releases it.
#[derive(Debug)]
pub struct Exclusive(#[expect(dead_code, reason = "the open file is the lock")] File);

/// Waits until no other test of this user holds the lock of this name, and takes it.
///
/// # Panics
///
/// When the lock's file cannot be made in the directory for temporary files.
pub fn exclusive(name: &str) -> Exclusive {
    let user = rustix::process::geteuid().as_raw();
    let path = std::env::temp_dir().join(format!("bywire-tests-{user}-{name}.lock"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.lock().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Exclusive(file)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::exclusive;

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let held = exclusive("self-test");
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _second = exclusive("self-test");
                sender.send(()).expect("the test listens");
            });
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err(), "two hold it at once");
            drop(held);
            receiver.recv_timeout(Duration::from_secs(10)).expect("the second gets it");
        });
    }
}
