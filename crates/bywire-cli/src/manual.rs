//! `bywire completions` and `bywire man`: the command's own description of itself, in the forms others read.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Arguments of `bywire completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell that is to complete
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the completion script of `command`.
    ///
    /// # Errors
    /// Only those of printing.
    pub fn run(self, mut command: Command) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "bywire", &mut script);
        bywire_command::output::print(&String::from_utf8(script)?)
    }
}

/// Arguments of `bywire man`.
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Write one page per subcommand into this directory, instead of bywire(1) to standard output
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

impl ManArgs {
    /// Renders the manual pages of `command`.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub fn run(self, command: Command) -> Result<()> {
        let mut command = without_help(command);
        command.build();
        let Some(directory) = self.output else {
            let mut page = Vec::new();
            manual(&command).render(&mut page)?;
            return bywire_command::output::print(&String::from_utf8(page)?);
        };
        let cannot = || format!("cannot write manual pages into {}", directory.display());
        fs::create_dir_all(&directory).with_context(cannot)?;
        write_pages(&command, &directory).with_context(cannot)
    }
}

/// One page for each subcommand that is shown, and for theirs.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, directory)?;
    }
    manual(command).generate_to(directory).map(|_| ())
}

/// Every page belongs to this one program and version.
fn manual(command: &Command) -> Man {
    Man::new(command.clone()).source(concat!("bywire ", env!("CARGO_PKG_VERSION"))).manual("Bywire")
}

/// Pages that are not written are not to be referred to.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}
