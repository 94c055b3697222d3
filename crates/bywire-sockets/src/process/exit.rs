//! The orderly exit of the process.

use core::sync::atomic::Ordering;

use bywire_ring::stream::News;

use crate::connection::sockets::{self, Socket};
use crate::connection::{guard, log, outcome};
use crate::datagram::sockets as datagrams;
use crate::epoll::{handover, sets};
use crate::os::{own_call, pid};
use crate::pairing::{account, flows};

/// The process exits in order: its peers are told to check.
pub fn end() {
    if own_call::are_over() || !pid::is_noted() {
        return;
    }
    guard::end_guards();
    let tally = account::tally();
    sets::let_go_of_all();
    sockets::each_held(|socket, fd| {
        let is_last = sockets::is_last_holder(socket.shared);
        if let Some(Ok(connection)) = sockets::by_index(fd, socket.index).map(Socket::carried) {
            match is_last {
                true => connection.prepare_end(),
                // The counted holders may be gone: a child that has executed another program counts for as long as that
                // runs.
                false => connection.leave_to_others(true),
            }
            connection.tell(News::Route);
        }
        if is_last {
            log::ending(socket);
            outcome::ended(socket);
        }
        sockets::let_go(socket.shared);
        // No other thread is using it: the record may be reused.
        // SeqCst: pairs with the additions and exchanges of `hold::enter` and `hold::leave`.
        if is_last && socket.local.users.load(Ordering::SeqCst) == 1 {
            // Otherwise its registrations would be those of the next socket in this record.
            handover::forget(socket);
            // Release: pairs with the exchange in `sockets::track`.
            socket.shared.used.store(0, Ordering::Release);
        }
    });
    datagrams::end_all(flows::end_flow);
    sockets::end();
    outcome::report(account::note);
    account::leave(tally);
}

/// A thread ends by itself. If it is the last one, the process ends with it.
pub fn end_thread() {
    if own_call::are_over() {
        return;
    }
    if pid::is_alone() {
        end();
    }
}
