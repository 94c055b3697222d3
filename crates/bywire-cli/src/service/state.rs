//! How a unit comes up after a restart, as its properties show from moment to moment.

use std::time::Duration;

use super::settings::Settings;

/// The properties that [`State`] is made of.
pub const PROPERTIES: &str =
    "ActiveState,SubState,InvocationID,Job,NRestarts,Result,ExecMainCode,ExecMainStatus,TimeoutStartUSec";
/// A unit without a limit of its own, or with a longer one, is given this time.
const START_MAX: Duration = Duration::from_secs(300);

/// A unit at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    active: String,
    sub: String,
    invocation: String,
    /// systemd has a job for it, such as the restart.
    has_job: bool,
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
            has_job: shown.value("Job").is_some(),
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
        if self.invocation == before.invocation {
            // The state before its restart says nothing. systemd drops the job if something that the unit requires fails.
            return if self.has_job { Progress::Starting } else { Progress::Failed };
        }
        // The count begins at 0 with a start that somebody asked for.
        let has_restarted = self.restarts > 0 && self.restarts != before.restarts;
        match self.active.as_str() {
            _ if has_restarted || self.sub == "auto-restart" => Progress::Failed,
            "active" | "reloading" => Progress::Active,
            "activating" | "deactivating" => Progress::Starting,
            _ => Progress::Failed,
        }
    }

    /// Returns whether systemd has started it once more since `earlier`.
    pub fn has_restarted_since(&self, earlier: &Self) -> bool {
        self.restarts > earlier.restarts || self.invocation != earlier.invocation
    }

    /// The outcome of a restart as systemd has it. `before` is the state when the restart was asked for.
    pub fn outcome(&self, before: &Self) -> String {
        if self.invocation == before.invocation {
            return format!(
                "{} ({}), as systemd has dropped its restart: a unit that it requires has failed, or somebody has stopped it",
                self.active, self.sub
            );
        }
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
            (state("activating", "start", "b", 0), Progress::Starting),
            (state("active", "running", "b", 0), Progress::Active),
            (state("activating", "auto-restart", "b", 0), Progress::Failed),
            // The next start is under way when it is looked at.
            (state("activating", "start", "c", 1), Progress::Failed),
            (state("active", "running", "c", 1), Progress::Failed),
            (state("deactivating", "stop", "b", 0), Progress::Starting),
            (state("failed", "failed", "b", 0), Progress::Failed),
            // A program that has ended without an error.
            (state("inactive", "dead", "b", 0), Progress::Failed),
        ] {
            assert_eq!(now.progress(&before), expected, "{now:?}");
        }
        assert!(state("active", "running", "b", 1).has_restarted_since(&state("active", "running", "b", 0)));
    }

    #[test]
    fn a_unit_with_its_old_invocation_waits_for_its_job_and_has_failed_without_one() {
        for (active, sub) in
            [("active", "running"), ("deactivating", "stop"), ("inactive", "dead"), ("failed", "failed")]
        {
            let before = state(active, sub, "a", 3);
            let waits = State { has_job: true, ..before.clone() };
            assert_eq!(waits.progress(&before), Progress::Starting, "{active}");
            assert_eq!(before.progress(&before), Progress::Failed, "{active}");
        }
        let shown = "ActiveState=inactive\nSubState=dead\nJob=\n";
        assert!(!State::of(&Settings::from_shown(shown)).has_job);
        assert!(State::of(&Settings::from_shown(&shown.replace("Job=", "Job=17"))).has_job);
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
        assert!(failed.outcome(&long).contains("could not be executed"));
        assert!(failed.outcome(&failed).contains("has dropped its restart"));
    }
}
