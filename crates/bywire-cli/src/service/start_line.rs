//! The line `ExecStart=` of a unit, and how it starts its program by `bywire run`.

use std::path::Path;

use bywire_pairing::filters;
use bywire_pairing::protocol::{
    CALLS_VARIABLE, CORES_VARIABLE, IO_URING_VARIABLE, LOG_VARIABLE, SERVICE_VARIABLE, SPIN_VARIABLE,
};

use super::refusal::Refusal;

/// Programs that start another one in an environment of its own.
const CLEARING: [&str; 5] = ["su", "sudo", "runuser", "doas", "login"];

/// A program that clears its environment when it executes a new version of itself, except what its `env` directives name.
const UPGRADING: &str = "nginx";
/// The environment that `bywire run` sets.
const VARIABLES: [&str; 8] = [
    "LD_PRELOAD",
    SERVICE_VARIABLE,
    CORES_VARIABLE,
    CALLS_VARIABLE,
    SPIN_VARIABLE,
    IO_URING_VARIABLE,
    filters::VARIABLE,
    LOG_VARIABLE,
];

/// One command of a unit, with the text that its file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartLine {
    /// Characters with a meaning for systemd.
    prefixes: String,
    /// The program and its arguments.
    command: String,
}

impl StartLine {
    /// Takes the value of `ExecStart=` apart.
    pub fn parse(value: &str) -> Self {
        let command = value.trim_start_matches(['-', '@', ':', '+', '!', '|']);
        let prefixes = &value[..value.len() - command.len()];
        Self { prefixes: prefixes.to_owned(), command: command.trim().to_owned() }
    }

    /// The program's path.
    pub fn program(&self) -> &str {
        first_word(&self.command).0
    }

    /// The last part of the program's path.
    pub fn program_name(&self) -> &str {
        self.program().rsplit('/').next().unwrap_or_default()
    }

    /// Returns whether the program is `bywire run` already.
    pub fn is_carried(&self) -> bool {
        self.program_name() == "bywire" && first_word(first_word(&self.command).1).0 == "run"
    }

    /// The value of `ExecStart=` that starts the same program by `bywire run`.
    ///
    /// # Errors
    /// Its program would not have the library.
    pub fn carried_by(&self, command: &Path) -> Result<String, Refusal> {
        let (program, arguments) = first_word(&self.command);
        let name = self.program_name();
        let is_clearing_env = name == "env"
            && arguments.split_whitespace().any(|word| matches!(word, "-" | "-i" | "--ignore-environment"));
        if CLEARING.contains(&name) || is_clearing_env {
            return Err(Refusal::ClearedEnvironment(program.to_owned()));
        }
        let mut prefixes = self.prefixes.clone();
        let mut started = self.command.clone();
        if prefixes.contains('@') {
            // The second word is the name that the program is given.
            let (named, rest) = first_word(arguments);
            if named.rsplit('/').next() != Some(name) {
                return Err(Refusal::OtherName(named.to_owned()));
            }
            prefixes = prefixes.replace('@', "");
            started = format!("{program} {}", rest.trim_start());
        }
        if self.upgrades_itself() {
            started = with_directives(&started);
        }
        Ok(format!("{prefixes}{} run -- {}", word(command), started.trim_end()))
    }

    /// Returns whether the program is nginx, which an upgrade of its package has execute its new version.
    pub fn upgrades_itself(&self) -> bool {
        self.program_name() == UPGRADING
    }
}

/// A command line of nginx that keeps the environment of `bywire run`. nginx reads one option `-g` only.
fn with_directives(line: &str) -> String {
    let directives = VARIABLES.map(|name| format!(" env {name};")).concat();
    let Some((before, after)) = line.split_once(" -g ") else {
        return format!("{} -g '{}'", line.trim_end(), directives.trim_start());
    };
    let after = after.trim_start();
    let mark = after.chars().next().filter(|mark| ['"', '\''].contains(mark));
    match mark.and_then(|mark| Some((mark, after[1..].split_once(mark)?))) {
        Some((mark, (own, rest))) => {
            let end = if own.trim_end().ends_with([';', '}']) || own.trim().is_empty() { "" } else { ";" };
            format!("{before} -g {mark}{own}{end}{directives}{mark}{rest}")
        }
        // Its directives are one word, which ends with a semicolon of its own.
        None => line.to_owned(),
    }
}

