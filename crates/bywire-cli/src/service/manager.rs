//! systemd, by its command `systemctl`.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bywire_command::plain::one_line;
use rustix::process::{Pid, Signal, kill_process_group};

use super::settings::Settings;

/// The most lines of the journal that a reason has.
const JOURNAL_LINES: usize = 6;
/// The most characters that each of them has.
const JOURNAL_CHARS: usize = 300;
/// The time in which systemd has to answer a question. `systemctl` itself waits for 25 seconds by default.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The time in which systemd has to carry out a request. It reads its units again within three minutes, or `systemctl` gives up.
const REQUEST_MAX: Duration = Duration::from_secs(190);

/// Returns whether systemd manages this machine.
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The output of a command that runs in a process group of its own, so that Ctrl-C does not end it halfway. One that has not
/// ended in time is killed, and is an error of the kind [`io::ErrorKind::TimedOut`].
fn output_within(command: &mut Command, time: Duration) -> io::Result<Output> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let _late = sender.send(child.wait_with_output());
    });
    match receiver.recv_timeout(time) {
        Ok(output) => output,
        Err(RecvTimeoutError::Timeout) => {
            // The number is still the leader's, for which the thread waits.
            let _ended = group.map(|group| kill_process_group(group, Signal::KILL));
            Err(io::ErrorKind::TimedOut.into())
        }
        Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn systemctl(words: &[&str], time: Duration) -> Result<Output> {
    let mut command = Command::new("systemctl");
    match output_within(command.args(words).env("LC_ALL", "C").env("SYSTEMD_PAGER", ""), time) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => bail!(
            "systemd does not answer: `systemctl {}` has not ended within {} s; look at it by `systemctl status`",
            words.join(" "),
            time.as_secs()
        ),
        other => other.context("cannot run `systemctl`: install systemd, or use `bywire run` without it"),
    }
}

/// Runs `systemctl` for its effect.
pub fn call(words: &[&str]) -> Result<()> {
    let output = systemctl(words, REQUEST_MAX)?;
    if !output.status.success() {
        let said = one_line(&String::from_utf8_lossy(&output.stderr));
        bail!("`systemctl {}` failed: {said}", words.join(" "));
    }
    Ok(())
}

/// Properties of a unit.
pub fn show(unit: &str, properties: &str) -> Result<Settings> {
    let property = format!("--property={properties}");
    let output = systemctl(&["show", "--timestamp=unix", &property, "--", unit], ANSWER_MAX)?;
    if !output.status.success() {
        let said = one_line(&String::from_utf8_lossy(&output.stderr));
        bail!("systemd does not show {unit}: {said}");
    }
    Ok(Settings::from_shown(&String::from_utf8_lossy(&output.stdout)))
}

/// The names of loaded units that match a pattern.
pub fn loaded(pattern: &str) -> Vec<String> {
    let words = ["list-units", "--all", "--plain", "--no-legend", "--type=service", "--", pattern];
    let Ok(output) = systemctl(&words, ANSWER_MAX) else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The last lines of the journal about a unit since a time, in seconds since 1970. Empty if there is no journal.
pub fn journal(unit: &str, since: u64) -> String {
    let since = format!("--since=@{since}");
    let lines = format!("--lines={JOURNAL_LINES}");
    let words = ["--unit", unit, &since, &lines, "--output=cat", "--no-pager", "--quiet"];
    match output_within(Command::new("journalctl").args(words), ANSWER_MAX) {
        Ok(output) => reason_of(&String::from_utf8_lossy(&output.stdout)),
        Err(_) => String::new(),
    }
}

/// Lines of the journal as one line of a message. A message of the journal may have several lines of any length.
fn reason_of(journal: &str) -> String {
    let lines: Vec<String> = journal.lines().map(one_line).filter(|line| !line.is_empty()).collect();
    let last = lines.len().saturating_sub(JOURNAL_LINES);
    let shortened = lines[last..].iter().map(|line| match line.char_indices().nth(JOURNAL_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.clone(),
    });
    shortened.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_manager_that_does_not_answer_is_given_up() {
        let began = Instant::now();
        // The child of the shell holds the output open, too.
        let mut command = Command::new("sh");
        let hung = output_within(command.args(["-c", "sleep 1000; true"]), Duration::from_millis(100));
        assert_eq!(hung.expect_err("it sleeps").kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(60));
        let output =
            output_within(Command::new("sh").args(["-c", "echo a; exit 3"]), ANSWER_MAX).expect("it ends");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"a\n".as_slice()));
    }

    #[test]
    fn lines_of_the_journal_are_short_and_without_control_characters() {
        let long = "ä".repeat(1000);
        let reason = reason_of(&format!("first\n\u{1b}]0;title\u{7}red\n\n{long}\na\nb\nc\nd\n"));
        assert!(
            reason.starts_with("\\u{1b}]0;title\\u{7}red; ää") && reason.ends_with("…; a; b; c; d"),
            "{reason}"
        );
        assert!(reason.chars().count() < 400 && !reason.contains("first"));
    }
}
