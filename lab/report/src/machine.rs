//! The machines of a session, in words.

use serde_json::Value;

/// Processor and kernel of each machine. With several machines, each has its session's name.
pub fn machines(environment: &Value) -> Vec<String> {
    let at = |pointer: &str| environment.pointer(pointer).and_then(Value::as_str);
    let release = at("/kernel/release").map(|release| format!("Linux {release}"));
    let own: Vec<String> = at("/cpu/model").map(str::to_owned).into_iter().chain(release).collect();
    if !own.is_empty() {
        return vec![own.join(" · ")];
    }
    let sessions = environment.as_object().into_iter().flatten();
    let named = sessions.flat_map(|(name, environment)| {
        let told = machines(environment);
        told.into_iter().map(move |told| if told.contains(": ") { told } else { format!("{name}: {told}") })
    });
    named.collect()
}
