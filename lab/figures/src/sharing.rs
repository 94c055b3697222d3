//! Two streams at the same time on the same wire.

use anyhow::{Context, Result, ensure};
use bywire_measure::measure::{Measurement, PAIRS, Request, Topology};
use bywire_results::cell::Unit;

use crate::contestant::Contestant;

/// The lesser of the shares of what both streams carry in `seconds`.
///
/// # Errors
/// A request that makes no sense here.
pub fn contestant(topology: &mut Topology, requests: [Request; 2], seconds: f64) -> Result<Contestant> {
    let requests =
        requests.map(|request| Request { time_seconds: Some(seconds * f64::from(PAIRS)), ..request });
    let command = requests.each_ref().map(Request::command).join(" beside ");
    let [first, second] = requests;
    let mut pair = [Measurement::prepare(first, topology)?, Measurement::prepare(second, topology)?];
    Ok(Contestant::of_value(command, Unit::Share, move || {
        let [first, second] = &mut pair;
        let rates = std::thread::scope(|scope| -> Result<[f64; 2]> {
            let beside = scope.spawn(|| mean_of_pair(second));
            let own = mean_of_pair(first)?;
            Ok([own, beside.join().ok().context("a measurement has died")??])
        })?;
        Ok(rates[0].min(rates[1]) / (rates[0] + rates[1]))
    }))
}

/// The mean rate of a fresh pair over all of its time.
fn mean_of_pair(measurement: &mut Measurement) -> Result<f64> {
    let pair = measurement.pairs_taken();
    measurement.take_pair()?;
    let cell = measurement.cell()?;
    let blocks = || cell.blocks.iter().filter(|block| block.pair == pair);
    let seconds: f64 = blocks().map(|block| block.seconds).sum();
    ensure!(seconds > 0.0, "this pair has no value");
    Ok(blocks().map(|block| block.value * block.seconds).sum::<f64>() / seconds)
}
