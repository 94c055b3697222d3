//! Whether the MPI implementations of this machine load the provider, found by running one rank of each.

use std::process::{Command, Stdio};

use bywire_command::provider;
use bywire_measure::mpi::{AS_ROOT, Implementation, Tools, telling_line};

const PROGRAM: &str = include_str!("mpi_loaded.c");
/// How long a job of one rank may take.
const TIMEOUT_SECONDS: &str = "30";

/// An implementation, and whether it loads the provider.
#[derive(Debug)]
pub struct Loading {
    /// The implementation.
    pub implementation: Implementation,
    /// Its version, and where its launcher is.
    pub found: String,
    /// The version of the libfabric that has loaded the provider, or why none has.
    pub loads: Result<String, String>,
}

/// Every implementation of this machine.
pub fn of_this_machine() -> Vec<Loading> {
    let loading = |(implementation, tools): (Implementation, Tools)| {
        let found = format!("{} ({})", tools.version, tools.launcher.display());
        Loading { implementation, found, loads: loads(implementation, &tools) }
    };
    Tools::all().into_iter().map(loading).collect()
}

fn loads(implementation: Implementation, tools: &Tools) -> Result<String, String> {
    let directory = provider::directory().map_err(|error| format!("{error:#}"))?;
    let program = tools.program("loaded", PROGRAM).map_err(|error| format!("{error:#}"))?;
    let run = |is_asked: bool| -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.args([TIMEOUT_SECONDS.as_ref(), tools.launcher.as_os_str()]);
        command.args(["-n", "1"]).arg(&program);
        provider::names().for_each(|name| _ = command.env_remove(name));
        command.envs(AS_ROOT);
        if is_asked {
            command.envs(provider::variables(&directory));
        }
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = printed.lines().find_map(|line| line.strip_prefix("libfabric "));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        line.map(str::to_owned).ok_or_else(|| {
            telling_line(&said).unwrap_or_else(|| "its launcher ended without a word".to_owned())
        })
    };
    judge(implementation, run(true), || run(false))
}

/// Judges by what a rank says that was asked to load the provider, and if it has not, by what one says that was not asked.
fn judge(
    implementation: Implementation,
    asked: Result<String, String>,
    unasked: impl FnOnce() -> Result<String, String>,
) -> Result<String, String> {
    if let Some(version) = asked.as_ref().ok().and_then(|line| line.strip_suffix(" port")) {
        return Ok(format!("loads it, by libfabric {version}"));
    }
    let has_none = |line: &Result<String, String>| line.as_ref().is_ok_and(|line| line.starts_with("0.0"));
    if has_none(&asked) || (implementation == Implementation::Mpich && has_none(&unasked())) {
        return Err("it was built without libfabric".to_owned());
    }
    Err(match asked {
        Ok(line) => format!("libfabric {} has not loaded it", line.trim_end_matches(" none")),
        Err(reason) => reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_why_a_provider_is_not_loaded_is_told() {
        let judged = |asked: Result<&str, &str>, unasked: &str| {
            let owned = asked.map(str::to_owned).map_err(str::to_owned);
            judge(Implementation::Mpich, owned, || Ok(unasked.to_owned()))
        };
        assert_eq!(judged(Ok("1.17 port"), "").unwrap(), "loads it, by libfabric 1.17");
        assert_eq!(judged(Ok("1.17 none"), "1.17 none").unwrap_err(), "libfabric 1.17 has not loaded it");
        assert_eq!(judged(Ok("0.0 none"), "").unwrap_err(), "it was built without libfabric");
        assert_eq!(judged(Err("no netmod"), "0.0 none").unwrap_err(), "it was built without libfabric");
        assert_eq!(judged(Err("no provider"), "1.17 none").unwrap_err(), "no provider");
    }
}
