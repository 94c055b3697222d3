//! A session: runs a preset, stores every pair as soon as it is taken, and ends with one report.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bywire_command::plain::one_line;
use bywire_results::cell::{Absence, Cell, SESSION_SCHEMA, Session};
use bywire_results::store::{self, Store};
use rand::seq::SliceRandom;
use serde_json::json;

use crate::cpu::Snapshot;
use crate::machine_probe::now_unix_seconds;
use crate::measure::{Measurement, PAIRS, Request, Topology, anywhere};
use crate::plan::Level;
use crate::preset::Preset;
use crate::{environment, interrupt, mpi, pin};

/// How long the cores are observed while no measurement runs.
const IDLE: Duration = Duration::from_secs(1);

/// The default directory of sessions.
pub const SESSIONS: &str = "sessions";

/// The name of the report's files, without extension.
const REPORT_FILE: &str = "report";

/// Makes the report's files of a session: the extension and the text of each, the page first.
pub type Report = fn(&Session) -> Vec<(String, String)>;

/// A source of pairs, and the cells that its pairs make.
pub trait Sampler {
    /// Takes one more fresh pair. `attempt` counts from 0, failed ones too. If that fails, the pairs taken before stay.
    fn take_pair(&mut self, attempt: u32) -> Result<()>;

    /// Pairs taken so far.
    fn pairs_taken(&self) -> u32;

    /// The cells of the pairs taken so far. Fails if they have no value.
    fn cells(&self) -> Result<Vec<Cell>>;
}

impl Sampler for Measurement {
    fn take_pair(&mut self, _attempt: u32) -> Result<()> {
        Measurement::take_pair(self)
    }

    fn pairs_taken(&self) -> u32 {
        Measurement::pairs_taken(self)
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        Ok(vec![self.cell()?])
    }
}

/// Prepares a sampler, in namespaces that a session keeps.
pub type Prepare = Box<dyn FnOnce(&mut Topology) -> Result<Box<dyn Sampler>>>;

/// One thing to measure.
pub struct Entry {
    /// The subject.
    pub subject: Subject,
    /// With so many failed pairs it is given up.
    pub failures_max: u32,
    /// Makes what is measured.
    pub prepare: Prepare,
}

/// The subject of a measurement, in words.
pub struct Subject {
    /// The level that an absence names.
    pub level: String,
    /// The test that it names, if the level has several.
    pub test: Option<String>,
    /// The options that distinguish it from others of its level and test.
    pub shape: String,
    /// The expected time of one pair.
    pub expected: Duration,
}

impl Subject {
    fn absence(&self, error: &anyhow::Error) -> Absence {
        let (level, test) = (self.level.clone(), self.test.clone());
        Absence { level, test, reason: one_line(&format!("{error:#}")) }
    }
}

impl From<Request> for Entry {
    fn from(request: Request) -> Self {
        let (level, test) = (request.level.clone(), Some(request.test.clone()));
        let subject = Subject { level, test, shape: shape(&request), expected: expected_pair(&request) };
        let prepare: Prepare = Box::new(|places| Ok(Box::new(Measurement::prepare(request, places)?)));
        Self { subject, failures_max: 1, prepare }
    }
}

/// Notifications of a running session.
pub trait Progress {
    /// The session begins, with this number of cells. `total` is the expected time.
    fn begins(&mut self, cells: usize, total: Duration);
    /// `done` of `total` is over. Both are expected times.
    fn advanced(&mut self, done: Duration, total: Duration);
    /// A cell is complete and stored.
    fn measured(&mut self, cell: &Cell);
    /// Something cannot be measured here.
    fn absent(&mut self, absence: &Absence);
}

/// A finished or interrupted session.
pub struct Finished {
    /// The session, with all its cells.
    pub session: Session,
    /// The session's directory.
    pub directory: PathBuf,
    /// The report's page.
    pub report: PathBuf,
}

/// The most rounds of a session.
pub const ROUNDS_MAX: u32 = 100;

