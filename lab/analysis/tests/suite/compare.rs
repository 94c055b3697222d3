//! A comparison of equals claims no difference in 19 of 20 cases, and 10 % is found in 19 of 20, on a simulated machine
//! that changes its state.
//!
//! The machine is as restless as the one that these figures were read from: its cores move apart for seconds or
//! minutes, everything drifts, and pairs stray. Seeds are fixed.

use std::path::Path;

use bywire_analysis::side::Side;
use bywire_analysis::{Comparison, Rule, Verdict, benchmark_action, junit};
use bywire_results::cell::{Absence, Block, CELL_SCHEMA, Cell, CpuBothEnds, SESSION_SCHEMA, Session, Unit};
use bywire_results::moment::{MachineSpeed, Moment};
use bywire_results::store::Store;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

const CELLS: usize = 12;
const ROUNDS: u32 = 20;
/// One pair with all that belongs to it.
const PAIR_SECONDS: f64 = 0.12;
/// The cell that is slowed down where one is; its pairs scatter by 3 %.
const SLOWED: usize = 2;

/// A machine that changes while sessions are taken on it.
struct Machine {
    random: StdRng,
    seconds: f64,
    is_far: bool,
    /// Of everything, in logarithms: it comes back to nought within minutes.
    drift: f64,
}

impl Machine {
    fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), seconds: 1e9, is_far: false, drift: 0.0 }
    }

    /// Two uniform numbers make a normal one (Box and Muller).
    fn normal(&mut self) -> f64 {
        let (radius, angle): (f64, f64) = (self.random.random(), self.random.random());
        f64::sqrt(-2.0 * (1.0 - radius).ln()) * f64::cos(angle * std::f64::consts::TAU)
    }

    fn pass(&mut self, seconds: f64) {
        self.seconds += seconds;
        let dwell_seconds = if self.is_far { 8.0 } else { 60.0 };
        if self.random.random::<f64>() < 1.0 - f64::exp(-seconds / dwell_seconds) {
            self.is_far = !self.is_far;
        }
        let kept = f64::exp(-seconds / 120.0);
        self.drift = self.drift * kept + 0.01 * f64::sqrt(1.0 - kept * kept) * self.normal();
    }

    fn speed(&mut self) -> MachineSpeed {
        let line_ns = if self.is_far { 167.0 } else { 38.0 } * (0.06 * self.normal()).exp();
        let wake_ns = 14_700.0 * (self.drift + 0.05 * self.normal()).exp();
        MachineSpeed { line_ns: Some(line_ns), step_ns: Some(1.09), wake_ns: Some(wake_ns) }
    }

    /// What a pair of that cell yields now, in ns.
    fn value(&mut self, cell: usize) -> f64 {
        // Some cells are quiet and some are not; the distance of the cores matters to some.
        let scatter = [0.01, 0.03, 0.08][(cell / 2) % 3];
        let far = if self.is_far { [0.1, 1.0, 0.4][cell % 3] } else { 0.0 };
        let stray = if self.random.random::<f64>() < 0.05 { 0.3 } else { 0.0 };
        (5.0 + cell as f64 + far + stray + self.drift + scatter * self.normal()).exp()
    }

    /// A session of `rounds`, in which one cell takes so much longer.
    fn session(&mut self, rounds: u32, slow_down: f64) -> Session {
        let mut cells: Vec<Cell> = (0..CELLS).map(cell).collect();
        for pair in 0..rounds {
            for (index, cell) in cells.iter_mut().enumerate() {
                let before = self.speed();
                let factor = if index == SLOWED { 1.0 + slow_down } else { 1.0 };
                let value = self.value(index) * factor;
                let began_unix_seconds = self.seconds;
                self.pass(PAIR_SECONDS);
                cell.moments.push(Moment { pair, began_unix_seconds, before, after: self.speed() });
                cell.blocks.push(Block {
                    pair,
                    value,
                    seconds: 0.04,
                    operations: 1,
                    disturbed: Vec::new(),
                    outlier: false,
                });
            }
        }
        for cell in &mut cells {
            let values: Vec<f64> = cell.blocks.iter().map(|block| block.value).collect();
            cell.value = bywire_analysis::statistics::median(&values);
        }
        Session {
            schema: SESSION_SCHEMA.into(),
            preset: "simulated".into(),
            started: format!("{:.3}", self.seconds),
            seconds: 0.0,
            command: Vec::new(),
            environment: json!({ "kernel": { "release": "6.18" } }),
            absent: Vec::new(),
            complete: true,
            cells,
        }
    }
}

