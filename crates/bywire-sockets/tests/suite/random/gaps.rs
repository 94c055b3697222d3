//! Steps that a script leaves out, and why: known faults, and what docs/sockets.md lists as not done.

use crate::random::model::{Descriptor, Model, PLAIN, Pending, Sleeps, What};
use crate::random::step::{Kind, Step};

type IsMeant = fn(&Model, &Step) -> bool;

/// The reasons, each with the steps that it concerns.
const OFF: [(&str, IsMeant); 8] = [
    (
        "a set that is inherited through exec: behind it are other faults, of a close under a receive and of full rings",
        |model, step| {
            let process = &model.processes[model.actors[step.actor].process];
            let is_inherited = |held: &Descriptor| matches!(held.what, What::Set(_)) && !held.closes_on_exec;
            becomes_another(step) && process.fds.values().any(is_inherited)
        },
    ),
    ("handing on an end that has shut down both ways, with bytes unread", |model, step| {
        brought_back(model, step).iter().any(|(connection, side)| {
            let end = &model.connections[*connection].ends[*side];
            let is_shut = end.has_shut_sending && end.has_shut_receiving;
            is_shut && model.under_way(PLAIN, *connection, *side) > 0
        })
    }),
    ("handing on an end of a Unix stream that has shut down receiving, with bytes unread", |model, step| {
        brought_back(model, step).iter().any(|(connection, side)| {
            let found = &model.connections[*connection];
            let is_deaf = found.is_unix() && found.ends[*side].has_shut_receiving;
            is_deaf && model.under_way(PLAIN, *connection, *side) > 0
        })
    }),
    (
        "an edge-triggered registration for the room of a Unix stream, which the kernel reports at each read (docs/carried-connections.md)",
        |model, step| {
            let end = (step.kind == Kind::Control).then(|| model.end_of(step.actor, step.fd)).flatten();
            let is_meant = step.flags & libc::EPOLLET != 0 && step.flags & libc::EPOLLOUT != 0;
            is_meant && end.is_some_and(|(connection, _)| model.connections[connection].is_unix())
        },
    ),
    // The last bytes of an ended stream that exceed the kernel's room cannot be returned (docs/sockets.md).
    (
        "handing on an end whose peer was handed on, or has ended its stream, with a full ring: it is reset",
        |model, step| {
            let ends = brought_back(model, step);
            ends.iter().any(|(connection, side)| {
                let found = &model.connections[*connection];
                let peer = &found.ends[1 - side];
                // Closing what a set watches returns it as well.
                let is_watched = model.sets.iter().any(|set| set.contains(&(*connection, 1 - side)));
                let goes_on = !peer.was_handed_on
                    && !peer.has_shut_sending
                    && !is_watched
                    && !ends.contains(&(*connection, 1 - side));
                // Bytes that this end owes to a peer that was handed on come as that one reads.
                let owes = found.is_unix() && found.ends[*side].is_full && peer.was_handed_on;
                found.is_busy || owes || peer.is_full && !goes_on
            })
        },
    ),
    // A call that continues without its descriptor is left a duplicate (docs/sockets.md).
    ("closing what another thread receives from, where no descriptor may be made", |model, step| {
        let process = &model.processes[model.actors[step.actor].process];
        let fd = if step.kind == Kind::Close { step.fd } else { step.to };
        let closes = matches!(step.kind, Kind::Close | Kind::Duplicate);
        let end = closes.then(|| model.end_of(step.actor, fd)).flatten();
        process.is_limited && end.is_some_and(|(connection, side)| model.has_receiver(connection, side))
    }),
    (
        "registering an end where a process sleeps that has not got it, and hears nothing of a carried one (docs/sockets.md)",
        |model, step| {
            let end = (step.kind == Kind::Control).then(|| model.end_of(step.actor, step.fd)).flatten();
            let set = model.holds(step.actor, step.to).map(|held| held.what);
            let (Some((connection, side)), Some(What::Set(set))) = (end, set) else { return false };
            let sleeps =
                |pending: Pending| matches!(pending.sleeps, Sleeps::Wait { set: at, .. } if at == set);
            let has_it = |process: usize| {
                let fds = &model.processes[process].fds;
                fds.values().any(|held| held.what == What::End(connection, side))
            };
            let mut others = model.actors.iter().filter(|actor| actor.is_alive);
            others.any(|actor| actor.pending.is_some_and(sleeps) && !has_it(actor.process))
        },
    ),
    (
        "shutting down an end where TCP still holds one's end back, behind bytes that do not fit",
        |model, step| {
            let end = (step.kind == Kind::Shutdown).then(|| model.end_of(step.actor, step.fd)).flatten();
            end.is_some_and(|(connection, _)| (0..2).any(|side| model.is_end_hidden(connection, side)))
        },
    ),
];

/// Why a step is left out, if it is.
pub fn reason(model: &Model, step: &Step) -> Option<&'static str> {
    let off = OFF.iter().filter(|(reason, _)| !is_switched_on(reason));
    off.map(|(reason, is_meant)| (*reason, is_meant))
        .find_map(|(reason, is_meant)| is_meant(model, step).then_some(reason))
}

/// Selected by a part of its reason in `BYWIRE_ON`, which may have several parts separated by semicolons, to see what
/// still fails.
fn is_switched_on(reason: &str) -> bool {
    static ON: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("BYWIRE_ON").ok());
    ON.as_ref().is_some_and(|on| on.split(';').any(|part| reason.contains(part)))
}

/// Whether another program gets what may be inherited.
fn becomes_another(step: &Step) -> bool {
    matches!(step.kind, Kind::Exec | Kind::Spawn | Kind::Run) || (step.kind == Kind::Fork && step.way == 1)
}

/// The ends that a step returns to the kernel.
fn brought_back(model: &Model, step: &Step) -> Vec<(usize, usize)> {
    if step.kind == Kind::Pass {
        return model.end_of(step.actor, step.fd).into_iter().collect();
    }
    if step.kind == Kind::Attach {
        return model.end_of(step.actor, step.to).into_iter().collect();
    }
    if !becomes_another(step) && step.kind != Kind::Sandbox {
        return Vec::new();
    }
    let process = &model.processes[model.actors[step.actor].process];
    // A spawned program gets copies of others as well, once they were named.
    let held = process.fds.values();
    held.filter_map(|held| match held.what {
        What::End(connection, side) => Some((connection, side)),
        What::Set(_) => None,
    })
    .collect()
}
