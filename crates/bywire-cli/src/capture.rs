//! `bywire capture`: the frames of a running network as a pcapng file.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bywire_command::exit_status::Misuse;
use bywire_eth::capture::{self, CaptureFilter};
use bywire_eth::control::{self, Request};
use clap::Args;

use crate::eth::nobody;

/// Arguments of `bywire capture`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire capture | wireshark -k -i -
  bywire capture --interface blue:by0 --count 1000 --output frames.pcapng
  bywire capture --node one > frames.pcapng",
    after_help = "\
Each frame is recorded once, as it leaves the place where it entered: an interface, or the fabric. Superframes are \
recorded whole and with partial checksums, also those that were merged here. `bywire eth up --coalesce off` merges \
nothing.

Frames that cannot be written in time are lost and counted. The count is printed at the end. Ctrl-C ends a recording \
without --count, with status 0."
)]
pub struct CaptureArgs {
    /// Only frames that this interface sends, or `fabric` for those of other processes [default: all]
    #[arg(long, value_name = "NETNS:NAME", allow_hyphen_values = true)]
    interface: Option<String>,
    /// End after this number of frames [default: at Ctrl-C]
    #[arg(long, value_name = "N", value_parser = count)]
    count: Option<u64>,
    /// Only this network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Only this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Write to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn count(text: &str) -> Result<u64> {
    let count = text.parse::<u64>().ok().filter(|&count| count > 0);
    count.with_context(|| format!("{text:?} is not a number of frames: give 1 or more"))
}

impl CaptureArgs {
    /// Records until there are enough, or Ctrl-C, or the network ends.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        let mut running = Vec::new();
        for control_socket in control::control_sockets(self.network.as_deref(), self.node.as_deref())? {
            running.extend(
                control::ask(&control_socket, Request::Status)?.map(|status| (control_socket, status)),
            );
        }
        let [(control_socket, status)] = &running[..] else {
            if running.is_empty() {
                let nothing = "no `bywire eth up` runs here: there is nothing to record";
                return Err(nobody(self.network.as_deref(), self.node.as_deref(), nothing));
            }
            bail!(Misuse("several networks run here: choose one by --network and --node".to_owned()));
        };
        let there_are = status["interfaces"].as_array().into_iter().flatten();
        let names: Vec<String> =
            there_are.filter_map(|its| Some(its["interface"].as_str()?.to_owned())).collect();
        if let Some(wanted) = self.interface.as_ref().filter(|wanted| *wanted != capture::FABRIC) {
            anyhow::ensure!(
                names.iter().any(|name| name == wanted),
                Misuse(format!("there is no interface {wanted}: `bywire eth status` lists the interfaces"))
            );
        }
        let output: Box<dyn Write> = match &self.output {
            Some(path) => {
                Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?)
            }
            None => Box::new(io::stdout()),
        };
        let socket = Arc::new(control::connect_capture(control_socket)?);
        let watched = Arc::clone(&socket);
        // Received frames are still recorded, and losses are reported.
        ctrlc::set_handler(move || watched.shut_down()).context("cannot watch for an interrupt")?;
        let filter = CaptureFilter { names, interface: self.interface, count: self.count };
        let (written, lost) = capture::record(&socket, &filter, output)?;
        eprintln!("bywire: {written} frames recorded, {lost} lost");
        Ok(())
    }
}
