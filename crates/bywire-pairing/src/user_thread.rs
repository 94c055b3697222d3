//! The thread that serves one user: it receives from that user's programs, and checks what they send.

use std::sync::Arc;
use std::time::Duration;

use bywire_sys::Errno;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::poller::Poller;
use bywire_sys::process;
use bywire_sys::socket::{Received, Socket};

use crate::checked_packet::CheckedPacket;
use crate::protocol::PACKET_BYTES;
use crate::registry::{Shared, change, hear, lock};

/// Packets taken from one program before the user's other programs have their turn.
const TURN: usize = 64;
/// How long a packet waits if no descriptors are left, for this process or for the user.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a thread without programs checks whether it is to end, in case it was not told.
const REST: Duration = Duration::from_secs(60);
/// Checking descriptors and answering takes little stack.
const STACK_BYTES: usize = 256 << 10;

/// The outcome of a program's request to be let in.
enum Entry {
    /// Its user may have no more programs.
    Refused,
    /// The user's thread serves it.
    Heard,
    /// The user's thread will serve it, but has to be started now. If that fails, the program of this number goes.
    First(u64),
    /// The user has no thread, so the poller that the thread sleeps on has to be made first.
    Threadless,
}

/// Lets a program in if its user may have one more. Otherwise the program is dropped, and does without the service.
/// Threads are started without the lock, which is safe as only the calling thread starts any.
pub fn admit(shared: &Arc<Shared>, socket: Socket) {
    let Ok(caller) = socket.credentials() else { return };
    let user = caller.uid;
    let parent = parent(&socket);
    // A refused socket is dropped here, after the lock.
    let socket = Arc::new(socket);
    let mut own = None;
    loop {
        match enter(shared, user, &socket, parent, own.as_ref()) {
            Entry::Refused | Entry::Heard => return,
            Entry::Threadless => match Poller::new() {
                Ok(poller) => own = Some(poller),
                Err(_) => return,
            },
            Entry::First(tag) => {
                if !own.is_some_and(|own| start(shared, user, own)) {
                    change(shared, |registry| {
                        registry.dismiss(tag);
                        registry.leave_unattended(user);
                    });
                }
                return;
            }
        }
    }
}

/// The parent of the process at the other end, if that has not ended.
fn parent(socket: &Socket) -> Option<u32> {
    let (pid, process) = (socket.credentials().ok()?.pid, socket.watch_process().ok()?);
    let parent = process::parent(u32::try_from(pid).ok()?);
    // The number that was looked up may be another process's once this one has ended.
    parent.filter(|_| !process::has_ended(&process))
}

/// Adds a program to those that its user's thread serves. The first program of a user brings `own`, the poller that
/// the new thread sleeps on.
fn enter(
    shared: &Shared,
    user: u32,
    socket: &Arc<Socket>,
    parent: Option<u32>,
    own: Option<&Poller>,
) -> Entry {
    let mut registry = lock(shared);
    let is_first = !registry.user_threads.contains_key(&user);
    let own = match own {
        None if is_first => return Entry::Threadless,
        own => own.filter(|_| is_first),
    };
    let Some(place) = registry.admit(user) else { return Entry::Refused };
    if let Some(own) = own
        && !own.share().is_ok_and(|poller| registry.attend(user, poller))
    {
        registry.turn_back(user);
        return Entry::Refused;
    }
    match registry.enter(user, socket, place, parent) {
        Some(tag) if is_first => Entry::First(tag),
        Some(_) => Entry::Heard,
        None => {
            if is_first {
                registry.leave_unattended(user);
            }
            Entry::Refused
        }
    }
}

fn start(shared: &Arc<Shared>, user: u32, own: Poller) -> bool {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(format!("user {user}")).stack_size(STACK_BYTES);
    thread.spawn(move || serve(&shared, user, own)).is_ok()
}

fn serve(shared: &Shared, user: u32, mut poller: Poller) {
    let interrupter = Interrupter::here();
    loop {
        let tags = poller.wait(Some(REST)).map(<[u64]>::to_vec).unwrap_or_default();
        tags.into_iter().for_each(|tag| attend(shared, tag, &interrupter));
        let mut registry = lock(shared);
        // Without a thread, the next program of this user starts a new one.
        if registry.user_threads.get(&user).is_none_or(|user_thread| user_thread.programs == 0) {
            registry.leave_unattended(user);
            return;
        }
    }
}

fn attend(shared: &Shared, tag: u64, interrupter: &Interrupter) {
    for _ in 0..TURN {
        let Some(socket) = lock(shared).socket(tag) else { return };
        let mut buffer = [0; PACKET_BYTES];
        let (length, descriptors) = match socket.receive(&mut buffer) {
            Ok(Received::Packet(length, descriptors)) => (length, descriptors),
            Ok(Received::Nothing) => return,
            Err(Errno::MFILE | Errno::NFILE | Errno::DQUOT) => return std::thread::sleep(PAUSE),
            Ok(Received::Closed) | Err(_) => return change(shared, |registry| registry.dismiss(tag)),
        };
        // A delay here delays only the programs of this user.
        let packet = CheckedPacket::read(&buffer[..length], descriptors, interrupter);
        let is_well = packet.is_some_and(|packet| hear(shared, tag, packet, interrupter));
        if !is_well {
            return change(shared, |registry| registry.dismiss(tag));
        }
    }
    // The poller is level-triggered, so the remaining packets are reported again.
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use bywire_sys::listener::Listener;

    use super::*;

    /// Tells the process at the other end where to connect.
    const PATH: &str = "BYWIRE_TEST_PATH";

    #[test]
    fn the_parent_of_a_process_is_known_while_it_runs() {
        if let Some(path) = std::env::var_os(PATH) {
            let _connected = Socket::connect(Path::new(&path)).expect("connect");
            let _end = std::io::stdin().read(&mut [0]);
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path).expect("listen");
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(bywire_testing::alone("the_parent_of_a_process_is_known_while_it_runs"));
        let mut child = command.env(PATH, &path).stdin(Stdio::piped()).spawn().expect("it starts");
        let socket = bywire_testing::eventually("it connects", || listener.accept().expect("accept"));
        assert_eq!(parent(&socket), Some(std::process::id()));
        drop(child.stdin.take());
        // It has ended, and its number is its own until it is waited for.
        bywire_testing::eventually("it ends", || socket.peer_has_ended().then_some(()));
        assert!(process::parent(child.id()).is_some());
        assert_eq!(parent(&socket), None);
        assert!(child.wait().expect("ours").success());
    }
}
