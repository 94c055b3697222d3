//! The part of `bywire status` about the programs of `bywire run`.

use std::path::Path;

use anyhow::Result;
use bywire_command::exit_status::complain;
use bywire_pairing::status::{self, QueryError, Status};

use crate::count;
use crate::run::{MACHINE_VARIABLE, OWN_SOCKET, Unheard, machine_socket, own_directory};

/// Programs that were started before the machine had a service talk to their user's own.
pub fn ask() -> Result<Status> {
    let named = machine_socket()?;
    let machine = named.as_deref().map_or(Ok(None), ask_at)?;
    let own = match own_directory() {
        Ok(directory) => ask_at(&directory.join(OWN_SOCKET))?,
        // Only the machine's service can answer.
        Err(_) if machine.is_some() => None,
        Err(error) => return Err(error),
    };
    let unheard = named.filter(|_| machine.is_none() && std::env::var_os(MACHINE_VARIABLE).is_some());
    let unheard = unheard.map(|socket| Unheard { socket, cause: QueryError::Absent });
    match (machine, own, unheard) {
        (None, None, Some(unheard)) => Err(unheard.into()),
        (None, None, None) => Err(QueryError::Absent.into()),
        (machine, own, unheard) => {
            if let Some(unheard) = unheard {
                complain("bywire", format!("{unheard}: this is what your own service says"));
            }
            Ok(machine.unwrap_or_default() + own.unwrap_or_default())
        }
    }
}

/// `None` where no service listens.
fn ask_at(socket: &Path) -> Result<Option<Status>> {
    match status::query(socket) {
        Ok(status) => Ok(Some(status)),
        Err(QueryError::Absent) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The JSON object of `bywire status --json`, without the node.
pub fn object(asked: &Result<Status>) -> serde_json::Value {
    let service = match asked {
        Ok(_) => "running",
        Err(error) => match error.downcast_ref() {
            Some(QueryError::Silent) => "silent",
            Some(QueryError::OtherVersion) => "other version",
            _ => "absent",
        },
    };
    let Ok(status) = asked else { return serde_json::json!({ "service": service }) };
    let reasons: serde_json::Map<_, _> =
        status.not_carried.iter().map(|(reason, count)| (format!("{reason:?}"), (*count).into())).collect();
    serde_json::json!({
        "service": service, "processes": status.processes, "carried": status.carried,
        "carried_ever": status.carried_ever, "waiting": status.waiting, "bytes": status.bytes, "cut": status.cut,
        "unused": status.unused, "memory": status.memory, "not_carried": reasons,
    })
}

/// For people.
pub fn text(status: &Status) -> String {
    let ends = |count: u64| count::of(count, "end", "ends");
    let (is, was, peers) = (
        |count: u64| if count == 1 { "waits" } else { "wait" },
        |count: u64| if count == 1 { "was" } else { "were" },
        |count: u64| if count == 1 { "its peer" } else { "their peers" },
    );
    let mut text = format!(
        "{}, {} carried now, {} since the service began\n",
        count::of(status.processes, "program", "programs"),
        count::of(status.carried, "connection", "connections"),
        status.carried_ever
    );
    text += &format!(
        "{} {} sent in memory over connections that have ended\n",
        count::of(status.bytes, "byte", "bytes"),
        was(status.bytes)
    );
    text += &format!(
        "{} {} paired, and closed before a byte went through memory\n",
        ends(status.unused),
        was(status.unused)
    );
    let cut = status.cut;
    text += &format!("{} {} cut by a kill: {} saw a reset\n", ends(cut), was(cut), peers(cut));
    text += &format!("{} {} for the other one\n", ends(status.waiting), is(status.waiting));
    // Programs report what they use from 1 MiB on.
    if status.memory > 0 {
        text += &format!(
            "{} of memory in use by carried connections\n",
            count::of(status.memory, "byte", "bytes")
        );
    }
    for (reason, count) in &status.not_carried {
        text += &format!("{count} not carried: {}\n", reason.text());
    }
    if status.processes > 0 {
        text += "a running program reports what was not carried when it ends; BYWIRE_LOG has each connection as it closes\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_the_right_singular_or_plural() {
        let one = Status {
            processes: 1,
            carried: 1,
            carried_ever: 1,
            waiting: 1,
            bytes: 1,
            cut: 1,
            unused: 1,
            memory: 1,
            ..Status::default()
        };
        assert_eq!(
            text(&one),
            "1 program, 1 connection carried now, 1 since the service began\n\
             1 byte was sent in memory over connections that have ended\n\
             1 end was paired, and closed before a byte went through memory\n\
             1 end was cut by a kill: its peer saw a reset\n\
             1 end waits for the other one\n\
             1 byte of memory in use by carried connections\n\
             a running program reports what was not carried when it ends; BYWIRE_LOG has each connection as it closes\n"
        );
        let none = text(&Status::default());
        assert!(none.starts_with("0 programs, 0 connections carried now"), "{none}");
        assert!(!none.contains("a running program"), "{none}");
        assert!(none.contains("0 ends were cut by a kill: their peers saw a reset\n0 ends wait "), "{none}");
    }
}
