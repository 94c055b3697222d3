//! UCX's own `ucx_perftest`, two pinned processes at a time.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bywire_results::cell::Unit;

use crate::contestant::{Contestant, SHORT_BYTES, Samples};
use crate::rival_pair::Place;
use crate::series::Metric;

/// A ping-pong by tag matching: the median half-RTT, and [`Metric::Mean`].
///
/// # Errors
/// UCX is not installed.
pub fn latency(place: &Place, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    contestant(place, Unit::Nanoseconds, "tag_lat", size_bytes, iterations, |figures| {
        let us = |name| Ok::<_, anyhow::Error>(1e3 * column(figures, name)?);
        Ok(vec![(Metric::Value, us("50.0_percentile_lat")?), (Metric::Mean, us("overall_lat")?)])
    })
}

/// A stream by tag matching in bytes per second, and of short messages [`Metric::Messages`]. Payloads are neither written nor
/// read.
///
/// # Errors
/// UCX is not installed.
pub fn stream(place: &Place, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    contestant(place, Unit::BytesPerSecond, "tag_bw", size_bytes, iterations, move |figures| {
        let messages = column(figures, "overall_mr")?;
        let counted = (size_bytes <= SHORT_BYTES).then_some((Metric::Messages, messages));
        Ok(std::iter::once((Metric::Value, messages * size_bytes as f64)).chain(counted).collect())
    })
}

/// The named columns of its CSV.
type Figures = Vec<(String, f64)>;

fn contestant(
    place: &Place,
    unit: Unit,
    test: &'static str,
    size_bytes: u64,
    iterations: u64,
    samples: impl Fn(&Figures) -> Result<Samples> + 'static,
) -> Result<Contestant> {
    let found = Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.context("ucx_perftest is not installed: run apt-get install ucx-utils")?;
    let transports = if place.is_wire() { "tcp" } else { "posix,cma" };
    let warmup = (iterations / 10).to_string();
    let (size, count) = (size_bytes.to_string(), iterations.to_string());
    let place = place.clone();
    let command = format!(
        "UCX_TLS={transports} ucx_perftest HOST -t {test} -s {size_bytes} -n {iterations} -w {warmup} -v"
    );
    Ok(Contestant::adapter(command, unit, move || {
        // Somebody could take the port in between; then this pair fails and says so.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let number = port.to_string();
        let start = |arguments: &[&str]| {
            let mut command = Command::new("ucx_perftest");
            command.args(arguments).args(["-p", &number]);
            command.env("UCX_TLS", transports).env("UCX_LOG_LEVEL", "error");
            command
        };
        let address = place.address();
        let client = [&address, "-t", test, "-s", &size, "-n", &count, "-w", &warmup, "-v"];
        samples(&figures(&place.run(start(&[]), start(&client), port)?)?)
    }))
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
