//! `bywire service`: services of systemd, as distributions ship them, run by `bywire run`.

mod carriage;
mod change;
mod claim;
mod cluster;
#[cfg(test)]
mod debian_units;
mod drop_in;
mod locate;
mod manager;
mod refusal;
mod sandbox;
mod settings;
mod start_line;
mod state;
mod unit_file;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bywire_command::exit_status::{INTERRUPTED, Misuse, complain};
use bywire_command::output::print;
use bywire_command::shell::quoted;
use bywire_pairing::{launch, status};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::run::{MACHINE_SOCKET, machine_socket};
use carriage::Account;
use change::{Change, Interrupt, Outcome, Undone};
use claim::Claim;
use drop_in::DropIn;
use locate::Found;
use refusal::Refusal;
use sandbox::Installation;

/// Arguments of `bywire service`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire service add redis-server
  bywire service add redis-server --dry-run
  bywire service add postgresql@15-main --restart
  bywire service list
  bywire service check
  bywire service check nginx --json
  bywire service remove redis-server --restart",
    after_help = "\
`add` writes a drop-in, zz-bywire.conf, into the unit's directory below /etc/systemd/system. It starts the unit's program by \
`bywire run`, with the exceptions that the unit's sandbox needs. A unit that does not come up with it is put back and restarted \
as it was. So is one when Ctrl-C is pressed. Clients are carried if they run by `bywire run`, too."
)]
pub struct ServiceArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Start a service by `bywire run` from now on
    #[command(
        before_help = "Examples:\n  bywire service add nginx --dry-run\n  bywire service add nginx --restart\n  bywire service add postgresql@15-main"
    )]
    Add(AddArgs),
    /// Show the services that were added
    #[command(before_help = "Examples:\n  bywire service list\n  bywire service list --json")]
    List(ListArgs),
    /// Tell whether the processes of services are carried, and why not
    #[command(
        before_help = "Examples:\n  bywire service check\n  bywire service check redis-server\n  bywire service check --json",
        after_help = "Exits with status 1 if a service is not carried. Root sees the processes of all users."
    )]
    Check(CheckArgs),
    /// Start a service as its package has it from now on
    #[command(
        before_help = "Examples:\n  bywire service remove nginx\n  bywire service remove nginx --restart"
    )]
    Remove(RemoveArgs),
}

