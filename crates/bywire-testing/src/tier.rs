//! How much a run of the tests proves: `./x test` is for every change, `./x test all` for what lands, `./x test soak` for
//! what is released.

use std::fmt::Debug;
use std::str::FromStr;

/// The variable that `./x test` sets to the tier's name.
const VARIABLE: &str = "BYWIRE_TESTS";

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// A change under way: minutes.
    Quick,
    /// A change that is about to land: every promise, by as many draws as a quarter of an hour allows.
    All,
    /// A release: hours.
    Soak,
}

impl Tier {
    /// The tier of this run.
    ///
    /// # Panics
    ///
    /// When the variable holds another word.
    pub fn current() -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("quick") => Self::Quick,
            Ok("all") => Self::All,
            Ok("soak") => Self::Soak,
            Ok(other) => panic!("{VARIABLE}={other}: it is quick, all or soak"),
        }
    }

    /// The value of this tier among those of all.
    pub fn pick<Value>(self, [quick, all, soak]: [Value; 3]) -> Value {
        match self {
            Self::Quick => quick,
            Self::All => all,
            Self::Soak => soak,
        }
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

/// How many seeds, rounds or programs a random test draws: the variable's number, or that of the tier (quick, all, soak).
pub fn repetitions(name: &str, of_tiers: [u64; 3]) -> u64 {
    number(name, Tier::current().pick(of_tiers))
}
