//! Numbers of things, in words that agree with them.

/// `count` with its noun.
pub fn of(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
