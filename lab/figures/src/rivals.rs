//! Other projects' own measurements of messages: UCX's `ucx_perftest`, libfabric's `fi_pingpong`, and small programs of the usual
//! kind over MPI.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bywire_command::provider;
use bywire_measure::mpi::{AS_ROOT, Implementation, Tools};
use bywire_measure::pin;

use crate::contestant::{Contestant, Metric, SHORT_BYTES, Samples, Unit};
use crate::process::{End, Place, find, positive};

/// Programs such as UCX look for interfaces in `/sys`, which shows those of the namespace that it was mounted in.
fn own_sys(place: &Place) -> &'static str {
    if place.0.is_some() { "unshare --mount sh -c 'mount -t sysfs sysfs /sys && exec \"$@\"' sh" } else { "" }
}

/// A ping-pong of UCX by tag matching: the median half-RTT, and [`Metric::Mean`].
pub fn ucx_latency(place: &Place, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    ucx(place, Unit::Nanoseconds, "tag_lat", size_bytes, iterations, |printed| {
        let ns = |name| Ok::<_, anyhow::Error>(1e3 * ucx_column(printed, name)?);
        Ok(vec![(Metric::Value, ns("50.0_percentile_lat")?), (Metric::Mean, ns("overall_lat")?)])
    })
}

/// A stream of UCX by tag matching in bytes per second, and of short messages [`Metric::Messages`]. Payloads are neither written
/// nor read.
pub fn ucx_stream(place: &Place, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    ucx(place, Unit::BytesPerSecond, "tag_bw", size_bytes, iterations, move |printed| {
        let messages = ucx_column(printed, "overall_mr")?;
        let counted = (size_bytes <= SHORT_BYTES).then_some((Metric::Messages, messages));
        Ok(std::iter::once((Metric::Value, messages * size_bytes as f64)).chain(counted).collect())
    })
}

fn ucx(
    place: &Place,
    unit: Unit,
    test: &str,
    size_bytes: u64,
    iterations: u64,
    samples: impl Fn(&str) -> Result<Samples> + 'static,
) -> Result<Contestant> {
    find("ucx_perftest", "ucx-utils")?;
    let transports = if place.0.is_some() { "tcp" } else { "posix,cma" };
    let words = format!("-t {test} -s {size_bytes} -n {iterations} -w {} -v", iterations / 10);
    let command = format!("UCX_TLS={transports} ucx_perftest HOST {words}");
    let place = place.clone();
    Ok(Contestant::adapter(&command, unit, move || {
        // Somebody could take the port in between; then this pair fails and says so.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let prefix = format!("{} env UCX_TLS={transports} UCX_LOG_LEVEL=error", own_sys(&place));
        let server = format!("-p {port}");
        let client = format!("{} {words} -p {port}", place.address(End::Target));
        samples(&place.converse(&prefix, "ucx_perftest", [&server, &client])?)
    }))
}

/// A column of UCX's CSV: in the last line that fits the heading.
fn ucx_column(printed: &str, name: &str) -> Result<f64> {
    let is_heading = |line: &&str| line.starts_with("iterations,");
    let heading =
        printed.lines().find(is_heading).context("ucx_perftest prints no CSV that is known here")?;
    let names: Vec<&str> = heading.split(',').map(str::trim).collect();
    let column = names.iter().position(|known| *known == name);
    let column = column.with_context(|| format!("ucx_perftest prints no column {name}"))?;
    let lines = printed.lines().rev().take_while(|line| !is_heading(line));
    let mut rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let row = rows
        .find(|row| row.len() == names.len() && row.iter().all(|field| field.trim().parse::<f64>().is_ok()));
    positive(row.map(|row| row[column]), "ucx_perftest prints no figures")
}

/// A ping-pong over reliable datagrams of libfabric's provider `name`, or of Bywire's: the mean half-RTT in ns. There is no median.
pub fn libfabric_latency(name: &str, place: &Place, size_bytes: u64, iterations: u64) -> Result<Contestant> {
    find("fi_pingpong", "libfabric-bin")?;
    let prefix = match name {
        "bywire" => format!("env FI_PROVIDER=bywire 'FI_PROVIDER_PATH={}'", provider::directory()?.display()),
        _ => own_sys(place).to_owned(),
    };
    let words = format!("-p {name} -e rdm -I {iterations} -S {size_bytes}");
    let place = place.clone();
    Ok(Contestant::of_value(&format!("fi_pingpong {words} HOST"), Unit::Nanoseconds, move || {
        let client = format!("{words} {}", place.address(End::Target));
        let printed = place.converse(&prefix, "fi_pingpong", [&words, &client])?;
        Ok(1e3 * us_per_transfer(&printed)?)
    }))
}

/// The column `usec/xfer` of the only row.
fn us_per_transfer(printed: &str) -> Result<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("bytes"));
    let mut words = || Some(lines.next()?.split_whitespace().collect::<Vec<_>>());
    let column = words().and_then(|heading| heading.iter().position(|name| *name == "usec/xfer"));
    let value = words().zip(column).and_then(|(row, column)| row.get(column).copied());
    positive(value, "fi_pingpong prints no figures that are known here")
}

/// The choices of a plain user of one machine: shared memory between the ranks.
const MPIRUN: &str = "--oversubscribe --bind-to none --mca pml ob1 --mca btl vader,self --mca mpi_yield_when_idle 0 \
                      --mca btl_vader_single_copy_mechanism cma";