/// Runs `preset` and stores it in `directory`. An interrupt ends it early, and the measured pairs are kept.
///
/// With `rounds`, each round takes one pair of every cell, in random order, so that each cell is spread over the whole
/// session. Without, groups of cells are completed one after the other. `report` makes the page. Fails if the directory
/// cannot be written, for instance because the disk is full. Pairs stored before stay.
pub fn run(
    preset: Preset,
    rounds: Option<u32>,
    directory: &Path,
    report: Report,
    progress: &mut dyn Progress,
) -> Result<Finished> {
    let cells = preset.groups.iter().flatten().count() + 2 * preset.ceilings.len();
    let size = (cells, expected(&preset, rounds));
    Bench::session(preset.name, size, directory, report, progress, |bench| {
        preset.absent.iter().for_each(|absence| bench.note_absence(absence.clone()));
        bench.idle("idle_before");
        bench.take_groups(singly(&preset.ceilings))?;
        match rounds {
            Some(_) => bench.take_group(entries(preset.groups.concat()), rounds)?,
            None => bench.take_groups(preset.groups)?,
        }
        bench.take_groups(singly(&preset.ceilings))?;
        bench.idle("idle_after");
        Ok(())
    })
}

/// Takes one pair of every entry in each of `rounds`, in random order, and stores the session in `directory`. An
/// interrupt ends it early, and the measured pairs are kept. `name` is that of the session, and `report` makes its
/// page. Fails as [`run`].
pub fn in_rounds(
    name: &str,
    entries: Vec<Entry>,
    rounds: u32,
    directory: &Path,
    report: Report,
    progress: &mut dyn Progress,
) -> Result<Finished> {
    let total = entries.iter().map(|entry| entry.subject.expected).sum::<Duration>() * rounds;
    let size = (entries.len(), total);
    Bench::session(name, size, directory, report, progress, |bench| bench.take_group(entries, Some(rounds)))
}

/// The default directory of a session: in [`SESSIONS`], named by preset and time.
pub fn default_directory(preset: &str) -> PathBuf {
    let moment: String = now().chars().filter(|letter| *letter != ':').collect();
    Path::new(SESSIONS).join(format!("{preset}-{moment}"))
}

struct Bench<'a> {
    session: Session,
    store: Store,
    places: Topology,
    cores: [u32; 2],
    progress: &'a mut dyn Progress,
    started: Instant,
    done: Duration,
    total: Duration,
}

