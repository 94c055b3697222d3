//! How a unit comes up after a restart, as its properties show from moment to moment.

use std::time::Duration;

use super::settings::Settings;

/// The properties that [`State`] is made of.
pub const PROPERTIES: &str =
    "ActiveState,SubState,InvocationID,NRestarts,Result,ExecMainCode,ExecMainStatus,TimeoutStartUSec";
/// A unit without a limit of its own, or with a longer one, is given this time.
const START_MAX: Duration = Duration::from_secs(300);

/// A unit at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    active: String,
    sub: String,
    invocation: String,
    restarts: u64,
    result: String,
    exit_status: String,
    start_timeout: Option<Duration>,
}

/// How far a restarted unit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is on its way.
    Starting,
    /// It is active, as far as systemd knows.
    Active,
    /// It does not come up.
    Failed,
}

impl State {
    /// Reads the properties.
    pub fn of(shown: &Settings) -> Self {
        let text = |name| shown.value(name).unwrap_or_default().to_owned();
        Self {
            active: text("ActiveState"),
            sub: text("SubState"),
            invocation: text("InvocationID"),
            restarts: shown.value("NRestarts").and_then(|count| count.parse().ok()).unwrap_or(0),
            result: text("Result"),
            exit_status: text("ExecMainStatus"),
            start_timeout: shown.value("TimeoutStartUSec").and_then(duration),
        }
    }

    /// Returns whether the unit runs, or is about to.
    pub fn is_up(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading")
    }

    /// Returns whether the unit is stopping.
    pub fn is_stopping(&self) -> bool {
        self.active == "deactivating"
    }

    /// The word that `systemctl is-active` prints.
    pub fn word(&self) -> &str {
        &self.active
    }

    /// The time that a start may take.
    pub fn start_max(&self) -> Duration {
        self.start_timeout.map_or(START_MAX, |timeout| timeout.min(START_MAX))
    }

    /// How far the unit has come since it was `before`, when its restart was asked for.
    pub fn progress(&self, before: &Self) -> Progress {
        if self.sub == "auto-restart" || self.active == "failed" {
            // The state of an earlier failure says nothing about the restart.
            return if self.invocation == before.invocation && self.active == before.active {
                Progress::Starting
            } else {
                Progress::Failed
            };
        }
        let is_active = matches!(self.active.as_str(), "active" | "reloading");
        if self.invocation == before.invocation || !is_active {
            return Progress::Starting;
        }
        Progress::Active
    }

    /// Returns whether systemd has started it once more since `earlier`.
    pub fn has_restarted_since(&self, earlier: &Self) -> bool {
        self.restarts > earlier.restarts || self.invocation != earlier.invocation
    }

    /// The outcome as systemd has it.
    pub fn outcome(&self) -> String {
        let meaning = match self.exit_status.as_str() {
            "203" => ": a program could not be executed",
            "226" => ": the sandbox could not be set up",
            "217" => ": its user does not exist",
            _ => "",
        };
        format!(
            "{} ({}), result {}, status {}{meaning}",
            self.active, self.sub, self.result, self.exit_status
        )
    }
}

/// A time span as `systemctl show` prints it, such as `1min 30s`. `None`: infinity, or no span.
fn duration(shown: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for word in shown.split_whitespace() {
        let digits =
            word.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let seconds = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" | "" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        sum = sum.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
    }
    (!sum.is_zero()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(active: &str, sub: &str, invocation: &str, restarts: u64) -> State {
        State {
            active: active.into(),
            sub: sub.into(),
            invocation: invocation.into(),
            restarts,
            ..State::default()
        }
    }

    #[test]
    fn a_restarted_unit_is_active_or_has_failed_once_its_invocation_is_new() {
        let before = state("active", "running", "a", 0);
        for (now, expected) in [
            (state("active", "running", "a", 0), Progress::Starting),
            (state("deactivating", "stop", "a", 0), Progress::Starting),
            (state("activating", "start", "b", 0), Progress::Starting),
            (state("active", "running", "b", 0), Progress::Active),
            (state("activating", "auto-restart", "b", 0), Progress::Failed),
            (state("failed", "failed", "b", 0), Progress::Failed),
            (state("failed", "failed", "a", 0), Progress::Failed),
        ] {
            assert_eq!(now.progress(&before), expected, "{now:?}");
        }
        // A unit that had failed before is not failed anew until it was tried.
        let failed = state("failed", "failed", "a", 0);
        assert_eq!(failed.progress(&failed), Progress::Starting);
        assert!(state("active", "running", "b", 1).has_restarted_since(&state("active", "running", "b", 0)));
    }

    #[test]
    fn time_spans_of_systemd_are_read_and_bounded() {
        for (shown, expected) in [
            ("1min 30s", Some(Duration::from_secs(90))),
            ("1.500s", Some(Duration::from_millis(1500))),
            ("250ms", Some(Duration::from_millis(250))),
            ("infinity", None),
            ("0", None),
            ("1h 1parsec", None),
        ] {
            assert_eq!(duration(shown), expected, "{shown}");
        }
        let long = State { start_timeout: Some(Duration::from_secs(900)), ..State::default() };
        assert_eq!((long.start_max(), State::default().start_max()), (START_MAX, START_MAX));
        let failed = State { exit_status: "203".into(), ..state("failed", "failed", "b", 0) };
        assert!(failed.outcome().contains("could not be executed"));
    }
}