#[derive(Args, Debug)]
struct AddArgs {
    /// The service, with or without `.service`
    name: String,
    /// Restart the service without asking
    #[arg(long)]
    restart: bool,
    /// Print the drop-in and what would be done, and change nothing
    #[arg(long, conflicts_with = "restart")]
    dry_run: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// The service [default: all that were added]
    name: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// The service, with or without `.service`
    name: String,
    /// Restart the service without asking
    #[arg(long)]
    restart: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ServiceArgs {
    /// Runs the subcommand.
    pub fn run(self) -> Result<()> {
        let done = match self.action {
            Action::Add(arguments) => arguments.run(),
            Action::List(arguments) => arguments.run(),
            Action::Check(arguments) => arguments.run(),
            Action::Remove(arguments) => arguments.run(),
        };
        match done {
            Err(error) if matches!(error.downcast_ref(), Some(Undone::Interrupted(_))) => {
                complain("bywire", format!("{error:#}"));
                std::process::exit(INTERRUPTED);
            }
            Err(error) if error.is::<Refusal>() => Err(Misuse::of(error)),
            other => other,
        }
    }
}

impl AddArgs {
    fn run(self) -> Result<()> {
        let found = locate::find(&self.name)?;
        let installation = installation()?;
        let has_other_user = found.unit.sandbox.value("User").is_some_and(|user| user != "root")
            || found.unit.sandbox.is_on("DynamicUser")
            || found.unit.cluster.is_some();
        locate::check_installation(&installation, has_other_user)?;
        let drop_in = drop_in::plan(&found.unit, &installation)?;
        if self.dry_run {
            return print(&match self.json {
                true => format!("{}\n", object(&found, &drop_in, None, None)),
                false => explanation(&found, &drop_in),
            });
        }
        let command = format!("bywire service add {}", quoted(&self.name));
        require_root(&command)?;
        let unit = found.unit.name.as_str();
        let path = found.drop_in();
        if fs::read_to_string(&path).is_ok_and(|text| drop_in::original(&text).is_none()) {
            bail!("{} is not of `bywire service`: rename it first", path.display());
        }
        drop_in.notes.iter().for_each(|note| complain("bywire", note));
        if !manager::is_running() {
            let _claim = Claim::of(unit)?;
            change::put(&path, Some(&drop_in.text))?;
            return print(&match self.json {
                true => format!("{}\n", object(&found, &drop_in, None, None)),
                false => format!(
                    "systemd does not run here: {unit} was read from its files, and {} holds from its next start on\n",
                    path.display()
                ),
            });
        }
        require_pairing(&installation)?;
        let restart = self.restart || asks(self.json, unit);
        let interrupt = Interrupt::watch()?;
        let _claim = Claim::of(unit)?;
        let change = Change { unit, path: &path, text: Some(&drop_in.text) };
        let outcome = change.apply(restart, &interrupt)?;
        let account = match outcome {
            Outcome::Restarted => Some(Account::of(unit, &drop_in.text)?),
            Outcome::Stopped | Outcome::Waits => None,
        };
        print(&match self.json {
            true => format!("{}\n", object(&found, &drop_in, Some(outcome), account.as_ref())),
            false => {
                let command = format!("{command} --restart");
                let written = format!("wrote {}\n", path.display());
                written
                    + &outcome_text(unit, outcome, &command)
                    + &account.as_ref().map_or_else(String::new, Account::text)
            }
        })?;
        match account.as_ref().and_then(|account| account.why_not.as_ref()) {
            Some(reason) => bail!(
                "{unit} runs, but is not carried: {reason}. `bywire service remove {} --restart` takes the drop-in away",
                quoted(&self.name)
            ),
            None => Ok(()),
        }
    }
}

impl ListArgs {
    fn run(self) -> Result<()> {
        let drop_ins = locate::drop_ins();
        if self.json {
            let units: Vec<Value> = drop_ins
                .iter()
                .map(|(unit, _)| json!({ "unit": unit, "drop_in": locate::drop_in_path(unit) }))
                .collect();
            return print(&format!("{}\n", json!({ "units": units })));
        }
        if drop_ins.is_empty() {
            return print("no service was added: `bywire service add NAME` does that\n");
        }
        let lines =
            drop_ins.iter().map(|(unit, _)| format!("{unit}  {}\n", locate::drop_in_path(unit).display()));
        print(&lines.collect::<String>())
    }
}

impl CheckArgs {
    fn run(self) -> Result<()> {
        if !manager::is_running() {
            bail!("systemd does not run here: `bywire service list` shows the services that were added");
        }
        let drop_ins = match &self.name {
            None => locate::drop_ins(),
            Some(name) => vec![added(name)?],
        };
        let accounts: Result<Vec<Account>> =
            drop_ins.iter().map(|(unit, text)| Account::of(unit, text)).collect();
        let accounts = accounts?;
        if self.json {
            print(&format!("{}\n", json!({ "units": accounts })))?;
        } else if accounts.is_empty() {
            print("no service was added: `bywire service add NAME` does that\n")?;
        } else {
            print(&accounts.iter().map(Account::text).collect::<String>())?;
        }
        let uncarried: Vec<&str> =
            accounts.iter().filter(|account| !account.carried).map(|account| account.unit.as_str()).collect();
        if uncarried.is_empty() { Ok(()) } else { bail!("not carried: {}", uncarried.join(", ")) }
    }
}

impl RemoveArgs {
    fn run(self) -> Result<()> {
        let (unit, _) = added(&self.name)?;
        require_root(&format!("bywire service remove {}", quoted(&self.name)))?;
        let path = locate::drop_in_path(&unit);
        let is_running = manager::is_running();
        let restart = is_running && (self.restart || asks(self.json, &unit));
        let interrupt = Interrupt::watch()?;
        let _claim = Claim::of(&unit)?;
        let outcome = if is_running {
            Change { unit: &unit, path: &path, text: None }.apply(restart, &interrupt)?
        } else {
            change::put(&path, None)?;
            Outcome::Stopped
        };
        // A unit that still runs with it needs what is in it.
        if outcome != Outcome::Waits {
            change::remove_runtime(&drop_in::runtime_directory(&unit).1);
        }
        print(&match self.json {
            true => format!(
                "{}\n",
                json!({ "unit": unit, "removed": path, "restarted": outcome == Outcome::Restarted })
            ),
            false => {
                let command = format!("systemctl restart {}", quoted(&unit));
                format!("removed {}\n{}", path.display(), outcome_text(&unit, outcome, &command))
            }
        })
    }
}

/// The drop-in of a service that was added: the unit's name and the text.
fn added(name: &str) -> Result<(String, String)> {
    let mut unit = locate::full_name(name)?;
    let drop_ins = locate::drop_ins();
    if !drop_ins.iter().any(|(known, _)| *known == unit) && manager::is_running() {
        // It may be an alias.
        let shown = manager::show(&unit, "Id")?;
        unit = shown.value("Id").unwrap_or(&unit).to_owned();
    }
    let none = || Misuse(format!("{unit} was not added: `bywire service list` shows the services that were"));
    let found = drop_ins.into_iter().find(|(known, _)| *known == unit);
    Ok(found.ok_or_else(none)?)
}

/// The files of Bywire as every unit sees them.
fn installation() -> Result<Installation> {
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    let pairing = machine_socket()?.unwrap_or_else(|| PathBuf::from(MACHINE_SOCKET));
    let installation = Installation { command, library: launch::find_library()?, pairing };
    for path in [&installation.command, &installation.library, &installation.pairing] {
        if path.to_str().is_none_or(|path| path.chars().any(char::is_control)) {
            bail!(
                "no unit can name {}, as it has control characters: install Bywire elsewhere",
                path.display()
            );
        }
    }
    Ok(installation)
}

fn require_root(command: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Misuse(format!("units of systemd are root's: `sudo {command}`, or `--dry-run` to see the drop-in"))
        .into())
}

