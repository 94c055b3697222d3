//! The bounds of options.

use std::fmt::Display;
use std::ops::RangeInclusive;

use bywire_command::exit_status::Misuse;

/// The value of an option, or a refusal with its bounds.
pub fn bounded<T: PartialOrd + Display>(
    option: &str,
    value: T,
    bounds: RangeInclusive<T>,
    unit: &str,
) -> Result<T, Misuse> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (bounds.start(), bounds.end());
    Err(Misuse(format!("--{option} {value} is out of bounds: give {least} to {most}{unit}")))
}
