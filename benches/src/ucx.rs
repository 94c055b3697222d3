//! UCX's own `ucx_perftest` over shared memory, two pinned processes at a time.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::pin;

use crate::child_guard::ChildGuard;
use crate::contest::{Contestant, Taken};
use crate::lab::SHORT_BYTES;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A ping-pong by tag matching: `name` is the median half-RTT in ns, `name mean` the mean.
///
/// # Errors
/// UCX is not installed.
pub fn latency(name: &str, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    let series = name.to_owned();
    contestant(name, "tag_lat", size_bytes, iterations, move |figures| {
        Ok(vec![
            (series.clone(), 1e3 * column(figures, "50.0_percentile_lat")?),
            (format!("{series} mean"), 1e3 * column(figures, "overall_lat")?),
        ])
    })
}

/// A stream by tag matching: `name` is in bytes per second, `name messages` (short ones) in messages per second.
/// Payloads are neither written nor read.
///
/// # Errors
/// UCX is not installed.
pub fn stream(name: &str, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    let series = name.to_owned();
    contestant(name, "tag_bw", size_bytes, iterations, move |figures| {
        let messages = column(figures, "overall_mr")?;
        let mut values = vec![(series.clone(), messages * size_bytes as f64)];
        if size_bytes <= SHORT_BYTES {
            values.push((format!("{series} messages"), messages));
        }
        Ok(values)
    })
}

/// The named columns of its CSV.
type Figures = Vec<(String, f64)>;

fn contestant(
    name: &str,
    test: &'static str,
    size_bytes: u64,
    iterations: u64,
    values: impl Fn(&Figures) -> Result<Vec<(String, f64)>> + 'static,
) -> Result<Contestant> {
    let found = Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found
        .context("ucx_perftest is not installed: benches/rivals installs it, or apt-get install ucx-utils")?;
    let (source, target) = pin::two_cores();
    Ok(Contestant {
        name: name.to_owned(),
        command: format!("UCX_TLS=posix,cma ucx_perftest HOST -t {test} -s {size_bytes} -n {iterations} -v"),
        take: Box::new(move || {
            let printed = run(test, size_bytes, iterations, source, target)?;
            Ok(Taken { values: values(&figures(&printed)?)?, ..Taken::default() })
        }),
    })
}

fn run(test: &str, size_bytes: u64, iterations: u64, source: u32, target: u32) -> Result<String> {
    // Somebody could take the port in between; then this pair fails and says so.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let start = |core: u32, arguments: &[&str]| {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(core.to_string()).arg("ucx_perftest").args(arguments);
        command.args(["-p", &port.to_string()]).env("UCX_TLS", "posix,cma").env("UCX_LOG_LEVEL", "error");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map(ChildGuard).context("cannot start ucx_perftest by taskset (util-linux)")
    };
    let mut server = start(target, &[])?;
    await_listener(port, &mut server)?;
    let (size, iterations) = (size_bytes.to_string(), iterations.to_string());
    let client = start(source, &["127.0.0.1", "-t", test, "-s", &size, "-n", &iterations, "-v"])?;
    client.printed("ucx_perftest", TIMEOUT)
}

/// Until the server listens: an attempt to connect would be its only client.
fn await_listener(port: u16, server: &mut ChildGuard) -> Result<()> {
    let started = Instant::now();
    let is_listening = |table: &str| {
        // "sl local_address rem_address st …", the address as hexadecimal IP:PORT; 0A is LISTEN.
        let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        sockets.any(|fields| {
            fields.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
                && fields.get(3) == Some(&"0A")
        })
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    while !tables.iter().any(|table| fs::read_to_string(table).is_ok_and(|text| is_listening(&text))) {
        ensure!(server.0.try_wait()?.is_none(), "the server of ucx_perftest has ended before it listened");
        ensure!(started.elapsed() < TIMEOUT, "the server of ucx_perftest does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Its CSV: a heading, and the last line that fits it.
fn figures(printed: &str) -> Result<Figures> {
    let is_heading = |line: &&str| line.starts_with("iterations,");
    let heading =
        printed.lines().find(is_heading).context("ucx_perftest prints no CSV that is known here")?;
    let names: Vec<&str> = heading.split(',').map(str::trim).collect();
    let lines = printed.lines().rev().take_while(|line| !is_heading(line));
    let mut rows = lines.filter_map(|line| {
        let values: Option<Vec<f64>> = line.split(',').map(|field| field.trim().parse().ok()).collect();
        values.filter(|values| values.len() == names.len())
    });
    let row = rows.next().context("ucx_perftest prints no figures")?;
    Ok(names.iter().map(|name| (*name).to_owned()).zip(row).collect())
}

fn column(figures: &Figures, name: &str) -> Result<f64> {
    let found = figures.iter().find(|(known, _)| known == name);
    let value = found.with_context(|| format!("ucx_perftest prints no column {name}"))?.1;
    ensure!(value.is_finite() && value > 0.0, "ucx_perftest says {value} for {name}");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "a warning, perhaps\n\
        iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
        50000,0.200,0.300,0.300,24.30,24.30,3185116,3185116\n\
        100000,0.155,0.314,0.315,24.30,24.30,3185116,3185117\n";

    #[test]
    fn the_last_row_is_parsed_by_column_names() {
        let figures = figures(PRINTED).unwrap();
        assert_eq!(column(&figures, "50.0_percentile_lat").unwrap(), 0.155);
        assert_eq!(column(&figures, "overall_mr").unwrap(), 3_185_117.0);
        assert!(column(&figures, "colour").is_err());
    }

    #[test]
    fn other_output_is_refused() {
        for printed in ["", "iterations,a\n", "iterations,a\n1,x\n", "1,2,3\n", "iterations,a,b\n1,2\n"] {
            assert!(figures(printed).is_err(), "{printed:?}");
        }
        assert!(column(&vec![("a".to_owned(), 0.0)], "a").is_err());
    }
}
