//! iperf3 and sockperf told to do what the laboratory does: the same cores, the same lengths, and the beginning of a
//! connection left out.

use std::process::Command;

use anyhow::Result;

use crate::contest::Contestant;
use crate::ethernet::{self, Ends, Join};

/// How the two ends of a witness are joined.
#[derive(Clone)]
pub enum Way {
    /// Two processes of this machine's own network.
    Loopback,
    /// Two namespaces.
    Joined(Join),
}

/// iperf3's own length of a block over TCP, in bytes.
pub const IPERF3_BLOCK_BYTES: u64 = 128 << 10;

/// Sockperf's shortest message, in bytes.
pub const SOCKPERF_BYTES: u64 = 14;

/// One TCP connection of iperf3, after a second that is left out: series `name`, received bytes per second.
pub fn iperf3(name: &str, way: Way) -> Contestant {
    let command = format!("iperf3 -c TARGET -l {IPERF3_BLOCK_BYTES} -O 1 -t 1");
    ethernet::witness(name, &command, "iperf3", move || {
        let block = IPERF3_BLOCK_BYTES.to_string();
        way.between(|ends| {
            let client = ["iperf3", "-c", &ends.address, "-l", &block, "-O", "1", "-t", "1", "-J"];
            ethernet::received(&ends.converse(&["iperf3", "-s"], &client)?)
        })
    })
}

/// A ping-pong of sockperf over TCP: series `name`, half-RTT in ns.
pub fn sockperf(name: &str, way: Way) -> Contestant {
    let size = SOCKPERF_BYTES.to_string();
    let command = format!("sockperf pp --tcp -i TARGET -t 1 -m {size}");
    ethernet::witness(name, &command, "sockperf", move || {
        way.between(|ends| {
            let server = ["sockperf", "sr", "--tcp", "-i", &ends.address, "-p", "5201"];
            let client =
                ["sockperf", "pp", "--tcp", "-i", &ends.address, "-p", "5201", "-t", "1", "-m", &size];
            ethernet::half_rtt_ns(&ends.converse(&server, &client)?)
        })
    })
}

impl Way {
    fn between(&self, measure: impl Fn(&Ends) -> Result<f64>) -> Result<f64> {
        match self {
            Self::Loopback => measure(&Ends::of_this_machine()),
            Self::Joined(join) => {
                let namespaces = join()?;
                measure(&Ends::of(&namespaces))
            }
        }
    }
}

/// A command on that core that is killed with this program.
pub fn alone(core: u32, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "taskset", "-c", &core.to_string()]).args(words);
    command
}
