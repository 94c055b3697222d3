//! Whether the library would work in a program that this process becomes. The loader's own line about a library that cannot
//! be mapped goes to the program's standard error, where nobody reads it.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use bywire_pairing::filters;
use bywire_sys::Errno;
use bywire_sys::preload_probe::{CALLS, map_code, try_call};
use rustix::net::{AddressFamily, SocketType, socket};

/// The subcommand that makes the library's system calls, to find the one that a filter forbids.
pub const PROBE: &str = "__calls";

/// The obstacle, and what to do about it. `None`: there is none.
pub fn obstacle(library: &Path) -> Option<String> {
    if let Err(error) = map_code(library) {
        return Some(unmappable(library, error));
    }
    // A unit's RestrictAddressFamilies= is such a filter, too.
    if filters::count().is_none_or(|count| count == 0) {
        return None;
    }
    if matches!(socket(AddressFamily::UNIX, SocketType::SEQPACKET, None), Err(Errno::AFNOSUPPORT)) {
        return Some(
            "no Unix socket can be made here, and the library talks to the pairing service over one: add AF_UNIX to \
             RestrictAddressFamilies="
                .to_owned(),
        );
    }
    let call = forbidden_call()?;
    Some(format!(
        "the filter on this process forbids the system call {call}, which the library makes: allow it by SystemCallFilter="
    ))
}

fn unmappable(library: &Path, error: Errno) -> String {
    let library = library.display();
    match error {
        Errno::PERM => format!(
            "{library} cannot be mapped: its file system is mounted without the right to execute (noexec), or NoExecPaths= \
             of the unit covers it: install Bywire elsewhere, or name its directory in ExecPaths="
        ),
        Errno::ACCESS => format!(
            "{library} cannot be mapped: this user may not read it, or a security module forbids it: install Bywire where \
             every user can read it, such as /usr/local"
        ),
        other => format!("{library} cannot be mapped: {other}"),
    }
}

/// The system call of the library that ends a process here, or fails as none does without a filter. `None`: there is none, or
/// it cannot be found out.
fn forbidden_call() -> Option<String> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    let output = command.arg(PROBE).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    match (output.status.signal(), last.strip_prefix("forbidden ")) {
        (_, Some(call)) => Some(call.to_owned()),
        (Some(signal), None) if signal == rustix::process::Signal::SYS.as_raw() => Some(last.to_owned()),
        _ => None,
    }
}

/// Makes the system calls, each after a line with its name.
pub fn probe() -> Result<()> {
    let mut output = std::io::stdout().lock();
    for (name, number) in CALLS {
        writeln!(output, "{name}")?;
        output.flush()?;
        if try_call(number).is_err() {
            writeln!(output, "forbidden {name}")?;
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_mapped_is_an_obstacle_with_a_remedy() {
        let library = Path::new("/usr/local/lib/bywire/libbywire_sockets.so");
        assert!(unmappable(library, Errno::PERM).contains("ExecPaths="));
        assert!(unmappable(library, Errno::ACCESS).contains("/usr/local"));
        let absent = obstacle(Path::new("/no/such/library.so")).expect("it is not there");
        assert!(absent.starts_with("/no/such/library.so cannot be mapped"), "{absent}");
        assert_eq!(map_code(&std::env::current_exe().expect("this test")), Ok(()));
    }
}
