//! `bywire status`: this machine's node, and what the programs of `bywire run` have carried.

use anyhow::{Result, bail};
use bywire_pairing::status::QueryError;
use clap::Args;

use crate::{node_status, run_status};

/// The state of this machine's services.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire status
  bywire status --json",
    after_help = "\
Shows this machine's node if `bywire up` is running, and what `bywire run` has carried. Exits with status 1 if neither \
service is running. In the JSON object \"service\" says whether the service of `bywire run` is running, absent or \
silent, and \"node\" is null without `bywire up`."
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
        let asked = run_status::ask();
        let is_absent =
            asked.as_ref().is_err_and(|error| matches!(error.downcast_ref(), Some(QueryError::Absent)));
        if self.json {
            let mut object = run_status::object(&asked);
            object["node"] = node_status::object(node.as_deref());
            bywire_command::output::print(&format!("{object}\n"))?;
        } else if let Some(node) = &node {
            bywire_command::output::print(&node_status::text(node))?;
        }
        match asked {
            // The node is all that there is.
            Err(_) if is_absent && node.is_some() => Ok(()),
            Err(_) if is_absent => {
                let named = std::env::var_os("BYWIRE_RUNTIME_DIR").filter(|named| !named.is_empty());
                let place = named.map(|named| format!(" in {}", named.display())).unwrap_or_default();
                bail!(
                    "no service runs{place}: `bywire up` starts this machine's node, and `bywire run` the pairing service"
                )
            }
            Err(error) => Err(error),
            Ok(_) if self.json => Ok(()),
            Ok(status) => bywire_command::output::print(&run_status::text(&status)),
        }
    }
}