fn cell(index: usize) -> Cell {
    Cell {
        schema: CELL_SCHEMA.into(),
        level: "tcp".into(),
        test: "latency".into(),
        link: Some("loopback".into()),
        between: "processes".into(),
        size_bytes: Some(1 << index),
        parameters: Default::default(),
        value: 1.0,
        unit: Unit::Nanoseconds,
        ci95: Some([1.0, 1.0]),
        mean: None,
        percentiles: None,
        histogram: Vec::new(),
        blocks: Vec::new(),
        moments: Vec::new(),
        cacheline: None,
        failure: None,
        cpu: CpuBothEnds::default(),
        details: Default::default(),
        environment: json!({}),
    }
}

fn side(sessions: Vec<Session>) -> Side {
    Side { name: "side".into(), sessions }
}

/// One session of each side, the second right after the first.
fn one_after_the_other(seed: u64, slow_down: f64) -> [Side; 2] {
    let mut machine = Machine::new(seed);
    let before = machine.session(ROUNDS, 0.0);
    machine.pass(5.0);
    [side(vec![before]), side(vec![machine.session(ROUNDS, slow_down)])]
}

/// Short sessions in turn, each side first as often as last.
fn in_turn(seed: u64, slow_down: f64) -> [Side; 2] {
    let mut machine = Machine::new(seed);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS / 2 {
        let mut session = |is_after| {
            machine.pass(5.0);
            let session = machine.session(2, if is_after { slow_down } else { 0.0 });
            if is_after { after.push(session) } else { before.push(session) }
        };
        session(round % 2 == 1);
        session(round % 2 == 0);
    }
    [side(before), side(after)]
}

/// How many of `count` comparisons claim no difference, and how many find the slowed cell, and it alone, worse.
fn outcomes(count: u64, sides: impl Fn(u64) -> [Side; 2]) -> (u64, u64) {
    let (mut none, mut found) = (0, 0);
    for seed in 0..count {
        let [before, after] = sides(seed);
        let comparison = Comparison::of(&before, &after, Rule::default());
        assert_eq!(comparison.rows.len(), CELLS);
        let differing: Vec<usize> = (0..CELLS)
            .filter(|&row| matches!(comparison.rows[row].verdict, Verdict::Worse | Verdict::Better))
            .collect();
        none += u64::from(differing.is_empty());
        found += u64::from(differing == [SLOWED] && comparison.rows[SLOWED].verdict == Verdict::Worse);
    }
    (none, found)
}

const COMPARISONS: u64 = 200;

#[test]
fn equal_sessions_differ_in_at_most_one_of_twenty_comparisons() {
    for sides in [one_after_the_other, in_turn] {
        let (none, _) = outcomes(COMPARISONS, |seed| sides(seed, 0.0));
        eprintln!("no difference in {none} of {COMPARISONS}");
        assert!(none >= COMPARISONS * 19 / 20, "{none} of {COMPARISONS}");
    }
}

#[test]
fn a_slowdown_of_ten_percent_is_found_in_nineteen_of_twenty() {
    for sides in [one_after_the_other, in_turn] {
        let (_, found) = outcomes(COMPARISONS, |seed| sides(seed, 0.1));
        eprintln!("found in {found} of {COMPARISONS}");
        assert!(found >= COMPARISONS * 19 / 20, "{found} of {COMPARISONS}");
    }
}

