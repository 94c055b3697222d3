//! How much a run of the tests proves: `./x test` is for every change, `./x test all` for what lands.

use std::fmt::Debug;
use std::str::FromStr;

/// The variable that `./x test all` sets to `all`.
const VARIABLE: &str = "BYWIRE_TESTS";

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// A change under way: minutes.
    Quick,
    /// Everything.
    All,
}

impl Tier {
    /// The tier of this run.
    pub fn current() -> Self {
        if std::env::var_os(VARIABLE).is_some_and(|value| value == "all") { Self::All } else { Self::Quick }
    }
}

/// A number from the environment.
///
/// # Panics
///
/// When the variable is there and holds no number.
pub fn number<Number: FromStr<Err: Debug>>(name: &str, default: Number) -> Number {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error:?}"))
}

/// How many seeds, rounds or programs a random test draws: the variable's number, or that of the tier.
pub fn repetitions(name: &str, quick: u64, all: u64) -> u64 {
    number(name, if Tier::current() == Tier::All { all } else { quick })
}
