//! Parameters of cells that have a meaning of their own, and what a reader is told of each.

use serde_json::Value;

/// The session that a cell is from, where there are several.
pub const MACHINE: &str = "machine";

/// The parameter `spin` of an end that polls a bounded time, then sleeps: it is `true` where it polls, `false` where it
/// sleeps at once.
pub const ADAPTIVE: &str = "adaptive";

/// Whose MPI it was.
pub const MPI: &str = "mpi";

/// A parameter as a reader would say it.
pub fn parameter(name: &str, value: &Value) -> String {
    let plain = match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "on".into(),
        Value::Bool(false) => "off".into(),
        other => other.to_string(),
    };
    match (name, plain.as_str()) {
        ("lent", "on") => "lent".into(),
        ("lent", "off") => "copied".into(),
        ("both-cores", "on") => "both cores".into(),
        ("both-cores", "off") => "one core".into(),
        ("lines", "1") => "one line".into(),
        ("lines", _) => format!("{plain} lines"),
        (MACHINE | MPI, _) => plain,
        ("protocol", _) => plain.to_uppercase(),
        ("mtu", _) => format!("MTU {plain}"),
        _ => format!("{} {plain}", name.replace('-', " ")),
    }
}
