//! The help of `bywire measure`: examples first, then levels. The help of one level has its tests, links and options.

use anyhow::Result;
use bywire_measure::options::{OPTIONS, applies_to};
use bywire_measure::registry::{self, HelpRow};
use clap::Command;

use bywire_command::output;

/// One command for each usual purpose.
pub const EXAMPLES: &str = "\
Examples:
  bywire measure tcp latency --size 1
  bywire measure msg latency --size 64
  bywire measure msg stream --link udp --security plain
  bywire measure msg latency --link udp --between HOST --key key
  bywire measure tcp stream --between NODE --fabric
  bywire measure unix stream --size 64KiB --json
  bywire measure udp rr --between namespaces --mtu 9000
  bywire measure tcp stream --between HOST --style netperf
  bywire measure eth stream --mtu 9000 --link two-processes
  bywire measure eth streams --connections 4 --link two-processes
  bywire measure sock rr --size 1 --epoll
  bywire measure sock rr --domain unix --size 1
  bywire measure sock rr --load 8 --time 10
  bywire measure tcp fanin --connections 12 --nodes 4
  bywire measure mpi latency --mpi mpich --link tcp --size 8
  bywire measure mpi stream --link bywire --between namespaces --security plain
  bywire measure mpi alltoall --link bywire --ranks 4 --size 1KiB
  bywire measure web web-file --size 1KiB --server nginx --connections 16
  bywire measure web web-zipf --alpha 0.9 --server apache --link eth --trace-out paths
  bywire measure msg latency --link udp --size 8 --spin
  bywire measure memory memcpy --size 1MiB";

/// Options that apply nearly everywhere. Help without a level shows only these.
const GENERAL: [&str; 8] = ["size", "time", "link", "between", "cores", "json", "style", "help"];

/// Prints the help of `command`, which is that of the whole program, or the help of one level.
pub fn print(command: Command, level: Option<&str>) -> Result<()> {
    let text = match level {
        None => general(command),
        Some(level) => of_level(command, &registry::level(level)?),
    };
    output::print(&text)
}

fn general(command: Command) -> String {
    let levels: Vec<HelpRow> = registry::rows().iter().map(|level| (level.name, level.about)).collect();
    let after = format!(
        "{EXAMPLES}\n\nLevels (`bywire measure LEVEL --help` lists the tests, links and options of one):\n{}",
        table(&levels)
    );
    rendered(command, &after, |name| GENERAL.contains(&name))
}

fn of_level(command: Command, level: &registry::Row) -> String {
    let name = level.name;
    let about = level.about;
    let own = format!("bywire measure {name} ");
    let examples: Vec<&str> = EXAMPLES.lines().filter(|line| line.trim_start().starts_with(&own)).collect();
    let mut after = format!("Level {name}: {about}\n\n");
    if !examples.is_empty() {
        after += &format!("Examples:\n{}\n\n", examples.join("\n"));
    }
    after += &format!("Tests:\n{}", table(&level.tests));
    if !level.links.is_empty() {
        after += &format!("\nLinks:\n{}", table(&level.links));
    }
    let mut meant: Vec<&str> =
        OPTIONS.iter().filter(|row| applies_to(row, level)).map(|row| row.name).collect();
    meant.extend(["json", "style", "help"]);
    if ["msg", "tcp", "udp"].contains(&name) {
        meant.extend(["key", "fabric"]);
    }
    rendered(command, &after, |option| meant.contains(&option))
}

/// The help with `before` above the options, and with only the options for which `shows` returns true.
fn rendered(mut command: Command, before: &str, shows: impl Fn(&str) -> bool) -> String {
    command.build();
    let measure = command.find_subcommand("measure").cloned().unwrap_or(command);
    let measure = measure.mut_args(|arg| {
        let name = arg.get_long().map(str::to_owned);
        let is_hidden = name.is_some_and(|name| !shows(&name));
        arg.hide(is_hidden)
    });
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{before}\n{{all-args}}\n");
    measure.help_template(template).render_help().to_string()
}

fn table(rows: &[HelpRow]) -> String {
    rows.iter().map(|(name, about)| format!("  {name:<13} {about}\n")).collect()
}
