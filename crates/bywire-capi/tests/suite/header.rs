//! `bywire.h` agrees with the sources, compiles as plain C and C++, and the library exports exactly its functions.

use std::path::Path;

use crate::installed::{self, Installed};

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

/// `BYWIRE_WRITE_HEADER=1` writes it again.
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
        "bywire.h is not what the sources say: run BYWIRE_WRITE_HEADER=1 cargo test -p bywire-capi --test suite header::"
    );
}

#[test]
fn c_and_cpp_compile_the_header_alone_and_twice() {
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
fn a_program_links_the_static_library() {
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
