//! The doorbells of one program that programs of other users ring. Each other user has one of its own, so no user can
//! disturb the connections of another one.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use bywire_sys::deferred::Held;
use bywire_sys::socket::Socket;

use crate::protocol::{Kind, Packet};

/// Other users with which one program may have connections at once. For each of them it has another doorbell.
pub const OTHER_USERS_MAX: usize = 16;

/// The doorbells of one program for other users.
#[derive(Debug)]
pub struct OtherUserDoorbells {
    /// The program's user.
    owner: u32,
    pub(super) doorbells: HashMap<u32, OtherUserDoorbell>,
    /// Withdrawn doorbells by name. The service keeps its copy until the program has closed its own, so that the
    /// program's close is not the last one.
    pub(super) withdrawn: HashMap<u64, CommonFile>,
}

/// A doorbell that the programs of one other user ring. It is withdrawn after the last connection with them.
#[derive(Debug)]
pub(super) struct OtherUserDoorbell {
    /// The token by which the program knows it.
    pub name: u64,
    pub file: Held,
    /// Connections with programs of that user.
    pub uses: usize,
}

/// A file that programs of two users have. Either user can delay its last close.
#[derive(Debug)]
pub struct CommonFile {
    pub file: Held,
    /// The user whose program hears it, and the user whose programs ring it.
    pub users: [u32; 2],
}

impl OtherUserDoorbells {
    /// No doorbells yet, of a program of this user.
    pub fn of(owner: u32) -> Self {
        Self { owner, doorbells: HashMap::new(), withdrawn: HashMap::new() }
    }

    /// Has the program as many as it may have, withdrawn ones included?
    pub fn is_full(&self) -> bool {
        self.doorbells.len() + self.withdrawn.len() >= OTHER_USERS_MAX
    }

    /// The name of the doorbell for a user.
    pub fn name(&self, user: u32) -> Option<u64> {
        self.doorbells.get(&user).map(|doorbell| doorbell.name)
    }

    /// The doorbell that programs of a user ring.
    pub fn file(&self, user: u32) -> Option<BorrowedFd<'_>> {
        self.doorbells.get(&user).map(|doorbell| doorbell.file.as_fd())
    }

    /// Counts one more connection with programs of a user. `false`: there is no doorbell for them yet.
    pub fn use_again(&mut self, user: u32) -> bool {
        let doorbell = self.doorbells.get_mut(&user);
        doorbell.map(|doorbell| doorbell.uses += 1).is_some()
    }

    /// Adds the doorbell for a first connection with programs of a user.
    pub fn add(&mut self, user: u32, name: u64, file: Held) {
        self.doorbells.insert(user, OtherUserDoorbell { name, file, uses: 1 });
    }

    /// Counts one connection less.
    pub fn release(&mut self, user: u32) {
        if let Some(doorbell) = self.doorbells.get_mut(&user) {
            doorbell.uses = doorbell.uses.saturating_sub(1);
        }
    }

    /// Withdraws the doorbells that no connection needs any more. If the program, at the other end of `socket`, has no
    /// room for the packet, the doorbell is kept until it has.
    pub fn withdraw_unused(&mut self, socket: &Socket) {
        let is_unused = |_: &u32, doorbell: &mut OtherUserDoorbell| doorbell.uses == 0;
        let unused: Vec<(u32, OtherUserDoorbell)> = self.doorbells.extract_if(is_unused).collect();
        for (user, doorbell) in unused {
            let is_told = socket.send(&Packet::new(Kind::Withdraw, doorbell.name).encode(), &[]).is_ok();
            if is_told {
                let file = CommonFile { file: doorbell.file, users: [self.owner, user] };
                self.withdrawn.insert(doorbell.name, file);
            } else {
                self.doorbells.insert(user, doorbell);
            }
        }
    }

    /// The withdrawn doorbell of this name, after the program has closed its own copy.
    pub fn take_withdrawn(&mut self, name: u64) -> Option<CommonFile> {
        self.withdrawn.remove(&name)
    }

    /// All of them, withdrawn ones included.
    pub fn into_files(self) -> impl Iterator<Item = CommonFile> {
        let owner = self.owner;
        let files = self.doorbells.into_iter();
        let files =
            files.map(move |(user, doorbell)| CommonFile { file: doorbell.file, users: [owner, user] });
        files.chain(self.withdrawn.into_values())
    }
}
