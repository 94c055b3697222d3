//! The laboratory's own measurements as contestants.

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::median;
use bywire_measure::measure::{Measurement, PAIRS, Request, Topology};
use bywire_results::cell::{Block, Cell};

use crate::contest::{Contestant, Taken};

/// Messages of up to this are counted as well as their bytes.
pub const SHORT_BYTES: u64 = 64;

/// `request` under the series `name`; a latency also yields `name mean` and `name p99.9`, a stream of short messages
/// `name messages`, per second. Each pair measures for `pair_seconds`.
///
/// # Errors
/// A request that makes no sense here.
pub fn contestant(name: &str, request: Request, pair_seconds: f64) -> Result<Contestant> {
    contestant_in(&mut Topology::default(), name, request, pair_seconds)
}

/// The same in namespaces that several contestants share.
///
/// # Errors
/// As [`contestant`].
pub fn contestant_in(
    topology: &mut Topology,
    name: &str,
    request: Request,
    pair_seconds: f64,
) -> Result<Contestant> {
    let request = Request { time_seconds: Some(pair_seconds * f64::from(PAIRS)), ..request };
    let command = request.command();
    let mut measurement = Measurement::prepare(request, topology)?;
    let series = name.to_owned();
    Ok(Contestant { name: name.to_owned(), command, take: Box::new(move || take(&mut measurement, &series)) })
}

/// Two streams at the same time on the same wire, for `seconds`: the series `name` is the lesser of their shares of what both
/// carry.
///
/// # Errors
/// As [`contestant`].
pub fn share_in(
    topology: &mut Topology,
    name: &str,
    requests: [Request; 2],
    seconds: f64,
) -> Result<Contestant> {
    let requests =
        requests.map(|request| Request { time_seconds: Some(seconds * f64::from(PAIRS)), ..request });
    let command = requests.each_ref().map(Request::command).join(" beside ");
    let [first, second] = requests;
    let mut pair = [Measurement::prepare(first, topology)?, Measurement::prepare(second, topology)?];
    let series = name.to_owned();
    let take = move || {
        let [first, second] = &mut pair;
        let rates = std::thread::scope(|scope| -> Result<[f64; 2]> {
            let beside = scope.spawn(|| mean_of_pair(second));
            let own = mean_of_pair(first)?;
            Ok([own, beside.join().ok().context("a measurement has died")??])
        })?;
        Ok(Taken::one(&series, rates[0].min(rates[1]) / (rates[0] + rates[1])))
    };
    Ok(Contestant { name: name.to_owned(), command, take: Box::new(take) })
}

/// What a fresh pair comes to over all of its time.
fn mean_of_pair(measurement: &mut Measurement) -> Result<f64> {
    let (_, blocks) = take_blocks(measurement)?;
    let seconds: f64 = blocks.iter().map(|block| block.seconds).sum();
    Ok(blocks.iter().map(|block| block.value * block.seconds).sum::<f64>() / seconds)
}

/// The cell with a fresh pair, and that pair's blocks.
fn take_blocks(measurement: &mut Measurement) -> Result<(Cell, Vec<Block>)> {
    let pair = measurement.pairs_taken();
    measurement.take_pair()?;
    let cell = measurement.cell()?;
    let blocks: Vec<_> = cell.blocks.iter().filter(|block| block.pair == pair).cloned().collect();
    ensure!(!blocks.is_empty(), "this pair has no value");
    Ok((cell, blocks))
}

fn take(measurement: &mut Measurement, series: &str) -> Result<Taken> {
    let (cell, blocks) = take_blocks(measurement)?;
    let middle = |of: &dyn Fn(&Block) -> f64| median(&blocks.iter().map(of).collect::<Vec<_>>());
    let mut values = vec![(series.to_owned(), middle(&|block| block.value))];
    match cell.test.as_str() {
        "latency" => {
            let mean = middle(&|block| 1e9 * block.seconds / block.operations as f64 / 2.0);
            values.push((format!("{series} mean"), mean));
            let percentiles = measurement.percentiles_of_last_pair();
            values.extend(percentiles.map(|of| (format!("{series} p99.9"), of.p999)));
        }
        "stream" if cell.size_bytes.is_some_and(|bytes| bytes <= SHORT_BYTES) => {
            let size = cell.size_bytes.unwrap_or(1) as f64;
            values.push((format!("{series} messages"), middle(&|block| block.value / size)));
        }
        _ => {}
    }
    Ok(Taken {
        values,
        blocks: blocks.len() as u64,
        blocks_disturbed: blocks.iter().filter(|block| !block.disturbed.is_empty()).count() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_contains_every_option_of_the_request() {
        let request = Request {
            size_bytes: Some(8),
            integrity: Some(true),
            spin: Some(false),
            time_seconds: Some(2.0),
            ..Request::new("msg", "latency")
        };
        assert_eq!(
            request.command(),
            "bywire measure msg latency --size 8 --integrity on --no-spin --time 2"
        );
        let request = Request { lines: Some(256), ..Request::new("memory", "cacheline") };
        assert_eq!(request.command(), "bywire measure memory cacheline --lines 256");
    }
}
