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
            return bywire_command::output::print(&String::from_utf8(page(&command)?)?);
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
    fs::write(directory.join(manual(command).get_filename()), page(command)?)
}

/// The whole page. The examples, which `--help` has above its options, have a section of their own.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let (manual, mut page) = (manual(command), Vec::new());
    manual.render_title(&mut page)?;
    manual.render_name_section(&mut page)?;
    manual.render_synopsis_section(&mut page)?;
    manual.render_description_section(&mut page)?;
    manual.render_options_section(&mut page)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        manual.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() {
        manual.render_extra_section(&mut page)?;
    }
    page.extend(examples(command).unwrap_or_default().bytes());
    if command.get_version().is_some() {
        manual.render_version_section(&mut page)?;
    }
    // Each section begins with the definition of an apostrophe. One is enough.
    let text = String::from_utf8_lossy(&page).into_owned();
    let is_definition = |line: &&str| line.starts_with(".ie") || line.starts_with(".el");
    let definition: String = text.split_inclusive('\n').take_while(is_definition).collect();
    if definition.is_empty() {
        return Ok(page);
    }
    Ok((definition.clone() + &text.replace(&definition, "")).into_bytes())
}

/// The section of the examples, if the command has any: its commands line by line, as they are typed.
fn examples(command: &Command) -> Option<String> {
    let help = command.get_before_help()?.to_string();
    let mut section = ".SH EXAMPLES\n".to_owned();
    for line in help.lines().filter(|line| *line != "Examples:") {
        match line.strip_prefix("  ") {
            Some(typed) => section += &format!(".EX\n{}\n.EE\n", escaped(typed)),
            None => section += &format!(".PP\n{}\n", escaped(&heading(line))),
        }
    }
    Some(section)
}

/// The heading of some examples: `Examples (for two):` becomes `For two:`, as the section says what they are.
fn heading(line: &str) -> String {
    let inner = line.strip_prefix("Examples (").and_then(|rest| rest.strip_suffix("):"));
    let mut letters = inner.unwrap_or(line).chars();
    let first = letters.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
    format!("{first}{}{}", letters.as_str(), if inner.is_some() { ":" } else { "" })
}

/// A line of text as the formatter reads it: a hyphen stays one that a shell understands.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

/// Every page belongs to this one program and version.
fn manual(command: &Command) -> Man {
    Man::new(command.clone()).source(concat!("bywire ", env!("CARGO_PKG_VERSION"))).manual("Bywire")
}

/// Pages that are not written are not to be referred to.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_have_a_section_of_their_own_as_they_are_typed() {
        let help = "Examples (for two):\n  one --first 'a\\b'\n  .hidden\nMore:\n  one --second";
        let command = Command::new("one").before_help(help).after_help("The end.").version("1");
        let page = String::from_utf8(page(&command).unwrap()).unwrap();
        let (_, section) = page.split_once(".SH EXAMPLES\n").expect(&page);
        let section = section.split(".SH").next().unwrap();
        let typed = [r"one \-\-first 'a\eb'", r"\&.hidden", r"one \-\-second"];
        for line in typed {
            assert!(section.contains(&format!(".EX\n{line}\n.EE\n")), "{line}: {section}");
        }
        assert!(section.contains(".PP\nFor two:\n") && section.contains(".PP\nMore:\n"), "{section}");
        assert!(!section.contains("The end.") && page.contains(".SH VERSION\n"), "{page}");
        assert!(
            !String::from_utf8(super::page(&Command::new("none")).unwrap()).unwrap().contains("EXAMPLES")
        );
    }
}
