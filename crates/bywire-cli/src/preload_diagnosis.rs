//! Why a program has not loaded the library, according to its file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The most scripts that may name each other.
const SCRIPTS_MAX: usize = 4;
/// The maximum length of a line that names an interpreter, as in the kernel.
const LINE_BYTES: usize = 256;
/// The file attribute that holds capabilities.
const CAPABILITIES: &str = "security.capability";
const SET_ID: u32 = 0o6000;

// Of the ELF format, with its numbers of 64 bits, lowest byte first.
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 56;
/// The number of this processor: `EM_X86_64` or `EM_AARCH64`.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// The kind of entry that names the loader.
const INTERPRETER: u32 = 3;

/// The report about a program that has not loaded the library.
pub fn tell(program: &str) -> String {
    let reason =
        of_program(program).unwrap_or("it may have ended before that, or sees other files than this command");
    format!(
        "bywire: the library was never loaded into `{program}`, so its connections, if any, were plain TCP: {reason}\n"
    )
}

/// Why the program of this file loads no library; `None`: its file shows no reason.
pub fn of_file(path: &Path) -> Option<&'static str> {
    reason(path, SCRIPTS_MAX).ok().flatten()
}

/// Why this program loads no library; `None`: its file shows no reason, or is not found.
pub fn of_program(program: &str) -> Option<&'static str> {
    find(program).and_then(|path| of_file(&path))
}

/// Where the program is, as the shell would find it.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    let is_program = |file: &PathBuf| fs::metadata(file).is_ok_and(|found| found.mode() & 0o111 != 0);
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
}

/// The reason; `None`: the file shows none.
fn reason(path: &Path, scripts_max: usize) -> io::Result<Option<&'static str>> {
    let file = File::open(path)?;
    if file.metadata()?.mode() & SET_ID != 0 || rustix::fs::getxattr(path, CAPABILITIES, &mut [0; 64]).is_ok()
    {
        return Ok(Some("it gains rights when it starts, and such programs load nothing of their caller's"));
    }
    let mut header = [0; HEADER_BYTES];
    if let Some(interpreter) = interpreter_of_script(&file)? {
        return if scripts_max == 0 { Ok(None) } else { reason(&interpreter, scripts_max - 1) };
    }
    file.read_exact_at(&mut header, 0)?;
    let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if !header.starts_with(b"\x7fELF\x02\x01") || number(18) != MACHINE {
        return Ok(Some("it is not a 64-bit program for this processor"));
    }
    let table = u64::from_le_bytes(std::array::from_fn(|index| header[32 + index]));
    for index in 0..u64::from(number(56)) {
        let mut entry = [0; ENTRY_BYTES];
        file.read_exact_at(&mut entry, table.saturating_add(index * ENTRY_BYTES as u64))?;
        if entry.starts_with(&INTERPRETER.to_le_bytes()) {
            let start = u64::from_le_bytes(std::array::from_fn(|index| entry[8 + index]));
            let mut name = [0; LINE_BYTES];
            let length = file.read_at(&mut name, start)?;
            let name = name[..length].split(|byte| *byte == 0).next().unwrap_or_default();
            let is_musl = name.windows(4).any(|word| word == b"musl");
            return Ok(is_musl.then_some("it uses the C library musl, and only the GNU one loads ours"));
        }
    }
    Ok(Some("it is linked statically, as most programs in Go are"))
}

/// What runs a script.
fn interpreter_of_script(file: &File) -> io::Result<Option<PathBuf>> {
    let mut line = [0; LINE_BYTES];
    let length = file.read_at(&mut line, 0)?;
    let line = String::from_utf8_lossy(&line[..length]);
    let named = line.strip_prefix("#!").and_then(|rest| rest.lines().next()?.split_whitespace().next());
    Ok(named.map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program's file as far as it is looked at, which names a loader or none.
    fn program(interpreter: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = MACHINE as u8;
        bytes[32] = HEADER_BYTES as u8;
        bytes[56] = 2;
        // Something else comes first.
        let mut table = vec![0; 2 * ENTRY_BYTES];
        table[0] = 1;
        table[ENTRY_BYTES] = if interpreter.is_some() { INTERPRETER as u8 } else { 2 };
        table[ENTRY_BYTES + 8] = (HEADER_BYTES + 2 * ENTRY_BYTES) as u8;
        bytes.extend(table);
        bytes.extend(interpreter.unwrap_or_default().bytes());
        bytes.push(0);
        bytes
    }

    #[test]
    fn the_reason_why_a_file_loads_no_library_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| directory.path().join(name);
        let script = |of: &str| format!("#! {} -e\nexit\n", place(of).display()).into_bytes();
        let mut other_machine = program(None);
        other_machine[18] ^= 1;
        for (name, bytes, mode, wanted) in [
            ("static", program(None), 0o755, "linked statically"),
            ("musl", program(Some("/lib/ld-musl-x86_64.so.1")), 0o755, "musl"),
            ("gnu", program(Some("/lib64/ld-linux-x86-64.so.2")), 0o755, "may have ended"),
            ("rights", program(Some("/lib64/ld-linux-x86-64.so.2")), 0o4755, "gains rights"),
            ("other-machine", other_machine, 0o755, "64-bit"),
            ("script", script("static"), 0o755, "linked statically"),
            ("endless", script("endless"), 0o755, "may have ended"),
            ("short", b"\x7fELF".to_vec(), 0o755, "may have ended"),
            ("cut", program(None)[..HEADER_BYTES + 8].to_vec(), 0o755, "may have ended"),
        ] {
            fs::write(place(name), bytes).expect("written");
            fs::set_permissions(place(name), fs::Permissions::from_mode(mode)).expect("chmod");
            let told = tell(&place(name).display().to_string());
            assert!(told.contains(wanted) && told.lines().count() == 1, "{name}: {told}");
        }
        assert!(tell("no-such-program").contains("may have ended"));
        assert!(find("sh").is_some());
    }
}
