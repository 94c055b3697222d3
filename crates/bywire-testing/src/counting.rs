//! Counts the instructions of some functions of a test program by callgrind. The count is the same on a busy machine as
//! on an idle one. The test fails if a count grows by more than 3 % over `baseline.txt`.
//!
//! `BYWIRE_BLESS=1` writes the counts into the baseline.

use std::path::Path;
use std::process::{Command, ExitCode};

const GROWTH_MAX: f64 = 1.03;
/// Rounds of the shorter and of the longer run. Their difference excludes everything that happens once.
const ROUNDS: [u32; 2] = [20, 120];

/// What is counted, and how much it was.
pub struct Counting<'a> {
    /// The counted functions, by the names that callgrind collects.
    pub names: &'a [&'a str],
    /// Operations in a round.
    pub operations: u32,
    pub baseline: &'a Path,
}

enum Trouble {
    NotRun(String),
    Failed(String),
}

impl Counting<'_> {
    /// The whole test, and the counted program itself: `program` does a number of rounds, with a directory of its own.
    /// `valgrind` begins the command that runs it.
    pub fn test(&self, program: impl Fn(u32, &Path), valgrind: impl Fn() -> Command) -> ExitCode {
        if let (Ok(rounds), Ok(directory)) =
            (std::env::var("BYWIRE_COUNT_ROUNDS"), std::env::var("BYWIRE_COUNT_DIRECTORY"))
        {
            program(rounds.parse().expect("a number"), Path::new(&directory));
            return ExitCode::SUCCESS;
        }
        // Test runners that list tests ask this, and once more for the ignored ones.
        let asks = |option| std::env::args().any(|argument| argument == option);
        if asks("--list") {
            if !asks("--ignored") {
                println!("instruction_counts: test");
            }
            return ExitCode::SUCCESS;
        }
        println!("\nrunning 1 test");
        let outcome = self.compare(valgrind);
        let (verdict, code) = match &outcome {
            Ok(()) => ("ok. 1 passed; 0 failed; 0 ignored", ExitCode::SUCCESS),
            Err(Trouble::NotRun(why)) => {
                println!("not run: {why}");
                ("ok. 0 passed; 0 failed; 1 ignored", ExitCode::SUCCESS)
            }
            Err(Trouble::Failed(why)) => {
                println!("{why}");
                ("FAILED. 0 passed; 1 failed; 0 ignored", ExitCode::FAILURE)
            }
        };
        println!("test result: {verdict}; 0 measured; 0 filtered out");
        code
    }

    fn compare(&self, valgrind: impl Fn() -> Command) -> Result<(), Trouble> {
        if cfg!(debug_assertions) {
            return Err(Trouble::NotRun("the counts are of optimised builds: run with --release".to_owned()));
        }
        if Command::new("valgrind").arg("--version").output().is_err() {
            return Err(Trouble::NotRun("valgrind is missing: apt-get install valgrind".to_owned()));
        }
        let compiler = compiler();
        let counts: Vec<(&str, f64)> =
            self.names.iter().map(|name| (*name, self.count(name, &valgrind))).collect();
        for (name, count) in &counts {
            println!("{name}: {count:.1} instructions");
        }
        if std::env::var_os("BYWIRE_BLESS").is_some() {
            let lines: String = counts.iter().map(|(name, count)| format!("{name} {count:.1}\n")).collect();
            std::fs::write(self.baseline, format!("{compiler}\n{lines}"))
                .expect("the baseline can be written");
            return Ok(());
        }
        let baseline = std::fs::read_to_string(self.baseline).expect("baseline.txt lies beside the test");
        let mut lines = baseline.lines();
        if lines.next() != Some(compiler.as_str()) {
            return Err(Trouble::NotRun(format!(
                "the baseline was counted with another compiler than {compiler}"
            )));
        }
        let grown: Vec<String> = lines
            .filter_map(|line| {
                let (name, before) = line.split_once(' ')?;
                let before: f64 = before.parse().expect("a number in the baseline");
                let known = counts.iter().find(|(known, _)| *known == name);
                let now = known.expect("a name of ours in the baseline").1;
                (now > before * GROWTH_MAX)
                    .then(|| format!("{name} grew from {before} to {now:.1} instructions"))
            })
            .collect();
        if grown.is_empty() { Ok(()) } else { Err(Trouble::Failed(grown.join("; "))) }
    }

    /// Instructions per operation inside the function `name`.
    fn count(&self, name: &str, valgrind: impl Fn() -> Command) -> f64 {
        let totals = ROUNDS.map(|rounds| {
            let directory = tempfile::tempdir().expect("a directory");
            let file = directory.path().join("callgrind.out");
            let output = valgrind()
                .arg("--tool=callgrind")
                .arg(format!("--callgrind-out-file={}", file.display()))
                .arg(format!("--toggle-collect=*{name}*"))
                .arg(std::env::current_exe().expect("this test"))
                .env("BYWIRE_COUNT_ROUNDS", rounds.to_string())
                .env("BYWIRE_COUNT_DIRECTORY", directory.path())
                .output()
                .expect("valgrind runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let written = std::fs::read_to_string(&file).expect("callgrind's output");
            let total = written.lines().find_map(|line| line.strip_prefix("totals: ")).expect("a total");
            total.parse::<f64>().expect("a number")
        });
        (totals[1] - totals[0]) / f64::from((ROUNDS[1] - ROUNDS[0]) * self.operations)
    }
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().expect("rustc");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
