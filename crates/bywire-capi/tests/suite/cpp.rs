//! Programs in C++20 and C++23 use every class of `bywire.hpp`, with exceptions and without, also under valgrind and
//! sanitizers. Every enumerator and function of `bywire.h` is reached by it.
//!
//! The program is `tests/cpp/walk.cpp`: moved-from objects, errors as values, ends of peers, lending, regions, timeouts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installed::{Installed, functions, has, succeed};

/// Beside those of every test. A header's warnings are its user's.
const WARNINGS: [&str; 6] = [
    "-Wshadow",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wold-style-cast",
    "-Woverloaded-virtual",
    "-Wnon-virtual-dtor",
];
const WITHOUT_EXCEPTIONS: [&str; 2] = ["-fno-exceptions", "-fno-rtti"];

fn walk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp/walk.cpp")
}

fn header(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include").join(name);
    std::fs::read_to_string(path).expect(name)
}

fn write(installed: &Installed, name: &str, text: &str) -> PathBuf {
    let path = installed.path().join(name);
    std::fs::write(&path, text).expect("write");
    path
}

/// Builds the program that uses everything.
fn build_walk(installed: &Installed, compiler: &str, words: &[&str]) -> PathBuf {
    let words: Vec<&str> = words.iter().chain(&WARNINGS).copied().collect();
    installed.build(compiler, &words, &walk())
}

/// Builds the program, and runs it.
fn check_walk(compiler: &str, words: &[&str]) {
    let installed = Installed::new();
    let program = build_walk(&installed, compiler, words);
    assert_eq!(installed.run(&program, &[]), "walked\n", "{words:?}");
}

#[test]
fn a_program_in_cpp20_uses_every_class() {
    check_walk("g++", &["-std=c++20"]);
}

#[test]
fn a_program_without_exceptions_uses_every_class() {
    let [exceptions, types] = WITHOUT_EXCEPTIONS;
    check_walk("g++", &["-std=c++20", "-O2", exceptions, types]);
}

#[test]
fn a_program_in_cpp23_gets_results_of_the_standard() {
    check_walk("g++", &["-std=c++23", "-O2"]);
    let installed = Installed::new();
    let text = "#include <bywire.hpp>\n\
                static_assert(std::is_same_v<bywire::result<int>, std::expected<int, bywire::error>>);\n\
                int main() { return bywire::result<int>(0).value(); }\n";
    let source = write(&installed, "standard.cpp", text);
    installed.run(&installed.build("g++", &["-std=c++23"], &source), &[]);
}

#[test]
fn clang_compiles_the_program_as_well() {
    if has("clang++") {
        let [exceptions, types] = WITHOUT_EXCEPTIONS;
        check_walk("clang++", &["-std=c++20"]);
        check_walk("clang++", &["-std=c++20", "-O2", exceptions, types]);
    }
}

#[test]
fn valgrind_finds_no_error_and_no_leak_in_the_program() {
    if !has("valgrind") {
        return;
    }
    let installed = Installed::new();
    let program = build_walk(&installed, "g++", &["-std=c++20"]);
    let mut valgrind = installed.command(Path::new("valgrind"), &[]);
    valgrind.args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    assert_eq!(succeed(valgrind.arg(program)), "walked\n");
}

#[test]
fn sanitizers_find_no_error_and_no_leak_in_the_program() {
    let installed = Installed::new();
    let sanitized = ["-std=c++20", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let trivial = write(&installed, "trivial.cpp", "int main() {}\n");
    let mut probe = Command::new("g++");
    let probe = probe.args(sanitized).arg(trivial).arg("-o").arg(installed.path().join("trivial")).output();
    if !probe.expect("g++").status.success() {
        return println!("not run: g++ has no libraries for sanitizers");
    }
    let program = installed.build("g++", &sanitized, &walk());
    assert_eq!(installed.run(&program, &[]), "walked\n");
}

#[test]
fn the_header_compiles_alone_and_twice_and_an_older_standard_is_refused_with_the_reason() {
    let installed = Installed::new();
    let text = "#include <bywire.hpp>\n#include <bywire.hpp>\nint main() { return !bywire::version(); }\n";
    let source = write(&installed, "alone.cpp", text);
    for words in [&["-std=c++20"][..], &["-std=c++20", "-fno-exceptions", "-fno-rtti"], &["-std=c++23"]] {
        let words: Vec<&str> = words.iter().chain(&WARNINGS).copied().collect();
        installed.run(&installed.build("g++", &words, &source), &[]);
    }
    let mut older = Command::new("g++");
    older.args(["-std=c++17", "-fsyntax-only", "-I"]).arg(installed.prefix().join("include")).arg(source);
    let refused = older.output().expect("g++");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("bywire.hpp requires C++20"), "{said}");
}

/// The results of C++20 and C++23 are different types. So a function of one cannot be called from the other by mistake.
#[test]
fn parts_with_different_results_do_not_link() {
    let installed = Installed::new();
    let callee = "#include <bywire.hpp>\nint use(bywire::port &port) { return port ? 1 : 0; }\n";
    let caller = "#include <bywire.hpp>\nint use(bywire::port &port);\n\
                  int main() { bywire::port port; return use(port); }\n";
    let [callee, caller] =
        [("callee.cpp", callee), ("caller.cpp", caller)].map(|(name, text)| write(&installed, name, text));
    let object = installed.path().join("callee.o");
    let include = format!("-I{}", installed.prefix().join("include").display());
    let mut compile = Command::new("g++");
    succeed(compile.args(["-std=c++20", "-c", &include]).arg(callee).arg("-o").arg(&object));
    let object = object.to_str().expect("UTF-8");
    let mut link = Command::new("g++");
    link.args(["-std=c++23", &include, object]).arg(&caller).arg("-o").arg(installed.path().join("caller"));
    let refused = link.arg("-L").arg(installed.prefix().join("lib")).arg("-lbywire").output().expect("g++");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("undefined reference to `use("), "{said}");
    let program = installed.build("g++", &["-std=c++23", "-DBYWIRE_OWN_RESULT", object], &caller);
    installed.run(&program, &[]);
}

#[test]
fn every_enumerator_and_function_of_c_reaches_cpp() {
    let [c, cpp, result] = ["bywire.h", "bywire.hpp", "bywire/result.hpp"].map(header);
    let all = format!("{cpp}{result}");
    let mut count = 0;
    for name in c.lines().filter_map(|line| Some(line.trim().strip_prefix("BW_")?.split_once(" = ")?.0)) {
        // Options keep the names of C, as they are fields of C.
        if ["ADMIT_", "REACH_"].iter().any(|options| name.starts_with(options)) {
            continue;
        }
        let kinds = ["ERROR_", "EVENT_", "PRIORITY_", "CONFIRM_", "RIGHT_"];
        let short = kinds.iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name).to_lowercase();
        assert!(all.contains(&format!(" {short} = BW_{name}")), "BW_{name} is no enumerator of bywire.hpp");
        count += 1;
    }
    assert!(count > 65, "only {count} enumerators found: the header looks different now");
    let functions = functions(&c);
    assert!(functions.len() > 40, "{functions:?}");
    for function in functions {
        let is_used = [format!("{function}("), format!("<{function}>")].iter().any(|use_| all.contains(use_));
        assert!(is_used, "{function} of bywire.h is not used in bywire.hpp");
    }
}
