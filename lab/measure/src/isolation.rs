//! Programs in PID namespaces of their own. All processes of a program end with the first one, for any reason that ends
//! it.

use std::process::{Command, Stdio};

/// The beginning of a command that runs in a process namespace of its own. Further options of `unshare` and the
/// program's command line follow.
pub(crate) fn command() -> Command {
    let mut command = Command::new("unshare");
    // The first process of the namespace ends with `unshare`, and all others with the first.
    command.args(["--pid", "--fork", "--kill-child=SIGKILL"]);
    command
}

/// Returns whether `command` succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let tried = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}
