//! A comparison as JUnit XML: one test case for each cell, so that any CI system shows it.

use bywire_results::cell::Cell;
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

use crate::comparison::{Comparison, Row, Verdict};

/// The whole document. Worse cells are failures, and missing ones are errors. Cells with too few pairs, and cells that
/// may be missing, are skipped. Fails if the library cannot write it.
pub fn report(comparison: &Comparison) -> Result<String, SerializeError> {
    let mut suite = TestSuite::new(format!("{} against {}", comparison.after.name, comparison.before.name));
    for row in &comparison.rows {
        suite.add_test_case(case(row.before, row.name(), status(row)));
    }
    for missing in &comparison.missing {
        let status = match comparison.rule.allow_missing {
            true => TestCaseStatus::skipped(),
            false => TestCaseStatus::non_success(NonSuccessKind::Error),
        };
        let status = explained(status, format!("missing: {}", missing.reason));
        suite.add_test_case(case(missing.before, missing.name(), status));
    }
    let mut report = Report::new("bywire compare");
    report.add_test_suite(suite);
    report.to_string()
}

fn case(cell: &Cell, name: String, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(format!("bywire.{}.{}", cell.level, cell.test));
    case
}

fn explained(mut status: TestCaseStatus, message: String) -> TestCaseStatus {
    status.set_message(message);
    status
}

fn status(row: &Row) -> TestCaseStatus {
    let figures = || {
        let interval = row.ratio.and_then(|ratio| ratio.1);
        let interval = interval.map(|[low, high]| format!(", {low:.3} to {high:.3}")).unwrap_or_default();
        let ratio = row.ratio.map_or(f64::NAN, |ratio| ratio.0);
        format!("{}: {ratio:.3} times what it was{interval}", row.verdict.name())
    };
    match row.verdict {
        Verdict::Worse => explained(TestCaseStatus::non_success(NonSuccessKind::Failure), figures()),
        Verdict::TooFewPairs => {
            let few = "too few pairs under like conditions for a verdict";
            explained(TestCaseStatus::skipped(), few.to_owned())
        }
        Verdict::Better | Verdict::Same | Verdict::NoDifference => TestCaseStatus::success(),
    }
}
