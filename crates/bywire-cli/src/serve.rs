//! `bywire serve`: the far end of measurements between machines.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::Result;
use bywire_command::exit_status::Misuse;
use bywire_command::plain::one_line;
use bywire_measure::fabric_keys;
use bywire_measure::interrupt;
use bywire_measure::remote_target::{self, Admission};
use clap::Args;

/// Where to listen, and for whom.
#[derive(Args, Debug)]
#[command(before_help = "\
Examples:
  bywire serve
  bywire serve --listen 10.0.0.2:7247 --key /etc/bywire/key
  bywire serve --fabric
On the other machine:
  bywire measure tcp latency --between 10.0.0.2 --key /etc/bywire/key
  bywire measure msg latency --link udp --between 10.0.0.2 --key /etc/bywire/key
  bywire measure tcp latency --between web2 --fabric", after_help = format!(
    "Link udp of level msg and --fabric need `bywire up` on both machines.\n\n{}",
    crate::key::HELP
))]
pub struct ServeArgs {
    /// Address to listen on; port 0 takes a free port, which is printed
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("0.0.0.0:{}", remote_target::DEFAULT_PORT))]
    listen: String,
    /// Serve only clients with the key in this file [default: all clients, with messages of up to 4 MiB]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Serve only clients on nodes of this machine's fabric, of the same user or root; they need no file
    #[arg(long, conflicts_with = "key")]
    fabric: bool,
}

impl ServeArgs {
    /// Serves until interrupted.
    pub fn run(self) -> Result<()> {
        let key = self.key.as_deref().map(crate::key::read).transpose()?;
        let listener = self.bind()?;
        interrupt::exit_on_request()?;
        let address = listener.local_addr()?;
        let (admission, protection) = match key {
            Some(key) => (Admission::Key(key), "clients need the key"),
            None if self.fabric => {
                (Admission::Fabric(fabric_keys::issue(address.port())?), "for nodes of this machine's fabric")
            }
            None => (Admission::Anyone, "anyone may measure"),
        };
        bywire_command::output::print(&format!("listening on {address}, {protection}\n"))?;
        remote_target::serve(&listener, admission, |line| {
            let _closed = bywire_command::output::print(&format!("{}\n", one_line(line)));
        })
    }

    /// Text that is not an address, or an address of another machine, is misuse. A port that is in use is not.
    fn bind(&self) -> Result<TcpListener> {
        let asked = &self.listen;
        let addresses: Vec<SocketAddr> = asked.to_socket_addrs().map(Iterator::collect).map_err(|error| {
            Misuse(format!("`{asked}` is not an address to listen on ({error}): give --listen ADDRESS:PORT, like 0.0.0.0:7247"))
        })?;
        let refused = format!("cannot listen on {asked}: choose another address or port by --listen");
        TcpListener::bind(&addresses[..]).map_err(|error| match error.kind() {
            ErrorKind::AddrNotAvailable => Misuse(format!("{refused}: {error}")).into(),
            _ => anyhow::Error::new(error).context(refused),
        })
    }
}
