//! The settings of a unit: as its files assign them, or as systemd shows them.

/// The assignments of one section, in order. A list that was emptied has none before that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    /// Adds an assignment. An empty value undoes the earlier ones, as in a unit's file.
    pub fn assign(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            self.0.retain(|(known, _)| known != name);
        } else {
            self.0.push((name.to_owned(), value.to_owned()));
        }
    }

    /// The lines `NAME=VALUE` that `systemctl show` prints.
    pub fn from_shown(text: &str) -> Self {
        let mut settings = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            settings.assign(name, value);
        }
        settings
    }

    /// The last value, which counts for settings that are no lists.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All values of a list, in order.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The words of all values. Quotation marks around a word are left out.
    pub fn words<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.values(name).flat_map(words)
    }

    /// The paths of a list, without the marks of systemd before them and the options behind them.
    pub fn paths<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.words(name).map(|word| {
            let path = word.trim_start_matches(['-', '+']);
            path.split_once(':').map_or(path, |(path, _)| path)
        })
    }

    /// Returns whether a switch is on. Modes such as `tmpfs` of `ProtectHome` count as on, `read-only` does not.
    pub fn is_on(&self, name: &str) -> bool {
        let off = ["no", "false", "off", "0", "n", "f", "read-only"];
        self.value(name).is_some_and(|value| !off.contains(&value))
    }
}

/// The words of a value. One in quotation marks may have spaces.
fn words(mut rest: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let mark = rest.chars().next()?;
        let quoted = ['"', '\''].contains(&mark).then(|| rest[1..].split_once(mark)).flatten();
        let (word, after) =
            quoted.unwrap_or_else(|| rest.split_once(char::is_whitespace).unwrap_or((rest, "")));
        rest = after;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_quotation_marks_may_have_spaces() {
        let shown = "DropInPaths=/a.conf \"/b c.conf\"  /d.conf \"/e\nUnsetEnvironment=\n";
        let settings = Settings::from_shown(shown);
        assert_eq!(
            settings.words("DropInPaths").collect::<Vec<_>>(),
            ["/a.conf", "/b c.conf", "/d.conf", "\"/e"]
        );
        assert_eq!(settings.words("UnsetEnvironment").count(), 0);
    }

    #[test]
    fn an_empty_value_undoes_earlier_ones() {
        let shown = "ExecPaths=-/usr/bin +/lib:rbind\nProtectHome=tmpfs\nPrivateTmp=no\nUser=\n";
        let mut settings = Settings::from_shown(shown);
        assert_eq!(settings.paths("ExecPaths").collect::<Vec<_>>(), ["/usr/bin", "/lib"]);
        assert!(settings.is_on("ProtectHome") && !settings.is_on("PrivateTmp") && !settings.is_on("User"));
        settings.assign("ExecPaths", "");
        settings.assign("ExecPaths", "/opt");
        assert_eq!(settings.value("ExecPaths"), Some("/opt"));
        assert_eq!(settings.value("User"), None);
    }
}
