//! The differences between the environments of two sessions.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// Facts that differ between any two sessions and mean nothing.
const ALWAYS_DIFFERENT: [&str; 4] = ["/command", "/idle_before", "/idle_after", "/steal_seen"];

/// The most changes that are listed.
const CHANGES_MAX: usize = 40;

/// One fact that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Its path in the environment, such as `kernel.release`.
    pub fact: String,
    /// Its value before. `None` if it was not known.
    pub before: Option<Value>,
    /// Its value after. `None` if it is not known.
    pub after: Option<Value>,
}

/// The facts that differ, sorted by name.
pub fn changes(before: &Value, after: &Value) -> Vec<Change> {
    let [before, after] = [before, after].map(|environment| BTreeMap::from_iter(facts("", environment)));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differing = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let change = |name: &String| Change {
        fact: name.trim_start_matches('/').replace('/', "."),
        before: before.get(name).cloned(),
        after: after.get(name).cloned(),
    };
    differing.map(change).take(CHANGES_MAX).collect()
}

/// Every value that is not an object, with its path.
fn facts(at: &str, value: &Value) -> Vec<(String, Value)> {
    match value {
        _ if ALWAYS_DIFFERENT.contains(&at) => Vec::new(),
        Value::Object(parts) => {
            parts.iter().flat_map(|(name, part)| facts(&format!("{at}/{name}"), part)).collect()
        }
        value => vec![(at.to_owned(), value.clone())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_are_listed_except_those_that_always_exist() {
        let before = json!({ "kernel": { "release": "6.1" }, "command": ["a"], "boot": "x", "old": 1 });
        let after = json!({ "kernel": { "release": "6.2" }, "command": ["b"], "boot": "x" });
        let found = changes(&before, &after);
        let names: Vec<&str> = found.iter().map(|change| change.fact.as_str()).collect();
        assert_eq!(names, ["kernel.release", "old"]);
        assert_eq!(found[1].after, None);
    }
}
