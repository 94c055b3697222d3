//! `bywire serve`: the far end of measurements between machines.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::Result;
use bywire_measure::exit_status::Misuse;
use bywire_measure::interrupt;
use bywire_measure::remote_target;
use bywire_results::plain::one_line;
use clap::Args;

/// Where to listen, and for whom.
#[derive(Args, Debug)]
#[command(before_help = "\
Examples:
  bywire serve
  bywire serve --listen 10.0.0.2:7247 --key /etc/bywire/key
On the other machine:
  bywire measure tcp latency --between 10.0.0.2 --key /etc/bywire/key
  bywire measure msg latency --link udp --between 10.0.0.2 --key /etc/bywire/key", after_help = format!(
    "Link udp of level msg also needs `bywire up` on both machines.\n\n{}",
    crate::key::HELP
))]
pub struct ServeArgs {
    /// Address to listen on; port 0 takes a free port, which is printed
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("0.0.0.0:{}", remote_target::DEFAULT_PORT))]
    listen: String,
    /// Serve only clients with the key in this file [default: all clients, with messages of up to 4 MiB]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl ServeArgs {
    /// Serves until interrupted.
    pub fn run(self) -> Result<()> {
        let key = self.key.as_deref().map(crate::key::read).transpose()?;
        let listener = self.bind()?;
        interrupt::exit_on_request()?;
        let protection = if key.is_some() { "clients need the key" } else { "anyone may measure" };
        crate::output::print(&format!("listening on {}, {protection}\n", listener.local_addr()?))?;
        remote_target::serve(&listener, key, |line| {
            let _closed = crate::output::print(&format!("{}\n", one_line(line)));
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