/// The first word of a command line, without its quotation marks, and the rest.
fn first_word(line: &str) -> (&str, &str) {
    let line = line.trim_start();
    for mark in ['"', '\''] {
        if let Some((word, rest)) = line.strip_prefix(mark).and_then(|line| line.split_once(mark)) {
            return (word, rest);
        }
    }
    line.split_once(char::is_whitespace).unwrap_or((line, ""))
}

/// A path as one word of a command line in a unit's file.
pub fn word(path: &Path) -> String {
    setting_word(&path.display().to_string().replace('$', "$$"))
}

/// One word of another setting in a unit's file, in which `$` has no meaning.
pub fn setting_word(text: &str) -> String {
    let text = text.replace('%', "%%");
    if !text.contains([' ', '\t', '"', '\'', '\\']) {
        return text;
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(line: &str) -> Result<String, Refusal> {
        StartLine::parse(line).carried_by(Path::new("/usr/bin/bywire"))
    }

    #[test]
    fn a_program_keeps_its_arguments_and_prefixes() {
        for (line, expected) in [
            ("/usr/bin/redis-server --port 1", "/usr/bin/bywire run -- /usr/bin/redis-server --port 1"),
            ("-/usr/sbin/x -f $CONFIG %i", "-/usr/bin/bywire run -- /usr/sbin/x -f $CONFIG %i"),
            ("!!/usr/sbin/x 'a b'", "!!/usr/bin/bywire run -- /usr/sbin/x 'a b'"),
            ("-@/usr/sbin/x x -d", "-/usr/bin/bywire run -- /usr/sbin/x -d"),
            ("/bin/sh -c \"exec x\"", "/usr/bin/bywire run -- /bin/sh -c \"exec x\""),
        ] {
            assert_eq!(carried(line).expect(line), expected);
        }
        assert_eq!(word(Path::new("/a b/100%$")), "\"/a b/100%%$$\"");
        assert_eq!(setting_word("/a\\b/100%$"), "\"/a\\\\b/100%%$\"");
    }

    #[test]
    fn nginx_keeps_the_environment_when_it_executes_a_new_version_of_itself() {
        let directives = VARIABLES.map(|name| format!("env {name};")).join(" ");
        for (line, expected) in [
            ("/usr/sbin/nginx", format!("/usr/sbin/nginx -g '{directives}'")),
            (
                "/usr/sbin/nginx -g 'daemon off;' -q",
                format!("/usr/sbin/nginx -g 'daemon off; {directives}' -q"),
            ),
            ("/usr/sbin/nginx -g \"daemon off\"", format!("/usr/sbin/nginx -g \"daemon off; {directives}\"")),
            ("/usr/sbin/nginx -g daemon_off;", "/usr/sbin/nginx -g daemon_off;".to_owned()),
        ] {
            assert_eq!(carried(line).expect(line), format!("/usr/bin/bywire run -- {expected}"));
        }
    }

    #[test]
    fn a_program_that_would_lack_the_library_is_refused() {
        assert!(matches!(carried("@/usr/sbin/x other"), Err(Refusal::OtherName(name)) if name == "other"));
        for line in ["/usr/bin/su - x -c y", "/usr/bin/env -i /bin/x", "/sbin/runuser -u x y"] {
            assert!(matches!(carried(line), Err(Refusal::ClearedEnvironment(_))), "{line}");
        }
        assert!(carried("/usr/bin/env A=1 /bin/x").is_ok());
        assert!(StartLine::parse("-/usr/bin/bywire run -- x").is_carried());
        assert!(!StartLine::parse("/usr/bin/bywire pair").is_carried());
    }
}
