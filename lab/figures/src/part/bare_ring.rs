//! Prints what a [bare ring](crate::bare_ring) takes. Beside each rate stands how long a line takes from core to core just before
//! and just after, because virtual cores move.

use anyhow::Result;
use clap::Parser;
use rustix::mm::ProtFlags;

use crate::bare_ring::{Claim, Publication, Variant, WRITABLE, half_rtt_ns, in_turn, rate};

/// A bare ring of cache lines between two cores
#[derive(Parser)]
pub struct BareRing {
    /// How often each variant is measured
    #[arg(default_value_t = 3)]
    rounds: u32,
}

impl BareRing {
    /// Measures and prints every variant.
    pub fn run(self) -> Result<()> {
        for round in 0..self.rounds {
            for (publication, name) in Publication::ALL {
                for stores in [0, 12] {
                    let variant = Variant { publication, stores, claim: Claim::Late, reader: WRITABLE };
                    print(round, variant, &format!("{name}, {stores} stores beside"))?;
                }
            }
            for (reader, mapping) in [(WRITABLE, "writable"), (ProtFlags::READ, "read-only")] {
                for (claim, name) in Claim::ALL {
                    let variant = Variant { publication: Publication::Locked, stores: 12, claim, reader };
                    print(round, variant, &format!("reader's mapping {mapping}, {name}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Measures one variant and prints it, between two looks at how far the cores are.
fn print(round: u32, variant: Variant, name: &str) -> Result<()> {
    let before = half_rtt_ns()?;
    let rate = rate(variant)?;
    let (write, read) = in_turn(variant)?;
    let after = half_rtt_ns()?;
    println!(
        "round {round}: line {before:.0} and {after:.0} ns; {name}: {rate:.1} M/s; in turn {write:.1} ns to write, \
         {read:.1} ns to read"
    );
    Ok(())
}