impl<'a> Bench<'a> {
    /// Runs a session of so many cells and so long an expected time, which `take` measures.
    fn session(
        name: &str,
        (cells, total): (usize, Duration),
        directory: &Path,
        report: Report,
        progress: &'a mut dyn Progress,
        take: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Finished> {
        let cores: [u32; 2] = pin::two_cores().into();
        let session = Session {
            schema: SESSION_SCHEMA.to_owned(),
            preset: name.to_owned(),
            started: now(),
            seconds: 0.0,
            command: std::env::args().collect(),
            environment: environment::describe(&cores),
            absent: Vec::new(),
            complete: false,
            cells: Vec::new(),
        };
        let mut bench = Self {
            store: Store::create(directory, &session)?,
            session,
            places: Topology::default(),
            cores,
            progress,
            started: Instant::now(),
            done: Duration::ZERO,
            total,
        };
        bench.progress.begins(cells, total);
        take(&mut bench).and_then(|()| bench.finish(report)).map_err(|error| bench.kept(error))
    }

    /// Adds the number of kept cells to an error that ended the session early.
    fn kept(&self, error: anyhow::Error) -> anyhow::Error {
        // Cells that were being measured count too.
        let cells = store::read(self.store.directory())
            .map_or(self.session.cells.len(), |session| session.cells.len());
        if cells == 0 {
            return error;
        }
        let plural = if cells == 1 { "" } else { "s" };
        error.context(format!(
            "the session ended early, but the {cells} cell{plural} measured before it are kept: make room, then \
             `bywire report {}`",
            self.store.directory().display()
        ))
    }

    /// Records how busy the cores are while no measurement runs.
    fn idle(&mut self, name: &str) {
        if interrupt::requested() {
            return;
        }
        let before = self.cores.map(|core| (core, Snapshot::take(Some(core))));
        std::thread::sleep(IDLE);
        let watched = before.map(|(core, before)| {
            let cpu = before.until(&Snapshot::take(Some(core)));
            json!({ "core": cpu.core, "machine_busy": cpu.machine_busy, "steal": cpu.steal })
        });
        self.session.environment[name] = json!(watched);
        self.advance(IDLE);
    }

    /// Takes the groups one after the other, in random order.
    fn take_groups(&mut self, mut groups: Vec<Vec<Request>>) -> Result<()> {
        groups.shuffle(&mut rand::rng());
        for group in groups {
            if interrupt::requested() {
                break;
            }
            self.take_group(entries(group), None)?;
        }
        Ok(())
    }

    /// Takes the cells of one group pair by pair, in random order, so that drift affects all alike.
    fn take_group(&mut self, group: Vec<Entry>, rounds: Option<u32>) -> Result<()> {
        let pairs = rounds.unwrap_or(PAIRS);
        let mut running: Vec<Running> = Vec::new();
        for Entry { subject, failures_max: failures_left, prepare } in group {
            match prepare(&mut self.places) {
                Ok(sampler) => {
                    running.push(Running { subject, sampler, failures_left, attempts: 0, failure: None });
                }
                Err(error) => self.give_up(subject.absence(&error), subject.expected * pairs),
            }
        }
        for place in pair_order(running.len(), rounds) {
            let running = &mut running[place];
            if running.failures_left == 0 || interrupt::requested() {
                continue;
            }
            let attempt = running.attempts;
            running.attempts += 1;
            match running.sampler.take_pair(attempt) {
                Ok(()) => self.advance(running.subject.expected),
                Err(_) if interrupt::requested() => continue,
                Err(error) => {
                    let Subject { shape, expected, .. } = &running.subject;
                    let taken = running.sampler.pairs_taken();
                    let error = error.context(format!("{shape}, after {taken} of {pairs} pairs"));
                    let absence = running.subject.absence(&error);
                    running.failures_left -= 1;
                    if running.failures_left > 0 {
                        self.progress.absent(&absence);
                        self.advance(*expected);
                    } else {
                        running.failure = Some(format!("{error:#}"));
                        self.give_up(absence, *expected * (pairs - attempt));
                    }
                }
            }
            // An error here is reported when the cells are kept.
            for (index, cell) in running.cells().unwrap_or_default().iter().enumerate() {
                self.store.keep_running(place * CELLS_MAX + index, cell)?;
            }
            self.save()?;
        }
        // A cell that was cut short is kept too. Its parameters state the number of its pairs.
        for running in running.iter().filter(|running| running.sampler.pairs_taken() > 0) {
            match running.cells() {
                Ok(cells) => cells.into_iter().try_for_each(|cell| self.keep(cell))?,
                Err(error) => self.give_up(running.subject.absence(&error), Duration::ZERO),
            }
        }
        // It costs room, and is known by what was kept of it since.
        let _stays = self.store.forget_running();
        self.save()
    }

    fn save(&mut self) -> Result<()> {
        self.session.seconds = self.started.elapsed().as_secs_f64();
        Ok(self.store.save(&self.session)?)
    }

    fn keep(&mut self, cell: Cell) -> Result<()> {
        self.store.append(&cell)?;
        self.progress.measured(&cell);
        self.session.cells.push(cell);
        Ok(())
    }

    fn give_up(&mut self, absence: Absence, expected: Duration) {
        self.advance(expected);
        self.note_absence(absence);
    }

    /// Notes an absence once. A reason that holds for several tests of a level is noted for the level.
    fn note_absence(&mut self, absence: Absence) {
        let is_alike = |known: &&mut Absence| known.level == absence.level && known.reason == absence.reason;
        match self.session.absent.iter_mut().find(is_alike) {
            Some(known) if known.test == absence.test => {}
            Some(known) => known.test = None,
            None => {
                self.progress.absent(&absence);
                self.session.absent.push(absence);
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        self.done += by;
        self.progress.advanced(self.done, self.total);
    }

    fn finish(&mut self, render: Report) -> Result<Finished> {
        self.session.complete = !interrupt::requested();
        self.save()?;
        let directory = self.store.directory();
        let mut written = Vec::new();
        for (ending, text) in render(&self.session) {
            let path = directory.join(format!("{REPORT_FILE}.{ending}"));
            fs::write(&path, text).with_context(|| format!("cannot write the report {}", path.display()))?;
            written.push(path);
        }
        let report = written.into_iter().next().unwrap_or_default();
        Ok(Finished { directory: directory.to_owned(), session: self.session.clone(), report })
    }
}

/// The indices of the cells, each as often as it has pairs, in random order. Each of `rounds` has one pair of every
/// cell.
fn pair_order(cells: usize, rounds: Option<u32>) -> Vec<usize> {
    let (rounds, pairs) = rounds.map_or((1, PAIRS), |rounds| (rounds, 1));
    let round = |_| {
        let mut order: Vec<usize> = (0..pairs).flat_map(|_| 0..cells).collect();
        order.shuffle(&mut rand::rng());
        order
    };
    (0..rounds).flat_map(round).collect()
}

/// The most cells of one entry.
const CELLS_MAX: usize = 64;

struct Running {
    subject: Subject,
    sampler: Box<dyn Sampler>,
    /// No more of its pairs are taken once it is 0.
    failures_left: u32,
    attempts: u32,
    /// Why pairs are missing.
    failure: Option<String>,
}

impl Running {
    /// The cells of the pairs taken so far.
    fn cells(&self) -> Result<Vec<Cell>> {
        let cells = self.sampler.cells()?.into_iter();
        Ok(cells.map(|cell| Cell { failure: self.failure.clone(), ..cell }).collect())
    }
}

fn entries(requests: Vec<Request>) -> Vec<Entry> {
    requests.into_iter().map(Entry::from).collect()
}

/// The part of a request that distinguishes it from others of its level and test.
fn shape(request: &Request) -> String {
    let parts = [
        request.mpi.clone(),
        request.link.clone(),
        request.protocol.as_ref().map(|protocol| protocol.to_uppercase()),
        request.mtu_bytes.map(|mtu| format!("MTU {mtu}")),
        (request.coalesce == Some(false)).then(|| "not coalesced".to_owned()),
        request.server.clone(),
        request.alpha.map(|alpha| format!("α {alpha}")),
        (request.segmentation == Some(false)).then(|| "not segmented".to_owned()),
        request.loss_percent.map(|percent| format!("{percent} % lost")),
        request.rate_mbits.map(|rate| format!("{rate} Mb/s")),
        request.connections.map(|connections| format!("{connections} connections")),
        request.spin.map(|spin| if spin { "polling" } else { "sleeping" }.to_owned()),
        request.size_bytes.map(|bytes| format!("{} bytes", bytes)),
    ];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if parts.is_empty() { "by default".to_owned() } else { parts }
}

/// The expected time of a session in which everything can be measured.
pub fn expected(preset: &Preset, rounds: Option<u32>) -> Duration {
    let ceilings = preset.ceilings.iter().chain(&preset.ceilings);
    let messages: Duration = preset.groups.iter().flatten().map(expected_pair).sum();
    let ceilings: Duration = ceilings.map(|request| expected_pair(request) * PAIRS).sum();
    ceilings + messages * rounds.unwrap_or(PAIRS) + 2 * IDLE
}

/// The expected time of one pair of a request, or zero if the request cannot be measured.
fn expected_pair(request: &Request) -> Duration {
    // An estimate does not depend on the namespaces or hosts, and must not open them.
    let launch = if request.level == Level::Mpi.name() { mpi::LAUNCH } else { Duration::ZERO };
    anywhere(request)
        .and_then(|request| Measurement::prepare(request, &mut Topology::default()))
        .map_or(Duration::ZERO, |measurement| launch + measurement.pair_duration())
}

fn singly(requests: &[Request]) -> Vec<Vec<Request>> {
    requests.iter().map(|request| vec![request.clone()]).collect()
}

/// This moment in UTC by RFC 3339, to the second.
fn now() -> String {
    rfc3339(now_unix_seconds() as u64)
}

/// Howard Hinnant's `civil_from_days`, for moments after 1970.
fn rfc3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400 + 719_468, unix_seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_cell_is_described_by_its_options() {
        let shape = |words: &str| shape(&Request::of_words(words).unwrap());
        let told = shape("eth stream --link two-processes --protocol udp --mtu 9000 --size 32K");
        assert_eq!(told, "two-processes, UDP, MTU 9000, 32768 bytes");
        assert_eq!(shape("msg nhalf"), "by default");
    }

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
