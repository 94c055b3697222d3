//! Sizes as people write them: `64`, `8K`, `64kb`, `1MiB`.

use anyhow::{Context, Result};

const UNITS: [(char, u64); 3] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];

/// Parses a length in bytes: a whole number with an optional unit K, M or G, which may be followed by `B` or `iB`.
///
/// Every unit is a power of 1,024, as in netperf and iperf3. Fails with one line about the forms that are understood.
pub fn parse(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let behind = text[digits.len()..].to_ascii_uppercase();
    let unit = UNITS.iter().find(|(letter, _)| behind.starts_with(*letter));
    let (rest, unit) = unit.map_or((behind.as_str(), 1), |(_, unit)| (&behind[1..], *unit));
    let is_unit = rest.is_empty() || rest == "B" || (rest == "IB" && unit > 1);
    let number = digits.trim_end().parse::<u64>().ok().filter(|_| is_unit);
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.with_context(|| format!("`{text}` is not a size: write it like 64, 8K or 1MiB"))
}

/// The shortest form that [`parse`] reads back.
pub fn show(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(letter, unit)| format!("{}{letter}iB", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_printed() {
        for (text, bytes) in
            [("64", 64), ("1KiB", 1024), ("1MiB", 1 << 20), ("1000", 1000), ("2GiB", 2 << 30)]
        {
            assert_eq!((parse(text).unwrap(), show(bytes).as_str()), (bytes, text));
        }
        for wrong in ["", "KiB", "-1", "1.5KiB", "8Q", "8KK", "8Ki", "8 KiB B", "1\u{e9}", "99999999999GiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn units_are_powers_of_1024_in_upper_or_lower_case() {
        for (bytes, texts) in [
            (8192, "8K,8k,8KB,8kB,8kb,8KiB,8kib,8KIB,8 KiB,8192,8192B"),
            (1 << 20, "1M,1m,1MB,1mb,1MiB"),
            (1 << 30, "1G,1gb"),
        ] {
            assert!(texts.split(',').all(|text| parse(text).unwrap() == bytes), "{texts}");
        }
    }
}
