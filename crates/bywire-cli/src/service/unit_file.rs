//! The files of a unit.

use super::settings::Settings;

/// The sections of a unit's files that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFile {
    /// `[Unit]`.
    pub unit: Settings,
    /// `[Service]`.
    pub service: Settings,
}

impl UnitFile {
    /// Adds the assignments of one file. Files are read in systemd's order: the unit's own, then its drop-ins.
    pub fn read(&mut self, text: &str) {
        let mut section = "";
        for line in logical_lines(text) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = match name {
                    "Unit" => "Unit",
                    "Service" => "Service",
                    _ => "",
                };
            } else if let Some((name, value)) = line.split_once('=') {
                match section {
                    "Unit" => self.unit.assign(name.trim(), value.trim()),
                    "Service" => self.service.assign(name.trim(), value.trim()),
                    _ => {}
                }
            }
        }
    }
}

/// The lines without comments. One that ends with a backslash goes on with the next line that is no comment.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let shown = line.trim();
        if shown.starts_with(['#', ';']) || (shown.is_empty() && !goes_on) {
            continue;
        }
        let (piece, will_go_on) = match shown.strip_suffix('\\') {
            Some(piece) => (format!("{piece} "), true),
            None => (shown.to_owned(), false),
        };
        match lines.last_mut().filter(|_| goes_on) {
            Some(last) => last.push_str(&piece),
            None => lines.push(piece),
        }
        goes_on = will_go_on;
    }
    lines.iter().map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_unit_add_up() {
        let mut file = UnitFile::default();
        file.read(
            "# ExecStart=/no\n[Unit]\nAfter=a.service\n[Service]\nExecStart=/bin/sh -c \"a \\\n; a comment\n  b\"\n\
             Environment=A=1\n[Install]\nAlias=other.service\n",
        );
        file.read("[Service]\nEnvironment=\nEnvironment=\"B=2 3\"\nExecStart=\nExecStart = /bin/true\n");
        assert_eq!(file.unit.value("After"), Some("a.service"));
        assert_eq!(file.service.values("ExecStart").collect::<Vec<_>>(), ["/bin/true"]);
        assert_eq!(file.service.value("Environment"), Some("\"B=2 3\""));
        assert_eq!(file.service.value("Alias"), None);
        let mut first = UnitFile::default();
        first.read("[Service]\nExecStart=/bin/sh -c \"a \\\n; a comment\n  b\"");
        assert_eq!(first.service.value("ExecStart"), Some("/bin/sh -c \"a  b\""));
    }
}
