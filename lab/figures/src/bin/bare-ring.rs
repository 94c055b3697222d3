//! Prints what a [bare ring](bywire_figures::bare_ring) takes. Beside each rate stands how long a line takes from core to
//! core just before and just after, because virtual cores move.
//!
//! ```text
//! bare_ring [ROUNDS]
//! ```

use std::process::ExitCode;

use anyhow::{Context, Result};
use bywire_command::exit_status;
use bywire_figures::bare_ring::{Claim, Publication, Variant, WRITABLE, half_rtt_ns, in_turn, rate};
use bywire_measure::pin;
use rustix::mm::ProtFlags;

fn main() -> ExitCode {
    exit_status::of("bare-ring", measure())
}

fn measure() -> Result<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(3), |text| text.parse()).context("ROUNDS is a number")?;
    let cores = pin::two_cores();
    for round in 0..rounds {
        for (publication, name) in Publication::ALL {
            for stores in [0, 12] {
                let variant = Variant { publication, stores, claim: Claim::Late, reader: WRITABLE };
                print(round, cores, variant, &format!("{name}, {stores} stores beside"))?;
            }
        }
        for (reader, mapping) in [(WRITABLE, "writable"), (ProtFlags::READ, "read-only")] {
            for (claim, name) in Claim::ALL {
                let variant = Variant { publication: Publication::Locked, stores: 12, claim, reader };
                print(round, cores, variant, &format!("reader's mapping {mapping}, {name}"))?;
            }
        }
    }
    Ok(())
}

/// Measures one variant and prints it, between two looks at how far the cores are.
fn print(round: u32, cores: (u32, u32), variant: Variant, name: &str) -> Result<()> {
    let before = half_rtt_ns(cores)?;
    let rate = rate(cores, variant)?;
    let (write, read) = in_turn(cores, variant)?;
    let after = half_rtt_ns(cores)?;
    println!(
        "round {round}: line {before:.0} and {after:.0} ns; {name}: {rate:.1} M/s; in turn {write:.1} ns to write, \
         {read:.1} ns to read"
    );
    Ok(())
}
