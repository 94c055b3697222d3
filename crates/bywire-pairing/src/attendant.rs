//! The thread that serves one user: it hears that user's programs, and looks at what they send.

use std::sync::Arc;
use std::time::Duration;

use bywire_sys::Errno;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};

use crate::protocol::PACKET_BYTES;
use crate::registry::{Attendant, Shared, change, lock};
use crate::word::Word;

/// Packets taken from one program before the user's others have their turn.
const TURN: usize = 64;
/// How long a packet waits for which there are no descriptors left, or none for its user.
const PAUSE: Duration = Duration::from_millis(10);
/// A thread without programs looks so often whether it is to end, should nobody have told it.
const REST: Duration = Duration::from_secs(60);
/// Users that are served at once.
const USERS_MAX: usize = 4096;
/// Looking at descriptors and answering takes little.
const STACK_BYTES: usize = 256 << 10;

/// Lets a program in, if its user may have one more. One that may not is dropped, and does without.
pub fn admit(shared: &Arc<Shared>, socket: Socket) {
    let Ok(user) = socket.credentials().map(|found| found.uid) else { return };
    // Dropped here in any case but the last, and after the lock.
    let socket = Arc::new(socket);
    let mut registry = lock(shared);
    if !registry.admit(user) {
        return drop(registry);
    }
    if !registry.attendants.contains_key(&user) {
        let attendant = if registry.attendants.len() < USERS_MAX { start(shared, user) } else { None };
        let Some(attendant) = attendant else {
            registry.turn_back(user);
            return drop(registry);
        };
        registry.attendants.insert(user, attendant);
    }
    registry.enter(user, &socket);
}

fn start(shared: &Arc<Shared>, user: u32) -> Option<Attendant> {
    let own = Poller::new().ok()?;
    let poller = own.share().ok()?;
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(format!("user {user}")).stack_size(STACK_BYTES);
    thread.spawn(move || serve(&shared, user, own)).ok()?;
    Some(Attendant { poller, programs: 0 })
}

fn serve(shared: &Shared, user: u32, mut poller: Poller) {
    let interrupter = Interrupter::here();
    loop {
        let tags = poller.wait(Some(REST)).map(<[u64]>::to_vec).unwrap_or_default();
        tags.into_iter().for_each(|tag| attend(shared, tag, &interrupter));
        let mut registry = lock(shared);
        // Whoever lets the next one in finds no thread, and starts another.
        if registry.attendants.get(&user).is_none_or(|attendant| attendant.programs == 0) {
            registry.attendants.remove(&user);
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
        // Whatever holds this up holds up the programs of this user.
        let word = Word::read(&buffer[..length], descriptors, interrupter);
        let is_well = word.is_some_and(|word| change(shared, |registry| registry.answer(tag, word)));
        if !is_well {
            return change(shared, |registry| registry.dismiss(tag));
        }
    }
    // Level-triggered: what is left comes again.
}