#[test]
fn alternating_sessions_are_recognised_and_others_are_not() {
    let [before, after] = in_turn(1, 0.0);
    assert!(before.alternates_with(&after));
    assert!(!before.alternates_with(&side(after.sessions[1..].to_vec())));
    let [first, second] = one_after_the_other(1, 0.0);
    assert!(!first.alternates_with(&second));
    let mut machine = Machine::new(3);
    let mut take = || side((0..3).map(|_| machine.session(1, 0.0)).collect());
    let (first, second) = (take(), take());
    assert!(!first.alternates_with(&second), "one side was taken whole before the other");
}

#[test]
fn a_comparison_without_the_machine_probe_is_misled() {
    // The proof that states matter: what the machine probe read is thrown away, and the simulation's far state decides.
    let (none, _) = outcomes(COMPARISONS, |seed| {
        one_after_the_other(seed, 0.0).map(|mut side| {
            let cells = side.sessions.iter_mut().flat_map(|session| &mut session.cells);
            cells.for_each(|cell| cell.moments.clear());
            side
        })
    });
    let (with, _) = outcomes(COMPARISONS, |seed| one_after_the_other(seed, 0.0));
    assert!(none < with, "{none} without, {with} with");
}

#[test]
fn load_that_delays_the_machine_probe_is_not_reported_as_a_slowdown() {
    let [before, mut after] = one_after_the_other(11, 0.0);
    for cell in &mut after.sessions[0].cells {
        for moment in &mut cell.moments {
            (moment.before.line_ns, moment.after.line_ns) = (None, None);
        }
        cell.blocks.iter_mut().for_each(|block| block.value *= 5.0);
    }
    let comparison = Comparison::of(&before, &after, Rule::default());
    assert_eq!(comparison.count(Verdict::TooFewPairs), CELLS);
    assert!(comparison.rows.iter().all(|row| row.pairs_alone == 2 * ROUNDS as usize));
}

#[test]
fn a_comparison_of_few_pairs_reports_their_number_and_no_verdict() {
    let mut machine = Machine::new(5);
    let (before, after) = (side(vec![machine.session(2, 0.0)]), side(vec![machine.session(2, 0.5)]));
    let comparison = Comparison::of(&before, &after, Rule::default());
    assert_eq!(comparison.count(Verdict::TooFewPairs), CELLS);
    assert!(comparison.text().contains("too few pairs") && comparison.text().contains("--rounds"));
    assert!(junit::report(&comparison).unwrap().contains("skipped"));
}

fn corrupted() -> Absence {
    Absence { level: "tcp".into(), test: Some("latency".into()), reason: "payload corrupted".into() }
}

#[test]
fn a_cell_missing_afterwards_fails_in_every_format() {
    let [before, mut after] = one_after_the_other(7, 0.0);
    after.sessions[0].cells.truncate(1);
    after.sessions[0].absent.push(corrupted());
    let comparison = Comparison::of(&before, &after, Rule::default());
    assert!(comparison.fails() && !comparison.is_worse());
    assert_eq!((comparison.rows.len(), comparison.missing.len()), (1, CELLS - 1));
    let text = comparison.text();
    assert!(text.contains("missing after: payload corrupted") && text.contains("--allow-missing"), "{text}");
    let (json, xml) = (comparison.json(), junit::report(&comparison).unwrap());
    assert_eq!((json["missing"].as_u64(), json["fails"].as_bool()), (Some(CELLS as u64 - 1), Some(true)));
    assert!(xml.contains("tests=\"12\"") && xml.contains("errors=\"11\""), "{xml}");
    assert!(xml.contains("payload corrupted"), "{xml}");

    let lenient = Comparison::of(&before, &after, Rule { allow_missing: true, ..Rule::default() });
    assert!(!lenient.fails() && lenient.missing.len() == CELLS - 1);
    assert!(junit::report(&lenient).unwrap().contains("errors=\"0\""));
    let reversed = Comparison::of(&after, &before, Rule::default());
    assert!(!reversed.fails() && reversed.added.len() == CELLS - 1, "what is new is no failure");
}

