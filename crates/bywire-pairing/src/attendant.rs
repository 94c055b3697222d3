//! The thread that serves one user: it hears that user's programs, and looks at what they send.

use std::sync::Arc;
use std::time::Duration;

use bywire_sys::Errno;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};

use crate::protocol::PACKET_BYTES;
use crate::registry::{Shared, change, hear, lock};
use crate::word::Word;

/// Packets taken from one program before the user's others have their turn.
const TURN: usize = 64;
/// How long a packet waits for which there are no descriptors left, or none for its user.
const PAUSE: Duration = Duration::from_millis(10);
/// A thread without programs looks so often whether it is to end, should nobody have told it.
const REST: Duration = Duration::from_secs(60);
/// Looking at descriptors and answering takes little.
const STACK_BYTES: usize = 256 << 10;

/// What comes of a program that wants to be let in.
enum Entry {
    /// Its user may have no more.
    Refused,
    /// Its user's thread hears it.
    Heard,
    /// So will a thread that is to be started now; if there is none, the program of this number goes.
    First(u64),
    /// Its user has no thread, so what that would sleep on is to be made first.
    Threadless,
}

/// Lets a program in, if its user may have one more. One that may not is dropped, and does without. A thread is started
/// without the lock: only this one starts any.
pub fn admit(shared: &Arc<Shared>, socket: Socket) {
    let Ok(user) = socket.credentials().map(|found| found.uid) else { return };
    // Dropped here in any case but the last, and after the lock.
    let socket = Arc::new(socket);
    let mut own = None;
    loop {
        match enter(shared, user, &socket, own.as_ref()) {
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

/// Puts a program among those that its user's thread serves: one that sleeps on `own` if there is none yet.
fn enter(shared: &Shared, user: u32, socket: &Arc<Socket>, own: Option<&Poller>) -> Entry {
    let mut registry = lock(shared);
    let is_first = !registry.attendants.contains_key(&user);
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
    match registry.enter(user, socket, place) {
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
        // Whoever lets the next one in finds no thread, and starts another.
        if registry.attendants.get(&user).is_none_or(|attendant| attendant.programs == 0) {
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
        // Whatever holds this up holds up the programs of this user.
        let word = Word::read(&buffer[..length], descriptors, interrupter);
        let is_well = word.is_some_and(|word| hear(shared, tag, word));
        if !is_well {
            return change(shared, |registry| registry.dismiss(tag));
        }
    }
    // Level-triggered: what is left comes again.
}
