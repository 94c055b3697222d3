//! A CMake project outside of the tree finds the installed package, builds the examples in C and C++ against both of its
//! libraries, and is refused another version. The package works from the place to which its installation has moved.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bywire_testing::running::{self, Running};

use crate::installed::{Installed, has, succeed};

const STATIC_PROJECT: &str = "\
cmake_minimum_required(VERSION 3.16)
project(static LANGUAGES C CXX)
find_package(bywire CONFIG REQUIRED)
add_executable(echo echo.c)
target_link_libraries(echo PRIVATE bywire::static)
add_executable(ask ask.cpp)
target_compile_features(ask PRIVATE cxx_std_20)
target_link_libraries(ask PRIVATE bywire::static)
";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// A project of these files, outside of the tree.
fn project(installed: &Installed, name: &str, files: &[&str], list: Option<&str>) -> PathBuf {
    let place = installed.path().join(name);
    fs::create_dir(&place).expect("made");
    for file in files {
        let path = examples().join(file);
        fs::copy(&path, place.join(path.file_name().expect("a name"))).expect("copied");
    }
    if let Some(text) = list {
        fs::write(place.join("CMakeLists.txt"), text).expect("written");
    }
    place
}

/// Configures a project against the installation below a prefix.
fn configure(project: &Path, prefix: &Path) -> Output {
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(project).arg("-B").arg(project.join("build"));
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())).output().expect("cmake")
}

/// Builds a project, and lets its client ask its server. No variable says where the library is.
fn check_project(installed: &Installed, project: &Path, prefix: &Path) {
    let configured = configure(project, prefix);
    assert!(configured.status.success(), "{configured:?}");
    succeed(Command::new("cmake").arg("--build").arg(project.join("build")));
    let start = |name: &str, arguments: &[&str]| {
        let mut command = installed.command(&project.join("build").join(name), arguments);
        command.env_remove("LD_LIBRARY_PATH");
        Running::start(command)
    };
    running::check_echo(|arguments| start("echo", arguments), |arguments| start("ask", arguments));
}

#[test]
fn the_project_of_the_examples_is_built_against_the_shared_library() {
    if !has("cmake") {
        return;
    }
    let installed = Installed::own();
    let files = ["cpp/CMakeLists.txt", "cpp/echo.cpp", "cpp/ask.cpp"];
    check_project(&installed, &project(&installed, "shared", &files, None), installed.path());
    // Moved to another root, as Debian's packages have it: `lib` is a link to `usr/lib`, and libraries are in a directory
    // named after the machine.
    let moved = installed.path().join("moved");
    fs::create_dir_all(moved.join("usr/lib")).expect("made");
    symlink("usr/lib", moved.join("lib")).expect("a link");
    let machine = succeed(Command::new("gcc").arg("-dumpmachine"));
    fs::rename(installed.path().join("include"), moved.join("usr/include")).expect("moved");
    fs::rename(installed.path().join("lib"), moved.join("usr/lib").join(machine.trim())).expect("moved");
    check_project(&installed, &project(&installed, "again", &files, None), &moved);
}

#[test]
fn a_project_in_c_and_cpp_is_built_against_the_static_library() {
    if !has("cmake") {
        return;
    }
    let installed = Installed::new();
    let files = ["c/echo.c", "cpp/ask.cpp"];
    let project = project(&installed, "static", &files, Some(STATIC_PROJECT));
    let configured = configure(&project, installed.prefix());
    assert!(configured.status.success(), "{configured:?}");
    check_project(&installed, &project, installed.prefix());
    let needed = succeed(Command::new("ldd").arg(project.join("build/ask")));
    assert!(!needed.contains("libbywire"), "{needed}");
}

#[test]
fn a_request_for_another_version_is_refused() {
    if !has("cmake") {
        return;
    }
    let installed = Installed::own();
    let version = env!("CARGO_PKG_VERSION");
    let minor = version.rsplit_once('.').expect("three numbers").0;
    let exact = format!("{version} EXACT");
    let range = format!("{minor}...<99");
    let requests = [
        ("", true),
        (minor, true),
        (version, true),
        (exact.as_str(), true),
        (range.as_str(), true),
        ("0.0", false),
        ("0.99", false),
        ("99", false),
        ("98...99", false),
        ("0...<0.1", false),
    ];
    for (index, (request, is_served)) in requests.into_iter().enumerate() {
        let text = format!(
            "cmake_minimum_required(VERSION 3.19)\nproject(request LANGUAGES CXX)\n\
             find_package(bywire {request} CONFIG REQUIRED)\n"
        );
        let project = project(&installed, &format!("request-{index}"), &[], Some(&text));
        let output = configure(&project, installed.path());
        assert_eq!(output.status.success(), is_served, "{request:?}: {output:?}");
    }
    // A package whose library was removed says what is missing.
    let library = fs::read_link(installed.path().join("lib/libbywire.so")).expect("a link");
    fs::remove_file(installed.path().join("lib").join(&library)).expect("removed");
    let text = "cmake_minimum_required(VERSION 3.16)\nproject(broken LANGUAGES CXX)\n\
                find_package(bywire CONFIG REQUIRED)\n";
    let project = project(&installed, "broken", &[], Some(text));
    let output = configure(&project, installed.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("is missing: install"), "{said}");
}