#[test]
fn a_cell_that_failed_midway_is_missing_unless_it_failed_before_too() {
    let [mut before, mut after] = one_after_the_other(7, 0.0);
    // Presets say of whole levels, each time, what is no part of them.
    for side in [&mut before, &mut after] {
        side.sessions[0].absent.push(Absence {
            test: None,
            reason: "longer than 64 KiB".into(),
            ..corrupted()
        });
    }
    for cell in &mut after.sessions[0].cells {
        cell.blocks.retain(|block| block.pair < ROUNDS - 1);
    }
    assert!(!Comparison::of(&before, &after, Rule::default()).fails(), "fewer rounds alone are no failure");
    after.sessions[0].cells[0].failure = Some(corrupted().reason);
    after.sessions[0].absent.push(corrupted());
    let comparison = Comparison::of(&before, &after, Rule::default());
    let told = |comparison: &Comparison, reason: &str| {
        comparison.fails()
            && comparison.missing.len() == 1
            && comparison.missing[0].reason == reason
            && comparison.rows.len() == CELLS - 1
    };
    assert!(told(&comparison, "payload corrupted"), "its neighbours, of one level and test, are sound");
    before.sessions[0].cells[0].failure = Some(corrupted().reason);
    assert!(!Comparison::of(&before, &after, Rule::default()).fails());

    after.sessions[0].cells.remove(0);
    let gone = Comparison::of(&before, &after, Rule::default());
    assert!(told(&gone, "payload corrupted"), "what was said before is no reason: {:?}", gone.missing);
}

#[test]
fn every_output_format_has_the_same_results() {
    let [before, mut after] = in_turn(7, 0.3);
    after.sessions[0].environment = json!({ "kernel": { "release": "6.19" } });
    let comparison = Comparison::of(&before, &after, Rule::default());
    let text = comparison.text();
    assert!(text.contains("changed kernel.release: 6.18 → 6.19"), "{text}");
    assert!(text.contains("1 worse and 0 better of 12 cells"), "{text}");
    let json = comparison.json();
    assert_eq!((json["worse"].as_u64(), json["in_rounds"].as_bool()), (Some(1), Some(true)));
    let row = &json["cells"][SLOWED];
    assert_eq!((row["verdict"].as_str(), row["size_bytes"].as_u64()), (Some("worse"), Some(4)));
    let (ratio, low) = (row["ratio"].as_f64().unwrap(), row["interval"][0].as_f64().unwrap());
    assert!((1.2..1.4).contains(&ratio) && low > 1.1 && low < ratio, "{row}");
    let xml = junit::report(&comparison).unwrap();
    assert!(xml.contains("tests=\"12\"") && xml.contains("failures=\"1\"") && xml.contains("4 B"), "{xml}");
    let [smaller, bigger] = benchmark_action::entries(&comparison);
    assert_eq!((smaller.as_array().unwrap().len(), bigger.as_array().unwrap().len()), (CELLS, 0));
    assert!(smaller[0]["name"].is_string() && smaller[0]["value"].is_number() && smaller[0]["unit"] == "ns");
}

#[test]
fn sides_are_read_from_one_session_or_from_many() {
    let directory = tempfile::tempdir().unwrap();
    let store = |path: &Path, session: &Session| {
        let mut store = Store::create(path, session).unwrap();
        session.cells.iter().for_each(|cell| store.append(cell).unwrap());
    };
    let mut machine = Machine::new(9);
    for name in ["b", "a"] {
        machine.pass(10.0);
        store(&directory.path().join(name), &machine.session(1, 0.0));
    }
    let side = Side::read(directory.path()).unwrap();
    assert_eq!(side.sessions.len(), 2);
    assert!(side.sessions[0].started < side.sessions[1].started, "by when they were started, not by name");
    assert_eq!(Side::read(&directory.path().join("a")).unwrap().sessions.len(), 1);
    assert!(Side::read(&directory.path().join("c")).is_err());
}
