//! `bywire mpi`: MPI programs whose messages cross the fabric.

use std::fmt::Write as _;

use anyhow::Result;
use bywire_command::provider;
use bywire_command::shell;
use clap::{Args, Subcommand};

use bywire_command::output;

/// Arguments of `bywire mpi`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  eval \"$(bywire mpi env)\"          # this shell's MPI programs use the fabric from now on
  mpirun -n 2 ./program               # two ranks of this machine
  mpirun --oversubscribe -n 8 ./program
  mpirun $BYWIRE_MPI --host web1:2,web2:2 ./program
  eval \"$(bywire mpi env --unset)\"  # and no more
More:
  bywire mpi env
  bywire mpi env --unset",
    after_help = "\
It works with Open MPI, MPICH and Intel MPI where they have libfabric: `bywire doctor` tells of the first two. `./x install` has installed the provider that \
libfabric loads. No other job is affected. BYWIRE_MPI holds the options by which Open MPI takes the variables to other machines, \
where the provider has to be at the same path; MPICH takes them by itself. As root, Open MPI's launcher wants --allow-run-as-root."
)]
pub struct MpiArgs {
    #[command(subcommand)]
    action: MpiAction,
}

#[derive(Subcommand, Debug)]
enum MpiAction {
    /// Print the lines for a shell that make its MPI programs use the fabric
    Env(EnvArgs),
}

#[derive(Args, Debug)]
struct EnvArgs {
    /// Print the line that takes these settings back
    #[arg(long)]
    unset: bool,
}

impl MpiArgs {
    /// Prints lines for a shell.
    ///
    /// # Errors
    /// One line: the provider is not installed, and what to do.
    pub fn run(self) -> Result<()> {
        let MpiAction::Env(EnvArgs { unset }) = self.action;
        output::print(&if unset { unsetting() } else { setting()? })
    }
}

fn setting() -> Result<String> {
    let mut lines = String::new();
    let options = (provider::OPTIONS_VARIABLE, provider::options().join(" "));
    for (name, value) in provider::variables(&provider::directory()?).into_iter().chain([options]) {
        let _ = writeln!(lines, "export {name}={}", shell::quoted(&value));
    }
    Ok(lines)
}

fn unsetting() -> String {
    let names: Vec<_> = provider::names().chain([provider::OPTIONS_VARIABLE]).collect();
    format!("unset {}\n", names.join(" "))
}
