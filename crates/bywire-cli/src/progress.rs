//! The progress of a long command: one line of standard error that is rewritten, on a terminal only.

use std::io::{IsTerminal, stderr};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar with the time left.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// Shown at once on a terminal, and never elsewhere.
    pub fn new() -> Self {
        let bar = ProgressBar::new(1000).with_style(
            ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}").expect("a template that parses"),
        );
        if !stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, started: Instant::now() }
    }

    /// Sets the share that is done, 0 to 1.
    pub fn advance(&self, share: f64) {
        let share = share.clamp(0.001, 1.0);
        // The estimate is corrected by the time that it has taken so far.
        let left = self.started.elapsed().as_secs_f64() * (1.0 / share - 1.0);
        self.bar.set_position((1000.0 * share) as u64);
        self.bar.set_message(format!("{} left", minutes(left)));
    }

    /// A line above the bar; false where there is no bar to be seen.
    pub fn print(&self, line: &str) -> bool {
        if self.bar.is_hidden() {
            return false;
        }
        self.bar.println(line);
        true
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn minutes(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
