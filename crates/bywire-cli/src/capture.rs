//! `bywire capture`: the frames of a running network as a pcapng file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bywire_eth::capture::{self, Wish};
use bywire_eth::control::{self, Request};
use bywire_lab::ending::Misuse;
use clap::Args;

use crate::eth::nobody;

/// Arguments of `bywire capture`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bywire capture | wireshark -k -i -
  bywire capture --interface blue:by0 --count 1000 --output frames.pcapng
  bywire capture --node one > frames.pcapng

Each frame is recorded where it enters: from an interface, or from the fabric. Superframes are recorded whole, with
the partial checksum that their kernel gave them. What cannot be written in time is lost, and counted. Ctrl-C is how a
recording without --count ends: with 0.")]
pub struct CaptureArgs {
    /// Only frames that this interface sends, as `bywire eth status` calls it; `fabric` for those of other processes
    #[arg(long, value_name = "NETNS:NAME", allow_hyphen_values = true)]
    interface: Option<String>,
    /// End after so many frames
    #[arg(long, value_name = "N", value_parser = count)]
    count: Option<u64>,
    /// Only this network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Only this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Write to a file rather than to standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn count(text: &str) -> Result<u64> {
    let count = text.parse::<u64>().ok().filter(|&count| count > 0);
    count.with_context(|| format!("{text:?} is no number of frames: give 1 or more"))
}

impl CaptureArgs {
    /// Records until there are enough, or Ctrl-C, or the network ends.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        let mut running = Vec::new();
        for door in control::doors(self.network.as_deref(), self.node.as_deref())? {
            running.extend(control::ask(&door, Request::Status)?.map(|status| (door, status)));
        }
        let [(door, status)] = &running[..] else {
            if running.is_empty() {
                let nothing = "no `bywire eth up` runs here: there is nothing to record";
                return Err(nobody(self.network.as_deref(), self.node.as_deref(), nothing));
            }
            bail!(Misuse("several networks run here: choose one by --network and --node".to_owned()));
        };
        let named = status["interfaces"].as_array().into_iter().flatten().filter_map(|interface| {
            let lane = usize::try_from(interface["lane"].as_u64()?).ok()?;
            Some((lane, interface["interface"].as_str()?.to_owned()))
        });
        let names: HashMap<_, _> = named.collect();
        if let Some(wanted) = self.interface.as_ref().filter(|wanted| *wanted != "fabric") {
            anyhow::ensure!(
                names.values().any(|name| name == wanted),
                Misuse(format!(
                    "there is no interface {wanted}: `bywire eth status` shows those that there are"
                ))
            );
        }
        let output: Box<dyn Write> = match &self.output {
            Some(path) => {
                Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?)
            }
            None => Box::new(io::stdout()),
        };
        let socket = control::watch(door)?;
        let wish = Wish { names, interface: self.interface, count: self.count };
        let (written, lost) = capture::record(&socket, &wish, output)?;
        eprintln!("bywire: {written} frames recorded, {lost} lost");
        Ok(())
    }
}
