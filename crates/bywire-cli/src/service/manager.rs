//! systemd, by its command `systemctl`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use bywire_command::plain::one_line;

use super::settings::Settings;

/// The most lines of the journal that a reason has.
const JOURNAL_LINES: usize = 6;

/// Returns whether systemd manages this machine.
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Runs `systemctl` in a process group of its own, so that Ctrl-C does not end it halfway.
fn systemctl(words: &[&str]) -> Result<Output> {
    let mut command = Command::new("systemctl");
    command.args(words).process_group(0).stdin(Stdio::null()).env("LC_ALL", "C").env("SYSTEMD_PAGER", "");
    command.output().context("cannot run `systemctl`: install systemd, or use `bywire run` without it")
}

/// Runs `systemctl` for its effect.
pub fn call(words: &[&str]) -> Result<()> {
    let output = systemctl(words)?;
    if !output.status.success() {
        let said = one_line(&String::from_utf8_lossy(&output.stderr));
        bail!("`systemctl {}` failed: {said}", words.join(" "));
    }
    Ok(())
}

/// Properties of a unit.
pub fn show(unit: &str, properties: &str) -> Result<Settings> {
    let property = format!("--property={properties}");
    let output = systemctl(&["show", "--timestamp=unix", &property, "--", unit])?;
    if !output.status.success() {
        let said = one_line(&String::from_utf8_lossy(&output.stderr));
        bail!("systemd does not show {unit}: {said}");
    }
    Ok(Settings::from_shown(&String::from_utf8_lossy(&output.stdout)))
}

/// The names of loaded units that match a pattern.
pub fn loaded(pattern: &str) -> Vec<String> {
    let words = ["list-units", "--all", "--plain", "--no-legend", "--type=service", "--", pattern];
    let Ok(output) = systemctl(&words) else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The last lines of the journal about a unit since a time, in seconds since 1970. Empty if there is no journal.
pub fn journal(unit: &str, since: u64) -> String {
    let since = format!("--since=@{since}");
    let lines = format!("--lines={JOURNAL_LINES}");
    let words = ["--unit", unit, &since, &lines, "--output=cat", "--no-pager", "--quiet"];
    let mut command = Command::new("journalctl");
    let output = command.args(words).process_group(0).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(output) = output else { return String::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(one_line).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
