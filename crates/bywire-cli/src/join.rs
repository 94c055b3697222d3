//! `bywire invite` and `bywire join`: another machine becomes a node of the fabric.

use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use anyhow::{Context, Result};
use bywire_command::exit_status::{Misuse, complain};
use bywire_node::fabric::{self, Fabric};
use bywire_node::file::{self, FileError};
use bywire_node::invitation::Invitation;
use bywire_node::join::{self, Candidate, JoinError};
use bywire_node::{client, key, service};
use bywire_wire::service::NotInvited;
use clap::Args;

use crate::{node, nodes};

/// The longest invitation, with eight host names.
const INVITATION_BYTES_MAX: u64 = 4096;

/// Arguments of `bywire invite`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire invite web2
  bywire invite web2 | ssh web2 bywire join - --up",
    after_help = "\
Prints the command that the other machine has to run, as one line. It is valid once, for ten minutes. It contains a secret: the \
first machine that runs it joins. This machine has to be the keeper of the fabric, and `bywire up` has to run here. The \
service forgets its invitations when it ends."
)]
pub struct InviteArgs {
    /// Name of the other machine in the fabric
    name: String,
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

/// Arguments of `bywire join`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples (KEY and SECRET are printed by `bywire invite web2` on the keeper):
  bywire join '10.0.0.1:7248 KEY SECRET web2 fabric' --up
  bywire join - --up
  bywire join '10.0.0.1:7248 KEY SECRET web2 fabric' --address web2.example --port 7300",
    after_help = "\
Makes node.key if there is none, asks the keeper to add this machine to the fabric, and writes fabric.toml. The keeper sends the \
changed file to all other nodes. If it is interrupted, run it again with the same invitation. Other users of the machine see \
the arguments of commands: give `-` and the invitation on standard input where they are not trusted."
)]
pub struct JoinArgs {
    /// The invitation, as `bywire invite` has printed it; `-` reads it from standard input
    #[arg(required = true, value_name = "INVITATION")]
    invitation: Vec<String>,
    /// Address for other machines, the port of --port unless given; can be repeated [default: as the keeper sees this machine]
    #[arg(long = "address", value_name = "HOST[:PORT]")]
    addresses: Vec<String>,
    /// UDP port of the service
    #[arg(long, value_name = "PORT", default_value_t = fabric::UDP_PORT)]
    port: u16,
    /// Then serve, as `bywire up` does
    #[arg(long)]
    up: bool,
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

impl InviteArgs {
    /// Prints an invitation.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        let key_file = nodes::directory(self.config.as_deref())?.join(key::FILE_NAME);
        match client::invite(None, &key_file, &self.name)? {
            Ok(line) => bywire_command::output::print(&format!("bywire join '{line}'\n")),
            Err(reason) => Err(Misuse(refusal(&reason, &self.name)).into()),
        }
    }
}

fn refusal(reason: &NotInvited, name: &str) -> String {
    match reason {
        NotInvited::NoKeeper => {
            "this fabric has no keeper: write `keeper = \"NODE\"` into fabric.toml on all nodes, and send \
                                 their services SIGHUP"
                .to_owned()
        }
        NotInvited::OtherKeeper(keeper) => format!("{keeper} is the keeper of this fabric: run this there"),
        NotInvited::NameTaken => {
            format!(
                "there is a node {name} already: choose another name, or run `bywire node remove {name}` first"
            )
        }
        NotInvited::NoName => format!(
            "`{name}` cannot be the name of a node: letters, digits, `-`, `_` and `.`, 48 at most, and not `localhost`"
        ),
        NotInvited::FabricFull => {
            format!("a fabric has at most {} nodes: remove one first", fabric::NODES_MAX)
        }
        NotInvited::TooMany => {
            "there are too many invitations: wait until some are used or have expired".to_owned()
        }
    }
}

impl JoinArgs {
    /// Joins, and then serves if that is wanted.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        let typed = match &self.invitation[..] {
            [word] if word == "-" => read_invitation()?,
            words => words.join(" "),
        };
        let invitation: Invitation = typed.parse().map_err(Misuse::of)?;
        let addresses = nodes::parse_addresses(&self.addresses, self.port)?;
        nodes::check_resolved(&addresses)?;
        let directory = nodes::directory(self.config.as_deref())?;
        let path = directory.join(fabric::FILE_NAME);
        if path.exists() {
            return Err(nodes::in_a_fabric(&path));
        }
        let key = nodes::own_or_new_key(&directory)?;
        let boot_id = service::boot_id().context("cannot tell this start of the machine from others")?;
        let candidate = Candidate { key: &key, addresses: &addresses, udp_port: self.port, boot_id };
        let on_silence = || {
            let (keeper, timeout_s) = (join::text_of(&invitation.addresses), join::TIMEOUT.as_secs());
            complain(
                "bywire",
                format!("{keeper} has not answered yet; waiting for at most {timeout_s} s in all"),
            );
        };
        let text = join::join(&invitation, &candidate, on_silence).map_err(refused)?;
        let joined = Fabric::of(&path, &text, &key.public())
            .context("the keeper's file cannot be used: see `bywire status` there")?;
        if joined.named(&invitation.keeper).is_none() || joined.name != invitation.fabric {
            anyhow::bail!("the invitation is for another fabric: make a new one on the keeper");
        }
        file::make(&path, file::PUBLIC_MODE, &text).map_err(|error| match error {
            FileError::Exists(path) => nodes::in_a_fabric(&path),
            error => error.into(),
        })?;
        let Fabric { name, .. } = &joined;
        let own = joined.named(&key.public()).map_or(invitation.node.as_str(), |node| &node.name);
        bywire_command::output::print(&format!(
            "{own} has joined fabric {name}, and {} is made\n",
            path.display()
        ))?;
        if self.up { node::serve(&directory, self.port, None) } else { Ok(()) }
    }
}

/// The invitation on standard input: the line that `bywire invite` prints, or only what is in its quotes.
fn read_invitation() -> Result<String> {
    let mut line = String::new();
    let input = io::stdin().take(INVITATION_BYTES_MAX);
    BufReader::new(input).read_line(&mut line).context("cannot read the invitation")?;
    let line = line.trim();
    Ok(line.strip_prefix("bywire join ").unwrap_or(line).trim_matches('\'').to_owned())
}

/// An error that the reader has to correct is misuse.
fn refused(error: JoinError) -> anyhow::Error {
    match error {
        JoinError::NoAddress(_) | JoinError::Used(_) | JoinError::Expired(_) => Misuse::of(error),
        error => error.into(),
    }
}
