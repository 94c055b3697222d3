//! Programs in C and C++, each compiled once, however many tests run it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles a source to `program`: the compiler, the source, and the words behind it. What an earlier test has compiled of the
/// same files by the same words is taken from `kept`, a directory that the tests of a crate share: `CARGO_TARGET_TMPDIR`.
///
/// # Errors
///
/// When there is no such compiler.
///
/// # Panics
///
/// When it complains.
pub fn compile(kept: &Path, compiler: &str, source: &Path, words: &[&str], program: &Path) -> io::Result<()> {
    let place = kept.join(format!("compiled-{:016x}", key(compiler, source, words)?));
    if !place.exists() {
        fs::create_dir_all(kept)?;
        // The next test waits for it instead of compiling the same. Other programs are compiled meanwhile.
        let lock = fs::File::create(place.with_extension("lock"))?;
        lock.lock()?;
        if !place.exists() {
            // A name that no program has before it is whole.
            let unfinished = place.with_extension("unfinished");
            check(&Command::new(compiler).arg(source).args(words).arg("-o").arg(&unfinished).output()?);
            fs::rename(&unfinished, &place)?;
        }
    }
    // An earlier program of this name may be a link to another one that is kept.
    let _none = fs::remove_file(program);
    if fs::hard_link(&place, program).is_err() {
        // Copied by another process: a file that a child of a concurrent test has open for writing cannot be executed.
        check(&Command::new("cp").arg(&place).arg(program).output()?);
    }
    Ok(())
}

fn check(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A number for all that the program depends on: the compiler, the words, the source and the headers beside it.
fn key(compiler: &str, source: &Path, words: &[&str]) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let found = found(compiler).ok_or(io::ErrorKind::NotFound)?;
    let metadata = fs::metadata(&found)?;
    (found, metadata.len(), metadata.mtime(), source, words).hash(&mut hasher);
    fs::read(source)?.hash(&mut hasher);
    let directory = source.parent().ok_or(io::ErrorKind::NotFound)?;
    let mut headers = Vec::new();
    for entry in fs::read_dir(directory)? {
        headers.push(entry?.path());
    }
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();
    for header in headers {
        fs::read(header)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// The file of a command.
fn found(command: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    // A path stays itself behind any directory.
    std::env::split_paths(&paths).map(|directory| directory.join(command)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::{compile, found};

    #[test]
    fn a_program_is_compiled_again_once_a_file_of_it_has_changed() {
        if found("cc").is_none() {
            return println!("not run: a C compiler is needed");
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        fs::write(path("number.h"), "#define NUMBER 3\n").expect("written");
        fs::write(path("source.c"), "#include \"number.h\"\nint main(void) { return NUMBER + MORE; }\n")
            .expect("written");
        let compiled = |word: &str, name: &str| {
            compile(&path("kept"), "cc", &path("source.c"), &[word], &path(name)).expect("a compiler");
            let status = Command::new(path(name)).status().expect("it runs");
            (status.code().expect("it ends"), fs::metadata(path(name)).expect("a file").ino())
        };
        let first = compiled("-DMORE=1", "first");
        assert_eq!((first.0, compiled("-DMORE=1", "second")), (4, first));
        assert_eq!(compiled("-DMORE=2", "third").0, 5);
        fs::write(path("number.h"), "#define NUMBER 7\n").expect("written");
        assert_eq!(compiled("-DMORE=1", "fourth").0, 8);
    }
}