/// Open MPI over shared memory, all of it in one run: the median half-RTT, [`Metric::Mean`], for each length [`Metric::Rate`], and
/// of short messages [`Metric::Messages`]. Payloads are written before they are sent and read after they arrive.
pub fn open_mpi() -> Result<Contestant> {
    let program = Tools::of(Implementation::OpenMpi)?.program("ping_pong", include_str!("ping_pong.c"))?;
    let (source, target) = pin::two_cores();
    let command = format!("mpirun -np 2 {MPIRUN} ping_pong {source} {target}");
    Ok(Contestant::adapter(&command, Unit::Nanoseconds, move || {
        let mut command = mpirun(&format!("-np 2 {MPIRUN}"));
        mpi_samples(&job_output(command.arg(&program).args([source, target].map(|core| core.to_string())))?)
    }))
}

/// Rank 0 is connected to all others but one while it measures.
const QUIET_RANKS: u32 = 33;

/// The memory of connections between ranks that have exchanged a few messages: the bytes that one takes at both ends, of Open MPI
/// over Bywire on one machine.
pub fn quiet_connections() -> Result<Contestant> {
    let source = include_str!("quiet_connections.c");
    let program = Tools::of(Implementation::OpenMpi)?.program("quiet_connections", source)?;
    let provider = provider::directory()?;
    let command = format!("mpirun -np {QUIET_RANKS} quiet_connections DIRECTORY");
    Ok(Contestant::of_value(&command, Unit::Bytes, move || {
        // One of its own for each job.
        let files = tempfile::tempdir()?;
        let mut command = mpirun(&format!("-np {QUIET_RANKS} --oversubscribe --bind-to none"));
        command.args(provider::options()).envs(provider::variables(&provider));
        command.args(["-x", "BYWIRE_RUNTIME_DIR"]).env("BYWIRE_RUNTIME_DIR", files.path());
        command.arg(&program).arg(files.path());
        quiet_bytes(&job_output(&mut command)?)
    }))
}

/// Open MPI's launcher.
fn mpirun(options: &str) -> Command {
    let mut command = Command::new("mpirun");
    command.envs(AS_ROOT).args(options.split(' '));
    command
}

/// Returns the output of a job.
fn job_output(job: &mut Command) -> Result<String> {
    let output = job.stdin(Stdio::null()).output().context("cannot start mpirun")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mpirun: {}: {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses lines of `latency MEDIAN MEAN` and `stream SIZE MESSAGES_PER_SECOND`, and ignores others.
fn mpi_samples(printed: &str) -> Result<Samples> {
    let mut samples = Samples::new();
    for line in printed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse::<f64>().ok().filter(|number| *number > 0.0);
        match (words.first(), number(1), number(2)) {
            (Some(&"latency"), Some(median), Some(mean)) => {
                samples.extend([(Metric::Value, median), (Metric::Mean, mean)]);
            }
            (Some(&"stream"), Some(size), Some(messages)) => {
                samples.push((Metric::Rate(size as u64), messages * size));
                if size <= SHORT_BYTES as f64 {
                    samples.push((Metric::Messages, messages));
                }
            }
            _ => {}
        }
    }
    ensure!(!samples.is_empty(), "the program under mpirun prints no figures");
    Ok(samples)
}

fn quiet_bytes(printed: &str) -> Result<f64> {
    let value = printed.lines().find_map(|line| line.strip_prefix("bytes ")?.trim().parse().ok());
    value.context("the program under mpirun prints no bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_of_ucx_is_parsed_by_column_names_and_other_output_is_refused() {
        let printed = "a warning, perhaps\n\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            50000,0.200,0.300,0.300,24.30,24.30,3185116,3185116\n\
            100000,0.155,0.314,0.315,24.30,24.30,3185116,3185117\n";
        assert_eq!(ucx_column(printed, "50.0_percentile_lat").unwrap(), 0.155);
        assert_eq!(ucx_column(printed, "overall_mr").unwrap(), 3_185_117.0);
        assert!(ucx_column(printed, "colour").is_err());
        for rest in ["", "1,x\n", "1,2,3\n", "1\n", "1,0\n"] {
            assert!(ucx_column(&format!("iterations,a\n{rest}"), "a").is_err(), "{rest:?}");
        }
        assert!(ucx_column("", "a").is_err() && ucx_column("1,2,3\n", "a").is_err());
    }

    #[test]
    fn the_row_of_libfabric_is_read_by_its_column() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                       8       10k     =10k     156k        0.37s      0.43      18.60       0.05\n";
        assert_eq!(us_per_transfer(printed).unwrap(), 18.6);
        assert!(us_per_transfer("").is_err());
        assert!(us_per_transfer("bytes usec/xfer\n8 0\n").is_err());
    }

    #[test]
    fn figures_of_jobs_are_found_between_other_lines() {
        let found = mpi_samples("a warning\nlatency 298.5 310\nstream 8 1000\nstream x 1\n").unwrap();
        let [value, mean] = [(Metric::Value, 298.5), (Metric::Mean, 310.0)];
        assert_eq!(found, [value, mean, (Metric::Rate(8), 8000.0), (Metric::Messages, 1000.0)]);
        assert!(mpi_samples("nothing\n").is_err());
        assert_eq!(quiet_bytes("a warning\nbytes 1024.5\n").unwrap(), 1024.5);
        assert!(quiet_bytes("bytes x\n").is_err());
    }
}
