//! `bywire status`: this machine's node, and what the programs of `bywire run` have carried.

use std::path::Path;

use anyhow::Result;
use bywire_measure::exit_status::complain;
use bywire_pairing::status::{self, AskError, Status};
use clap::Args;

use crate::run::{MACHINE_VARIABLE, OWN_SOCKET, Unheard, machine_socket, own_directory};
use crate::{count, node_status};

/// The state of this machine's services.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire status
  bywire status --json",
    after_help = "\
Shows this machine's node where `bywire up` runs, and what `bywire run` has carried. Exits with status 1 if neither \
service runs. --json says in \"service\" whether that of `bywire run` is running, absent or silent; \"node\" is null \
where `bywire up` does not run."
)]
pub struct StatusArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl StatusArgs {
    /// Asks the services and prints their answers.
    pub fn run(self) -> Result<()> {
        let node = node_status::ask()?;
        let asked = ask();
        let is_absent =
            asked.as_ref().is_err_and(|error| matches!(error.downcast_ref(), Some(AskError::Absent)));
        if self.json {
            let mut object = json(&asked);
            object["node"] = node_status::object(node.as_deref());
            crate::output::print(&format!("{object}\n"))?;
        } else if let Some(node) = &node {
            crate::output::print(&node_status::text(node))?;
        }
        match asked {
            // The node is all that there is.
            Err(_) if is_absent && node.is_some() => Ok(()),
            Err(error) => Err(error),
            Ok(_) if self.json => Ok(()),
            Ok(status) => crate::output::print(&text(&status)),
        }
    }
}

/// Programs that were started before the machine had a service talk to their user's own.
fn ask() -> Result<Status> {
    let named = machine_socket()?;
    let machine = named.as_deref().map_or(Ok(None), ask_at)?;
    let own = match own_directory() {
        Ok(directory) => ask_at(&directory.join(OWN_SOCKET))?,
        // Only the machine's service can answer.
        Err(_) if machine.is_some() => None,
        Err(error) => return Err(error),
    };
    let unheard = named.filter(|_| machine.is_none() && std::env::var_os(MACHINE_VARIABLE).is_some());
    let unheard = unheard.map(|socket| Unheard { socket, cause: AskError::Absent });
    match (machine, own, unheard) {
        (None, None, Some(unheard)) => Err(unheard.into()),
        (None, None, None) => Err(AskError::Absent.into()),
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
    match status::ask(socket) {
        Ok(status) => Ok(Some(status)),
        Err(AskError::Absent) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn json(asked: &Result<Status>) -> serde_json::Value {
    let service = match asked {
        Ok(_) => "running",
        Err(error) if matches!(error.downcast_ref(), Some(AskError::Silent)) => "silent",
        Err(_) => "absent",
    };
    let Ok(status) = asked else { return serde_json::json!({ "service": service }) };
    let reasons: serde_json::Map<_, _> =
        status.not_carried.iter().map(|(reason, count)| (format!("{reason:?}"), (*count).into())).collect();
    serde_json::json!({
        "service": service, "processes": status.processes, "carried": status.carried,
        "carried_ever": status.carried_ever, "waiting": status.waiting, "bytes": status.bytes, "cut": status.cut,
        "unused": status.unused, "not_carried": reasons,
    })
}

/// For people.
fn text(status: &Status) -> String {
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
        "{} {} paired, and over before a byte went through memory\n",
        ends(status.unused),
        was(status.unused)
    );
    let cut = status.cut;
    text += &format!("{} {} cut by a kill: {} saw a reset\n", ends(cut), was(cut), peers(cut));
    text += &format!("{} {} for the other one\n", ends(status.waiting), is(status.waiting));
    for (reason, count) in &status.not_carried {
        text += &format!("{count} not carried: {}\n", reason.text());
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
            ..Status::default()
        };
        assert_eq!(
            text(&one),
            "1 program, 1 connection carried now, 1 since the service began\n\
             1 byte was sent in memory over connections that have ended\n\
             1 end was paired, and over before a byte went through memory\n\
             1 end was cut by a kill: its peer saw a reset\n\
             1 end waits for the other one\n"
        );
        let none = text(&Status::default());
        assert!(none.starts_with("0 programs, 0 connections carried now"), "{none}");
        assert!(none.contains("0 ends were cut by a kill: their peers saw a reset\n0 ends wait "), "{none}");
    }
}
