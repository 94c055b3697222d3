//! Clients that have proved nothing yet. There is a bounded number of places for them. When all are taken, one more client takes
//! the place of another one. So clients that say nothing keep nobody out.

use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// The places.
const STRANGERS_MAX: usize = 64;

/// The clients, in the order in which they came.
#[derive(Default)]
pub(super) struct Strangers(Mutex<List>);

#[derive(Default)]
struct List {
    strangers: Vec<Stranger>,
    next_number: u64,
}

struct Stranger {
    number: u64,
    ip: IpAddr,
    stream: TcpStream,
}

/// The place of a client, until it is dropped.
pub(super) struct Place {
    strangers: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    /// Gives a client a place. The connection that loses its place for it ends: the oldest one of the address that has most.
    pub fn admit(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Place> {
        let (ip, stream) = (stream.peer_addr()?.ip(), stream.try_clone()?);
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.strangers.len() >= STRANGERS_MAX {
            let of = |ip| list.strangers.iter().filter(|other| other.ip == ip).count();
            let most = list.strangers.iter().map(|other| of(other.ip)).max();
            let victim = list.strangers.iter().position(|other| Some(of(other.ip)) == most);
            if let Some(victim) = victim {
                let _gone = list.strangers.remove(victim).stream.shutdown(Shutdown::Both);
            }
        }
        let number = list.next_number;
        list.next_number += 1;
        list.strangers.push(Stranger { number, ip, stream });
        Ok(Place { strangers: Arc::clone(self), number })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut list = self.strangers.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.strangers.retain(|stranger| stranger.number != self.number);
    }
}
