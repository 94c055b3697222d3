//! libfabric's own `fi_pingpong` over one of its providers or Bywire's, two pinned processes at a time.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use bywire_results::cell::Unit;

use crate::contestant::Contestant;
use crate::rival_pair::Place;

/// The port at which the server of `fi_pingpong` is asked, its own default.
const PORT: u16 = 47_592;

/// A provider by its name, and the directory that it is in if it is none of libfabric's own.
#[derive(Clone)]
pub struct Provider {
    /// Its name.
    pub name: &'static str,
    /// Its directory.
    pub directory: Option<PathBuf>,
}

impl Provider {
    /// One that libfabric brings along.
    pub fn of_libfabric(name: &'static str) -> Self {
        Self { name, directory: None }
    }

    /// Bywire's.
    ///
    /// # Errors
    /// It is neither installed nor built.
    pub fn bywire() -> Result<Self> {
        Ok(Self { name: "bywire", directory: Some(bywire_command::provider::directory()?) })
    }
}

/// A ping-pong over reliable datagrams: the mean half-RTT in ns. There is no median.
///
/// # Errors
/// libfabric is not installed.
pub fn latency(provider: Provider, place: &Place, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    let found = Command::new("fi_pingpong").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.context("fi_pingpong is not installed: run apt-get install libfabric-bin")?;
    let words = format!("-p {} -e rdm -I {iterations} -S {size_bytes}", provider.name);
    let place = place.clone();
    Ok(Contestant::of_value(format!("fi_pingpong {words} HOST"), Unit::Nanoseconds, move || {
        let start = |host: Option<String>| {
            let mut command = Command::new("fi_pingpong");
            command.args(words.split(' ')).args(host);
            if let Some(directory) = &provider.directory {
                command.env("FI_PROVIDER_PATH", directory).env("FI_PROVIDER", provider.name);
            }
            command
        };
        let printed = place.run(start(None), start(Some(place.address())), PORT)?;
        Ok(1e3 * us_per_transfer(&printed)?)
    }))
}

/// The column `usec/xfer` of the only row.
fn us_per_transfer(printed: &str) -> Result<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("bytes"));
    let column =
        lines.next().and_then(|heading| heading.split_whitespace().position(|name| name == "usec/xfer"));
    let row = lines.next().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let value = row.zip(column).and_then(|(row, column)| row.get(column)?.parse().ok());
    value.filter(|us| *us > 0.0).context("fi_pingpong prints no figures that are known here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_read_by_its_column() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                       8       10k     =10k     156k        0.37s      0.43      18.60       0.05\n";
        assert_eq!(us_per_transfer(printed).unwrap(), 18.6);
        assert!(us_per_transfer("").is_err());
        assert!(us_per_transfer("bytes usec/xfer\n8 0\n").is_err());
    }
}
