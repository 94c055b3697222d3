//! `bywire.h` is what the sources say, and C and C++ both take it.

mod installed;

use std::path::Path;

use installed::Installed;

/// In the order of the header.
const SOURCES: [&str; 9] =
    ["version", "error", "failure", "options", "port", "message", "event", "region", "heap"];

fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("the configuration");
    let sources = SOURCES.map(|name| root.join(format!("src/{name}.rs")));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = sources.into_iter().fold(builder, cbindgen::Builder::with_src);
    let mut bytes = Vec::new();
    builder.generate().expect("bindings").write(&mut bytes);
    compact(&String::from_utf8(bytes).expect("UTF-8"))
}

/// Comments of one line on one line, and Rust's word for what a caller promises in plain words.
fn compact(header: &str) -> String {
    let header = header.replace("\n\n # Safety\n ", "\n The caller promises: ");
    let mut lines = header.lines().peekable();
    let mut short = String::new();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start() != "/*" {
            short += line;
        } else {
            let first = lines.next().expect("a comment goes on").trim_start();
            short += &format!("{}/* {first}", " ".repeat(indent));
            while let Some(next) = lines.next_if(|next| next.trim() != "*/") {
                short += &format!("\n{}   {}", " ".repeat(indent), next.trim_start());
            }
            lines.next();
            short += " */";
        }
        short.push('\n');
    }
    short
}

/// `BYWIRE_WRITE_HEADER=1` writes it anew.
#[test]
fn the_header_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/bywire.h");
    let header = generated();
    if std::env::var_os("BYWIRE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).expect("write the header");
    }
    let committed = std::fs::read_to_string(&path).expect("the header");
    assert!(
        committed == header,
        "bywire.h is not what the sources say: run BYWIRE_WRITE_HEADER=1 cargo test -p bywire-capi --test header"
    );
}

#[test]
fn c_and_cpp_take_the_header_alone_and_twice() {
    let installed = Installed::new();
    let text = "#include <bywire.h>\n#include <bywire.h>\nint main(void) { return BW_OK + (int)(bw_abi_version() - BW_ABI_VERSION); }\n";
    for (name, dialect) in
        [("alone.c", "c11"), ("alone.cpp", "c++11"), ("alone.cpp", "c++20"), ("alone.c", "c17")]
    {
        let source = installed.path().join(name);
        std::fs::write(&source, text).expect("write");
        let program = installed.compile(&source, dialect);
        installed.run(&program, &[]);
    }
}

#[test]
fn a_program_links_the_static_library_too() {
    let installed = Installed::new();
    let source = installed.path().join("static.c");
    std::fs::write(&source, "#include <bywire.h>\n#include <stdio.h>\nint main(void) { bw_port_t *port; int error = bw_port_open(NULL, &port); if (error) { puts(bw_last_error_text()); return 1; } return -bw_port_close(port); }\n").expect("write");
    let program = installed.compile_static(&source);
    installed.run(&program, &[]);
}

/// Nothing but the interface leaves the library, and all of it does.
#[test]
fn the_library_exports_the_header_and_nothing_else() {
    let installed = Installed::new();
    let listed = installed.exports();
    let header = generated();
    let declared = installed::functions(&header);
    assert!(declared.len() > 40, "{declared:?}");
    assert_eq!(listed, declared);
}

#[test]
fn an_installer_that_cannot_write_says_so_in_one_line() {
    let mut install = std::process::Command::new(env!("CARGO_BIN_EXE_bywire-install"));
    let output = install.args(["--prefix", "/dev/null/none", "--libraries", "."]).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("bywire-install: cannot make /dev/null/none/lib/bywire"), "{said}");
    assert!(said.contains("choose another --prefix") && said.lines().count() == 1, "{said}");
}

/// A package is made under another root, and says where it will be.
#[test]
fn a_destination_stands_before_the_prefix() {
    let root = tempfile::tempdir().expect("a directory");
    let libraries = std::env::current_exe().expect("this program");
    let mut install = std::process::Command::new(env!("CARGO_BIN_EXE_bywire-install"));
    install.args(["--prefix", "/usr", "--destination"]).arg(root.path());
    install.arg("--libraries").arg(libraries.parent().expect("a directory"));
    assert!(install.output().expect("run").status.success());
    let text = std::fs::read_to_string(root.path().join("usr/lib/pkgconfig/bywire.pc")).expect("installed");
    assert!(text.starts_with("prefix=/usr\n"), "{text}");
}

/// What an installation has made goes, with its directories; what was there before stays.
#[test]
fn what_was_installed_is_removed_and_nothing_else() {
    let place = tempfile::tempdir().expect("a directory");
    let prefix = place.path().join("prefix");
    let own = prefix.join("lib/own");
    std::fs::create_dir_all(own.parent().expect("lib")).expect("made");
    std::fs::write(&own, "").expect("written");
    let program = std::env::current_exe().expect("this program");
    let x = |action: &str| {
        let mut x = std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../x"));
        x.arg(action).arg("--prefix").arg(&prefix).output().expect("run")
    };
    // Twice: an update keeps what the list knew.
    for _ in 0..2 {
        let mut install = std::process::Command::new(env!("CARGO_BIN_EXE_bywire-install"));
        install.arg("--prefix").arg(&prefix).arg("--libraries").arg(program.parent().expect("a directory"));
        assert!(install.output().expect("run").status.success());
    }
    assert!(prefix.join("include/bywire.h").exists() && prefix.join("lib/libbywire.so").exists());
    // A list that has been tampered with reaches nothing outside.
    let outside = place.path().join("outside");
    std::fs::write(&outside, "").expect("written");
    let list = prefix.join("lib/bywire/installed");
    let lines = std::fs::read_to_string(&list).expect("the list");
    std::fs::write(&list, format!("{lines}../outside\n{}\n", outside.display())).expect("written");
    // What cannot be removed is named, and stays on the list.
    let (header, kept) = (prefix.join("include/bywire.h"), std::fs::read(prefix.join("include/bywire.h")));
    std::fs::remove_file(&header).and_then(|()| std::fs::create_dir(&header)).expect("in its way");
    let stuck = x("uninstall");
    assert_eq!(stuck.status.code(), Some(1), "{stuck:?}");
    assert!(
        String::from_utf8_lossy(&stuck.stderr).ends_with("include/bywire.h\n") && list.exists(),
        "{stuck:?}"
    );
    std::fs::remove_dir(&header)
        .and_then(|()| std::fs::write(&header, kept.expect("read")))
        .expect("put back");
    for strange in ["--prefx=/", "/usr"] {
        let refused = std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../x"))
            .args(["uninstall", strange])
            .output()
            .expect("run");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    let removed = x("uninstall");
    assert!(removed.status.success(), "{removed:?}");
    let left: Vec<_> =
        std::fs::read_dir(&prefix).expect("kept").map(|entry| entry.expect("one").path()).collect();
    assert_eq!(left, [prefix.join("lib")]);
    let left: Vec<_> = std::fs::read_dir(prefix.join("lib"))
        .expect("kept")
        .map(|entry| entry.expect("one").path())
        .collect();
    assert_eq!(left, [own]);
    assert!(outside.exists());
    let again = x("uninstall");
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("there is no installation in"), "{again:?}");
    let unknown = x("nonsense");
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(
        String::from_utf8_lossy(&unknown.stderr).starts_with("x: there is no `nonsense`\n"),
        "{unknown:?}"
    );
}