/// Checks that the pairing service of the machine answers.
fn require_pairing(installation: &Installation) -> Result<()> {
    status::query(&installation.pairing).map(drop).map_err(|error| {
        let cause = match error {
            status::QueryError::Absent => "it does not run".to_owned(),
            other => other.to_string(),
        };
        anyhow::anyhow!(
            "the pairing service of the machine is needed at {}, and {cause}: `systemctl enable --now bywire-pairing.socket` \
             first",
            installation.pairing.display()
        )
    })
}

/// Asks whether to restart the unit, if somebody can answer.
fn asks(json: bool, unit: &str) -> bool {
    if json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    let _closed = write!(io::stderr(), "Restart {unit} now? [y/N] ").and_then(|()| io::stderr().flush());
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn outcome_text(unit: &str, outcome: Outcome, command: &str) -> String {
    match outcome {
        Outcome::Restarted => format!("restarted {unit}\n"),
        Outcome::Stopped => format!("{unit} does not run: this holds from its next start on\n"),
        Outcome::Waits => format!("{unit} runs as before until its restart: `{command}`\n"),
    }
}

fn object(found: &Found, drop_in: &DropIn, outcome: Option<Outcome>, account: Option<&Account>) -> Value {
    let reasons: Vec<Value> = drop_in
        .exceptions
        .iter()
        .map(|exception| json!({ "lines": exception.line, "reason": exception.reason }))
        .collect();
    let harmless: Vec<Value> = drop_in
        .harmless
        .iter()
        .map(|(setting, reason)| json!({ "setting": setting, "reason": reason }))
        .collect();
    json!({
        "unit": found.unit.name, "drop_in": found.drop_in(), "text": drop_in.text, "exceptions": reasons,
        "harmless": harmless, "notes": drop_in.notes, "read_from": if found.is_shown { "systemd" } else { "files" },
        "restarted": outcome == Some(Outcome::Restarted), "service": account,
    })
}

/// The output of `--dry-run`.
fn explanation(found: &Found, drop_in: &DropIn) -> String {
    let unit = &found.unit.name;
    let source = match (found.is_shown, manager::is_running()) {
        (true, _) => "as systemd shows it",
        (false, true) => "as its files have it, without the drop-in that it has already",
        (false, false) => "as its files have it, as systemd does not run here",
    };
    let mut text = format!("{unit}: {}, {source}\n", found.fragment.display());
    text += &format!("would write {}:\n\n{}\n", found.drop_in().display(), drop_in.text);
    if !drop_in.harmless.is_empty() {
        text += "Settings of its sandbox that need no exception:\n";
        for (setting, reason) in &drop_in.harmless {
            text += &format!("  {setting}: {reason}\n");
        }
    }
    for note in &drop_in.notes {
        text += &format!("Note: {note}\n");
    }
    text + &format!(
        "Then systemd reads its units again, and a restart of {unit} makes the drop-in effective. Nothing was changed.\n"
    )
}
