//! The figures of docs/performance.md. A `contestant` is measured: a request to the laboratory, or an adapter of another program
//! or a bare loop. A session of the laboratory takes fresh pairs of everything in turn, so that what is compared ran side by side.
//! `figures` reads medians, ratios and their spread of it, and `page` sets them against what is required. Each of the
//! `part`s makes a page.

mod application;
mod bare_copy;
mod bare_ring;
mod bare_udp;
mod contestant;
mod crowd;
mod ethernet;
mod figures;
mod page;
mod part;
mod ports;
mod process;
mod quic;
mod rivals;
mod run;
mod tunnel;
mod way;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use bywire_command::exit_status;
use bywire_measure::mpi;
use bywire_pairing::launch;

/// The whole program. Other processes of the same program play their parts.
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let name = words.first().filter(|word| !word.starts_with("__")).map_or("figures", String::as_str);
    exit_status::of(name, play(&words).unwrap_or_else(|| part::run(&words)))
}

/// Plays what the first arguments name, if it is no part with a page.
fn play(words: &[String]) -> Option<Result<()>> {
    Some(match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["__worker", ..] => bywire_measure::worker::run(),
        [mpi::COMMAND, socket, program] => mpi::run_rank(Path::new(socket), Path::new(program)),
        ["up" | "eth" | launch::SERVICE | launch::ENGINE, ..] => become_bywire(words),
        [process::PART, "resident-server"] => application::play_resident(None),
        [process::PART, "resident-client", port] => application::play_resident(Some(port)),
        [process::PART, "crowd-server", address, port] => crowd::serve(address, port),
        [process::PART, "crowd-client", address, port, idle] => crowd::call(address, port, idle),
        [process::PART, "bare-udp", ..] => bare_udp::play(&words[2..]),
        [process::PART, "quic", ..] => quic::play(&words[2..]),
        [process::PART, ..] => ports::play(&words[1..]),
        _ => return None,
    })
}

/// The laboratory carries frames and pairs connections by the program that it is part of, here by the one beside it.
fn become_bywire(words: &[String]) -> Result<()> {
    let bywire = std::env::current_exe()?.with_file_name("bywire");
    Err(Command::new(&bywire).args(words).exec()).with_context(|| format!("cannot run {}", bywire.display()))
}
