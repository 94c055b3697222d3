//! `bywire completions` and `bywire man`: the command's own description of itself, in the forms others read.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

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
        crate::print(&String::from_utf8(script)?)
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
        let Some(directory) = self.output else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            return crate::print(&String::from_utf8(page)?);
        };
        let cannot = || format!("cannot write manual pages into {}", directory.display());
        fs::create_dir_all(&directory).with_context(cannot)?;
        clap_mangen::generate_to(command, &directory).with_context(cannot)
    }
}
