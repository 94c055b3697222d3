//! Sizes as people write them: `64`, `1KiB`, `64KiB`, `1MiB`.

use anyhow::{Context, Result};

const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Bytes, out of a whole number with or without one of KiB, MiB and GiB behind it.
///
/// # Errors
/// One line with the forms that are understood.
pub fn parse(text: &str) -> Result<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|&(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .unwrap_or((text, 1));
    number
        .trim_end()
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .with_context(|| format!("`{text}` is no size: write it like 64, 1KiB or 1MiB"))
}

/// The shortest form that [`parse`] reads back.
pub fn show(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(suffix, unit)| format!("{}{suffix}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in [("64", 64), ("1KiB", 1024), ("1MiB", 1 << 20), ("1000", 1000)] {
            assert_eq!(parse(text).unwrap(), bytes);
            assert_eq!(show(bytes), text);
        }
        for wrong in ["", "KiB", "-1", "1.5KiB", "1k", "99999999999GiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
