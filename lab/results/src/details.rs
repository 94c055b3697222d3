//! The further results of a cell, by names that end with their units.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::values::named_values;
use crate::web::{LOADS, OpenLoop};

/// The share of all payload that did not arrive.
pub const LOST_SHARE: &str = "lost_share";
/// The median rates of a sweep: a list of (length in bytes, bytes per second).
pub const RATES_BY_SIZE: &str = "bytes_per_second_by_size";

/// The command that takes a cell which is none of `bywire measure`.
pub const COMMAND: &str = "command";

named_values! {
    /// Named results besides a cell's value, such as `sent_bytes_per_second`. Each test has its own. The methods read them,
    /// and return nothing for a result that is absent or has another type.
    Details
}

impl Details {
    /// A number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// A whole number.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// A list of numbers.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        self.entries(name).iter().filter_map(Value::as_f64).collect()
    }

    /// A structure.
    pub fn structure<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        T::deserialize(self.get(name)?).ok()
    }

    /// One line about the cores, if one of them had no time left for more connections.
    pub fn limited_by(&self) -> Option<&str> {
        self.text("limited_by")
    }

    /// The share of all payload that did not arrive. Absent on levels that lose nothing.
    pub fn lost_share(&self) -> Option<f64> {
        self.number(LOST_SHARE)
    }

    /// The median rates of a sweep, as (length in bytes, bytes per second).
    pub fn rates_by_size(&self) -> Option<Vec<(f64, f64)>> {
        self.get(RATES_BY_SIZE)?.as_array()?;
        let point = |point: &Value| Some((point.get(0)?.as_f64()?, point.get(1)?.as_f64()?));
        Some(self.entries(RATES_BY_SIZE).iter().filter_map(point).collect())
    }

    /// The open loops of a web server's cell.
    pub fn open_loops(&self) -> Vec<OpenLoop> {
        self.entries(LOADS).iter().filter_map(|entry| OpenLoop::deserialize(entry).ok()).collect()
    }

    fn entries(&self, name: &str) -> &[Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_are_typed_and_values_of_another_type_are_absent() {
        let details: Details = serde_json::from_value(json!({
            "elapsed_seconds": 1.5, "messages_sent": 7, "limited_by": "the source's core", "connections_ns": [1, 2.5],
            "bytes_per_second_by_size": [[8, 1e6], ["x", 1], [64, 5e6]],
            "open_loads": [{ "share": 0.5, "due": 4, "answered": 3 }, "text"],
        }))
        .expect("an object");
        assert_eq!((details.number("elapsed_seconds"), details.count("messages_sent")), (Some(1.5), Some(7)));
        assert_eq!((details.count("elapsed_seconds"), details.number("limited_by")), (None, None));
        assert_eq!((details.limited_by(), details.lost_share()), (Some("the source's core"), None));
        assert_eq!(details.numbers("connections_ns"), [1.0, 2.5]);
        assert_eq!(details.rates_by_size(), Some(vec![(8.0, 1e6), (64.0, 5e6)]));
        let loops = details.open_loops();
        assert_eq!((loops.len(), loops[0].due, loops[0].is_sustained()), (1, 4, false));
    }
}
