//! A directory that every process of a command carries in its environment, so that left-over ones are found.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;

use bywire_testing::eventually;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

pub fn bywire(directory: &Path, arguments: &[&str]) -> Command {
    heed_interrupts();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(arguments).env("TMPDIR", directory).stdin(Stdio::null());
    // Built as a dependency of these tests.
    let tests = std::env::current_exe().expect("this test");
    command.env("BYWIRE_SOCKETS_LIBRARY", tests.with_file_name("libbywire_sockets.so"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Shells start background commands with interrupts ignored, which their children inherit, unless a child sets a
/// handler, as this process does from now on.
fn heed_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut interrupts = Signals::new([SIGINT]).expect("a handler");
        std::thread::spawn(move || interrupts.forever().try_for_each(emulate_default_handler));
    });
}

/// Processes that were started by, or for, a measurement in `directory`.
pub fn processes_of(directory: &Path) -> Vec<String> {
    processes_with("TMPDIR", directory)
}

/// Waits for the end of all processes of a measurement, which must leave no file.
pub fn nothing_is_left(directory: &Path) {
    eventually("no process is left", || processes_of(directory).is_empty());
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "nothing is left");
}

/// Processes whose environment has `directory` under `name`.
pub fn processes_with(name: &str, directory: &Path) -> Vec<String> {
    let mark = format!("{name}={}", directory.display()).into_bytes();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark)
        })
        .map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default().replace('\0', " "))
        .collect()
}
