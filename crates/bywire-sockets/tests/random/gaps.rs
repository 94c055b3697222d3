//! What a script leaves out, and why: faults that are known and not mended, and what docs/sockets.md says is not done.

use crate::random::model::{Descriptor, Model, PLAIN, What};
use crate::random::step::{Kind, Step};

type IsMeant = fn(&Model, &Step) -> bool;

/// Reasons, each with what it is about.
const OFF: [(&str, IsMeant); 12] = [
    ("a set that is inherited through exec has the library's bell in it", |model, step| {
        let process = &model.processes[model.actors[step.actor].process];
        let is_inherited = |held: &Descriptor| matches!(held.what, What::Set(_)) && !held.closes_on_exec;
        becomes_another(step) && process.fds.values().any(is_inherited)
    }),
    ("posix_spawn with file actions over a close-on-exec socket loses the stream", |model, step| {
        step.kind == Kind::Spawn
            && step.flags & 1 != 0
            && model.holds(step.actor, step.fd).is_some_and(|held| held.closes_on_exec)
    }),
    ("what was sent and not read does not always come back to the kernel", |model, step| {
        brought_back(model, step).iter().any(|(connection, _)| {
            let is_reset = model.connections[*connection].ends.iter().any(|end| end.expects_reset);
            is_reset || (0..2).any(|side| model.under_way(PLAIN, *connection, side) > 0)
        })
    }),
    ("giving back more than the kernel takes waits", |model, step| {
        brought_back(model, step).iter().any(|(connection, _)| {
            let found = &model.connections[*connection];
            found.is_busy || found.ends.iter().any(|end| end.is_full)
        })
    }),
    ("quick_exit and the system call itself end a connection by a reset", |_, step| {
        step.kind == Kind::Exit && step.way >= 3
    }),
    ("close while another thread receives", |_, _| false),
    ("pwritev2, preadv2 and calls by `syscall` that have no name in the library", |_, step| {
        match step.kind {
            Kind::Send => step.way >= 9,
            Kind::Receive => step.way >= 8,
            Kind::Duplicate => step.way >= 5,
            Kind::Set => step.way >= 6,
            _ => false,
        }
    }),
    ("sandboxes", |_, step| step.kind == Kind::Sandbox),
    ("a limit of file lengths", |_, step| step.kind == Kind::Limit && step.way == 1),
    ("SA_RESETHAND loses SA_SIGINFO", |_, step| {
        step.kind == Kind::Handle
            && step.flags & libc::SA_RESETHAND != 0
            && step.flags & libc::SA_SIGINFO != 0
    }),
    ("dup3 with bad flags forgets a carried connection", |_, step| {
        step.kind == Kind::Duplicate && step.way == 2 && step.flags & !libc::O_CLOEXEC != 0
    }),
    ("sendfile on the least stack", |_, step| step.kind == Kind::Thread && step.way == 1),
];

pub fn is_off(model: &Model, step: &Step) -> bool {
    OFF.iter().filter(|(reason, _)| !is_switched_on(reason)).any(|(_, is_meant)| is_meant(model, step))
}

/// By a part of its reason in `BYWIRE_ON`, to see what still fails.
fn is_switched_on(reason: &str) -> bool {
    static ON: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("BYWIRE_ON").ok());
    ON.as_ref().is_some_and(|on| reason.contains(on))
}

/// Does another program get what may be inherited?
fn becomes_another(step: &Step) -> bool {
    matches!(step.kind, Kind::Exec | Kind::Spawn | Kind::Run) || (step.kind == Kind::Fork && step.way == 1)
}

/// The ends that a step brings back to the kernel.
fn brought_back(model: &Model, step: &Step) -> Vec<(usize, usize)> {
    if step.kind == Kind::Pass {
        return model.end_of(step.actor, step.fd).into_iter().collect();
    }
    if !becomes_another(step) {
        return Vec::new();
    }
    let process = &model.processes[model.actors[step.actor].process];
    let held = process.fds.values().filter(|held| !held.closes_on_exec);
    held.filter_map(|held| match held.what {
        What::End(connection, side) => Some((connection, side)),
        What::Set(_) => None,
    })
    .collect()
}

/// Is no step of that kind ever done?
pub fn is_kind_off(kind: Kind) -> bool {
    matches!(kind, Kind::Sandbox)
}
