//! Programs in namespaces of their own: all processes of one go with the process that was started, by whichever signal.

use std::process::{Command, Stdio};

/// What `unshare` is told: the first process of such a namespace ends with `unshare`, and all others with the first.
const PROCESSES: [&str; 3] = ["--pid", "--fork", "--kill-child=SIGKILL"];

/// The beginning of a command that runs in a namespace of its own for processes; what `unshare` is told besides, and the
/// program's own words, follow.
pub(crate) fn command() -> Command {
    let mut command = Command::new("unshare");
    command.args(PROCESSES);
    command
}

/// Tries `command`, in silence.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let tried = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}
