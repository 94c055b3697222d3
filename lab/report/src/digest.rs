//! A session, and what every form of the report takes from it.

use bywire_results::cell::Session;
use serde_json::Value;

use crate::ceiling::Ceilings;
use crate::comparison::{Comparison, comparisons};
use crate::disturbed_cells::Disturbance;
use crate::plot;
use crate::plot::data::Plot;
use crate::verdict::Verdict;
use crate::way::Way;

/// A session, its ways, and what they come to.
pub struct Digest<'a> {
    pub session: &'a Session,
    pub ways: &'a [Way<'a>],
    pub ceilings: Ceilings<'a>,
    pub comparisons: Vec<Comparison<'a>>,
    pub verdict: Verdict,
}

impl<'a> Digest<'a> {
    pub fn of(session: &'a Session, ways: &'a [Way<'a>]) -> Self {
        let is_disturbed = Disturbance::of(&session.cells).is_disturbed();
        let (ceilings, comparisons) = (Ceilings::of(&session.cells), comparisons(ways, is_disturbed));
        let verdict = Verdict::of(session, &comparisons, &ceilings);
        Self { session, ways, ceilings, comparisons, verdict }
    }

    pub fn plots(&self) -> Vec<Plot> {
        plot::plots(self.ways, &self.ceilings, &self.comparisons)
    }

    pub fn machines(&self) -> Vec<String> {
        machines(&self.session.environment)
    }
}

/// Processor and kernel of each machine. With several machines, each has its session's name.
fn machines(environment: &Value) -> Vec<String> {
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
