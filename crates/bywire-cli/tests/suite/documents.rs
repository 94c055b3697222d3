//! Every command of README.md and docs has a rule: a test that runs it as printed, or the reason why none can. Needs
//! root, and installs Redis and ping.
//!
//! Here run networks, files of settings, `bywire run` with Redis, measurements (with the printed time in a soak, and
//! with less before), a far end with a key, a session with its report and comparison, and a clone's installation and
//! removal, with a session that is whole in a soak and interrupted before.
//!
//! [`RULES`] says for every command of every page which test runs it, or why none can, but for [`WHOLE_PAGES`]. A
//! command without a rule fails [`every_command_of_the_pages_has_a_rule`], one that is new in a group fails the test of
//! that group.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bywire_testing::Tier;
use bywire_testing::here::has_taps;

use crate::packages::{self, Service};
use crate::provider;

/// Which test of this file runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// One measurement: each runs by itself.
    Measurement,
    /// A far end, and what is measured there.
    FarEnd,
    /// A session, its report, and a comparison.
    Session,
    /// Programs that are carried.
    Carried,
    /// A network of two namespaces.
    Network,
    /// A network of two processes that do not know each other.
    Nodes,
    /// A clone, its installation, and where the loader finds that.
    Installation,
    /// Files of settings.
    Settings,
}

/// How a command of the pages is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Run(Group),
    /// By the tests of this file, which reads the page.
    Elsewhere(&'static str),
    /// It cannot be run here, for this reason.
    NotRun(&'static str),
}

use Group::{Carried, FarEnd, Installation, Measurement, Network, Nodes, Session, Settings};
use Rule::{Elsewhere, NotRun, Run};

const PLACEHOLDER: &str = "its words in capitals stand for others";

/// The rule of a command is the first one whose words it begins with.
const RULES: &[(&str, Rule)] = &[
    ("bywire measure LEVEL TEST", NotRun(PLACEHOLDER)),
    ("bywire measure udp latency --between 192.0.2.7", Run(FarEnd)),
    (
        "bywire measure msg latency --link udp --between 192.0.2.7",
        Elsewhere("crates/bywire-cli/tests/suite/node.rs"),
    ),
    (
        "bywire measure msg stream --link udp --between 192.0.2.7",
        Elsewhere("crates/bywire-cli/tests/suite/node.rs"),
    ),
    ("bywire measure tcp stream --between 192.0.2.7", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    (
        "bywire measure tcp latency --between web2 --fabric",
        Elsewhere("crates/bywire-cli/tests/suite/node.rs"),
    ),
    ("bywire measure ", Run(Measurement)),
    ("bywire serve --fabric", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("bywire serve ", Run(FarEnd)),
    ("bywire bench PRESET", NotRun(PLACEHOLDER)),
    ("bywire bench quick --output ", Run(Session)),
    ("bywire bench", NotRun("takes minutes; `bywire bench quick --output` and `./x bench` run shortened")),
    ("bywire report ", Run(Session)),
    ("bywire compare ", Run(Session)),
    ("bywire engine ", Elsewhere("crates/bywire-cli/tests/suite/sockets/engine.rs")),
    ("bywire run -- PROGRAM", NotRun(PLACEHOLDER)),
    (
        "systemctl --user enable --now bywire-engine.service",
        Elsewhere("crates/bywire-cli/tests/suite/sockets/engine.rs"),
    ),
    ("bywire run ", Run(Carried)),
    ("bywire status", Run(Carried)),
    ("bywire service ", Elsewhere("crates/bywire-cli/tests/suite/sockets/units.rs")),
    ("bywire init ", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("bywire invite ", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("bywire join ", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("bywire node ", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("bywire key", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("bywire up", Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("ip netns ", Run(Network)),
    ("bywire eth up --fabric ", Elsewhere("crates/bywire-cli/tests/suite/eth_fabric.rs")),
    ("bywire eth up --background ", Run(Network)),
    ("bywire eth down", Run(Network)),
    ("bywire eth up --node ", Run(Nodes)),
    ("git clone ", Run(Installation)),
    ("./x bench", Run(Installation)),
    ("./x install ", Run(Installation)),
    ("export PATH=\"$HOME/.bywire/bin:$HOME/.cargo/bin", Run(Installation)),
    ("export PATH=\"$HOME/.bywire/bin:$PATH", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("export PATH=\"$HOME/bywire/bin", Elsewhere("crates/bywire-cli/tests/suite/packaging.rs")),
    (
        "export PATH=\"$HOME/bywire-python/bin",
        NotRun("it makes the module of the command before known to a shell"),
    ),
    ("eval \"$(bywire mpi env", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("export FI_PROVIDER_PATH=", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("FI_LOG_LEVEL=info ", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("unset FI_PROVIDER_PATH ", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("fi_info -p bywire", Elsewhere("crates/bywire-ofi/tests/suite/loading.rs")),
    ("mpirun -n 2 --mca ", Elsewhere("crates/bywire-ofi/tests/suite/open_mpi.rs")),
    ("mpirun ", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("mpiexec ", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("podman run --rm -v \"$HOME/.bywire", Elsewhere("crates/bywire-cli/tests/suite/mpi_programs.rs")),
    ("MPIR_CVAR_CH4_NETMOD=", Elsewhere("crates/bywire-ofi/tests/suite/mpich.rs")),
    ("I_MPI_FABRICS=", Elsewhere("crates/bywire-ofi/tests/suite/intel_mpi.rs")),
    ("cargo run -p bywire-capi ", Run(Installation)),
    ("sudo ldconfig", Run(Installation)),
    ("python3 examples/python/", Elsewhere("crates/bywire-python/tests/suite/examples.rs")),
    ("python3 -m venv \"$HOME/bywire-python\"", NotRun("the next command needs it")),
    (
        "\"$HOME/bywire-python/bin/pip\" install ",
        NotRun("builds a release for minutes; tests load the module that cargo has built"),
    ),
    ("python3 -m venv \"$HOME/bywire-environment\"", Elsewhere("crates/bywire-cli/tests/suite/packaging.rs")),
    ("\"$HOME/bywire-environment/bin/", Elsewhere("crates/bywire-cli/tests/suite/packaging.rs")),
    ("sudo apt-get install ./target/", Elsewhere("crates/bywire-cli/tests/suite/packaging.rs")),
    ("tar -xzf target/package/", Elsewhere("crates/bywire-cli/tests/suite/packaging.rs")),
    ("./bywire-*-linux-gnu/install.sh", Elsewhere("crates/bywire-cli/tests/suite/packaging.rs")),
    (
        "./x package",
        NotRun("builds a release for minutes; packaging.rs packages what cargo has built for it"),
    ),
    ("docker ", NotRun("needs a container engine; packaging.rs and sockets/service.rs run the steps")),
    ("export PKG_CONFIG_PATH=", Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("cc hello.c ", Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("c++ -std=c++20 hello.cpp ", Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("cmake -S examples/cpp ", Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("cmake --build build", Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    (
        "cargo run --release -p bywire-examples --bin echo -- --fabric",
        Elsewhere("examples/rust/tests/suite/machines.rs"),
    ),
    (
        "cargo run --release -p bywire-examples --bin ask -- web2/echo",
        Elsewhere("examples/rust/tests/suite/machines.rs"),
    ),
    ("cargo run --release -p bywire-examples ", Elsewhere("examples/rust/tests/suite/programs.rs")),
    ("./x test", NotRun("this test is a part of it")),
    ("cargo test -p ", NotRun("./x test runs every test")),
    ("./x check", NotRun("CI runs it beside the tests")),
    ("./x fuzz", NotRun("needs a nightly compiler, and a minute for each target")),
    ("./x site", NotRun("installs mdBook from a network; its parts are tested in crates/bywire-tidy")),
    ("./x figures ", NotRun("measures for minutes to hours, in a release build")),
    ("conformance/", NotRun("runs for hours, and needs what other projects publish")),
    ("BYWIRE_TESTS=soak ", NotRun("takes ten minutes; ./x test all runs the same test for a shorter time")),
    ("systemctl ", NotRun("needs systemd, and an installation in /usr/local")),
    ("podman ", NotRun("needs podman, and an image and a program of the reader's own")),
];

/// Pages that one test runs from the first command to the last.
const WHOLE_PAGES: &[(&str, &str)] = &[("docs/tutorial.md", "crates/bywire-cli/tests/suite/tutorial.rs")];

/// What is no command: the blocks of a language on a page, how many there are, and how they are tested.
const EXAMPLES: &[(&str, &str, usize, Rule)] = &[
    ("docs/c.md", "c", 1, Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("docs/c.md", "cmake", 1, Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("docs/c.md", "cpp", 1, Elsewhere("crates/bywire-capi/tests/suite/examples.rs")),
    ("docs/ethernet.md", "toml", 1, Run(Settings)),
    ("docs/links.md", "toml", 1, Elsewhere("crates/bywire-cli/tests/suite/node.rs")),
    ("docs/messages.md", "rust", 2, Elsewhere("examples/rust/tests/suite/programs.rs")),
    ("docs/messages.md", "toml", 1, Elsewhere("examples/rust/tests/suite/programs.rs")),
    ("docs/operations.md", "nft", 2, Elsewhere("crates/bywire-cli/tests/suite/operations.rs")),
    ("docs/operations.md", "toml", 2, Elsewhere("crates/bywire-cli/tests/suite/operations.rs")),
    ("docs/operations.md", "yaml", 4, Elsewhere("crates/bywire-cli/tests/suite/operations.rs")),
    ("docs/python.md", "python", 4, Elsewhere("crates/bywire-python/tests/suite/examples.rs")),
    ("docs/sockets.md", "ini", 1, Elsewhere("crates/bywire-cli/src/service/drop_in.rs")),
    ("docs/sockets.md", "toml", 1, Run(Settings)),
    ("docs/tutorial.md", "toml", 1, Elsewhere("crates/bywire-cli/tests/suite/tutorial.rs")),
];

/// How a script begins that is alone: what it makes ends with it.
const ALONE: &str = "mount -t tmpfs none /run; ip link set lo up; cd \"$1\"";
/// The time limit of a script; one that takes longer hangs.
const SECONDS: &str = "400";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect(name)
}

/// README.md and the pages of docs and its notebook, by name.
fn pages() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["docs", "docs/notebook"] {
        let files = fs::read_dir(root().join(folder)).expect(folder).flatten();
        let found = files.filter_map(|file| file.file_name().into_string().ok());
        names.extend(found.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")));
    }
    names.sort();
    names.insert(0, "README.md".to_owned());
    names
}

/// The blocks of code of a page, each with its language.
fn blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'))
}

/// The one block of a page with these words in it.
fn block<'page>(page: &'page str, words: &str) -> &'page str {
    let mut found = blocks(page).map(|(_language, lines)| lines).filter(|lines| lines.contains(words));
    let block = found.next().unwrap_or_else(|| panic!("no block has {words:?}"));
    assert!(found.next().is_none(), "several blocks have {words:?}");
    block
}

/// The commands of a page: of its blocks for the shell, without comments, one that goes on in the next line as one.
fn commands(page: &str) -> Vec<String> {
    let shells = blocks(page).filter(|(language, _)| ["", "sh"].contains(language));
    let lines = shells
        .flat_map(|(_, block)| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>());
    let commands = lines.map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned());
    commands.filter(|command| !command.is_empty()).collect()
}

fn rule(command: &str) -> Option<Rule> {
    RULES.iter().find(|(beginning, _)| command.starts_with(beginning)).map(|(_, rule)| *rule)
}

/// The commands of all pages that belong to a group, each once, in the order of the pages.
fn commands_of(group: Group) -> Vec<String> {
    let mut found = Vec::new();
    let others = pages().into_iter().filter(|name| whole_page(name).is_none());
    for command in others.flat_map(|name| commands(&page(&name))) {
        if rule(&command) == Some(Run(group)) && !found.contains(&command) {
            found.push(command);
        }
    }
    found
}

/// The test that runs a whole page.
fn whole_page(name: &str) -> Option<&'static str> {
    WHOLE_PAGES.iter().find(|(page, _)| *page == name).map(|(_, file)| *file)
}

/// That other file of tests takes what it runs from the page.
fn reads(file: &str, page_name: &str) {
    assert!(page(file).contains(page_name), "{file} does not read {page_name}");
}

#[test]
fn every_command_of_the_pages_has_a_rule() {
    let mut used = vec![false; RULES.len()];
    for name in pages() {
        let text = page(&name);
        let mut examples: BTreeMap<&str, usize> = BTreeMap::new();
        for (language, _) in blocks(&text).filter(|(language, _)| !["", "sh", "text"].contains(language)) {
            *examples.entry(language).or_default() += 1;
        }
        let ruled = EXAMPLES.iter().filter(|(page, ..)| *page == name);
        let ruled: BTreeMap<&str, usize> = ruled.map(|(_, language, count, _)| (*language, *count)).collect();
        assert_eq!(
            examples, ruled,
            "{name}: how many examples there are in each language, and how many are tested"
        );
        if let Some(file) = whole_page(&name) {
            reads(file, &name);
            continue;
        }
        for command in commands(&text) {
            let index = RULES.iter().position(|(beginning, _)| command.starts_with(beginning));
            let index = index.unwrap_or_else(|| panic!("{name}: no rule says how this is tested: {command}"));
            used[index] = true;
            match RULES[index].1 {
                NotRun(reason) => println!("not run: {command}: {reason}"),
                Elsewhere(file) => reads(file, &name),
                Run(_) => {}
            }
            let program = command.split(' ').next().unwrap_or_default();
            let is_of_the_tree = program.contains('/') && !program.contains(['$', '*']);
            assert!(!is_of_the_tree || root().join(program).exists(), "{name}: there is no {program}");
        }
    }
    let unused: Vec<_> =
        RULES.iter().zip(used).filter(|(_, used)| !used).map(|((words, _), _)| words).collect();
    assert!(unused.is_empty(), "no page has a command that begins so: {unused:?}");
}

/// The page's commands that run tests of a crate's suite: the crate, and the beginning of their names.
fn suites(page: &str) -> Vec<(String, String)> {
    let commands =
        page.split('`').filter_map(|words| words.split_once("cargo test ")?.1.split_once(" --test suite "));
    let chosen = commands.flat_map(|(options, chosen)| {
        let package = options.split_once("-p ").expect("a crate").1;
        let modules = chosen.split_whitespace().filter(|word| word.contains("::"));
        modules.map(|module| (package.to_owned(), module.to_owned()))
    });
    chosen.collect()
}

/// The modules of a crate's suite that hold tests.
fn modules(package: &Path) -> Vec<String> {
    fn has_tests(path: &Path) -> bool {
        match fs::read_dir(path) {
            Ok(entries) => entries.flatten().any(|entry| has_tests(&entry.path())),
            Err(_) => fs::read(path).is_ok_and(|text| String::from_utf8_lossy(&text).contains("#[test]")),
        }
    }
    let suite = package.join("tests/suite");
    let Ok(main) = fs::read_to_string(suite.join("main.rs")) else { return Vec::new() };
    let names = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let with_tests =
        names.filter(|name| has_tests(&suite.join(name)) || has_tests(&suite.join(format!("{name}.rs"))));
    with_tests.map(str::to_owned).collect()
}

#[test]
fn every_module_of_tests_is_listed_with_its_command() {
    const PAGE: &str = "docs/suites.md";
    let listed = suites(&page(PAGE));
    let packages = packages();
    for (package, module) in &listed {
        let path = module.trim_end_matches("::").replace("::", "/");
        let folder = packages.get(package).unwrap_or_else(|| panic!("{PAGE}: there is no {package}"));
        let suite = folder.join("tests/suite");
        let is_there = suite.join(&path).is_dir() || suite.join(format!("{path}.rs")).exists();
        assert!(is_there, "{PAGE}: {package} has no tests in {module}");
    }
    for (name, folder) in packages {
        for module in modules(&folder) {
            let command = (name.clone(), format!("{module}::"));
            assert!(
                listed.contains(&command),
                "{PAGE} does not list `cargo test -p {name} --test suite {module}::`"
            );
        }
    }
}

/// The folders of the workspace's packages, by name.
fn packages() -> BTreeMap<String, PathBuf> {
    let below = |place: &str, prefix: &'static str| {
        let folders = fs::read_dir(root().join(place)).expect("a folder").flatten();
        folders.map(move |folder| {
            let name = folder.file_name().into_string().expect("text");
            (format!("{prefix}{name}"), folder.path())
        })
    };
    let examples = ("bywire-examples".to_owned(), root().join("examples/rust"));
    below("crates", "").chain(below("lab", "bywire-")).chain([examples]).collect()
}

/// May namespaces be made here? Else says what is not run.
fn is_possible() -> bool {
    let tried = Command::new("unshare").args(["-m", "-n", "-p", "-f", "true"]).output();
    let is_possible = tried.is_ok_and(|output| output.status.success());
    if !is_possible {
        println!("not run: no namespaces can be made here: run as root");
    }
    is_possible
}

/// Runs a script with the command in its path, in namespaces of its own, with an empty runtime directory.
fn run(script: &str, service: Option<&Service>) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let command = Path::new(env!("CARGO_BIN_EXE_bywire"));
    let library = std::env::current_exe().expect("this test").with_file_name("libbywire_sockets.so");
    let programs = service.and_then(|service| service.program.parent()).map(Path::to_path_buf);
    let paths = [command.parent().map(PathBuf::from), programs];
    let old = std::env::var_os("PATH").unwrap_or_default();
    let paths = paths.into_iter().flatten().chain(std::env::split_paths(&old));
    let mut shell = Command::new("timeout");
    shell.args([SECONDS, "unshare", "-m", "-n", "-p", "-f", "--mount-proc", "--kill-child"]);
    shell.args(["sh", "-ec", &format!("{ALONE}\n{script}"), "sh"]).arg(directory.path());
    shell.env("PATH", std::env::join_paths(paths).expect("a path")).env("BYWIRE_SOCKETS_LIBRARY", library);
    shell.env(provider::VARIABLE, provider::directory());
    // Cargo's own, which no reader has.
    shell.env_remove("CARGO_TARGET_DIR").env_remove("CARGO");
    if let Some(service) = service {
        shell.env("LD_LIBRARY_PATH", &service.libraries);
    }
    shell.output().expect("it runs")
}

fn succeeds(script: &str) -> String {
    let output = run(script, None);
    assert!(output.status.success(), "{script}\n{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Can there be namespaces, and TAP devices in them? Else says what is not run.
#[test]
fn the_first_network_of_the_page_works_and_is_removed() {
    if !has_taps() || !is_possible() || !packages::have(&[("ping", "iputils-ping")]) {
        return;
    }
    let commands = commands_of(Network);
    assert_eq!(commands.len(), 5, "{commands:?}");
    for name in ["README.md", "docs/ethernet.md"] {
        let begins =
            block(&page(name), "ip netns add").lines().zip(&commands).all(|(line, command)| line == command);
        assert!(begins, "{name} begins otherwise: {commands:?}");
    }
    // Its `ping` ends well with the first answer: on a busy machine others may come too late.
    let printed = succeeds(&format!("{}\n! bywire eth status", commands.join("\n")));
    assert!(printed.contains("3 packets transmitted"), "{printed}");
}

#[test]
fn processes_with_one_runtime_directory_form_one_network() {
    if !has_taps() || !is_possible() || !packages::have(&[("ping", "iputils-ping")]) {
        return;
    }
    let [one, two] = &commands_of(Nodes)[..] else { panic!("two nodes") };
    succeeds(&format!(
        "ip netns add one; ip netns add two
        ip netns exec one {one} &
        ip netns exec two {two} &
        until ip netns exec one ping -c 1 -W 1 10.77.0.2; do sleep 0.1; done"
    ));
}

#[test]
fn the_printed_settings_are_accepted() {
    if !has_taps() || !is_possible() {
        return;
    }
    let (ethernet, sockets) = (page("docs/ethernet.md"), page("docs/sockets.md"));
    let network = block(&ethernet, "[ethernet]");
    // What the settings name is there. SIGTERM ends a service that has begun to listen.
    succeeds(&format!(
        "ip netns add blue; ip netns add web; ip netns add database; ip link add br0 type bridge
        cat >network.toml <<'END'\n{network}END
        bywire eth up --background --config network.toml
        bywire eth status
        bywire eth down
        cat >spaces.toml <<'END'\n{}END
        bywire pair --socket \"$PWD/pairing\" --config spaces.toml &
        until [ -S pairing ]; do sleep 0.1; done
        kill $!",
        block(&sockets, "one-address-space")
    ));
}

#[test]
fn programs_are_carried_by_the_printed_commands() {
    let Some(redis) = Service::find("redis-server", "redis-server") else { return };
    let block = |name: &str| block(&page(name), "bywire run -- redis-server").to_owned();
    assert_eq!(block("README.md"), block("docs/sockets.md"), "the two pages begin otherwise");
    if !is_possible() {
        return;
    }
    // A terminal for each of the two programs, which do not end by themselves, or not soon.
    let [server, client, status, explain] = &commands_of(Carried)[..] else {
        panic!("a server, a client, …")
    };
    let script = format!(
        "{server} >server.txt &
        until redis-cli -p 7000 ping; do sleep 0.1; done
        {client} >client.txt &
        until {status} --json | grep -q '\"carried_ever\":[1-9]'; do sleep 0.1; done
        {status}
        kill $!
        {explain} 2>&1"
    );
    let output = run(&script, Some(&redis));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("carried"), "{output:?}");
    assert!(printed.contains("GET") && printed.contains("requests per second"), "{printed}");
}

/// A printed measurement with the least time in which all its parts run: docs/laboratory.md has the option. A soak takes it as
/// printed, which is up to five seconds for each.
fn shortened(command: &str, level: &str) -> String {
    let seconds = match level {
        _ if Tier::current() == Tier::Soak => return command.to_owned(),
        "web" => "0.25",
        // Several connections that do not run at one time are measured again.
        _ if command.contains(" --connections ") => "1",
        _ => "0.05",
    };
    format!("{command} --time {seconds}")
}

/// Takes the printed measurements of these levels, or of all but these.
fn measure(are_these: bool, levels: &[&str]) {
    if !is_possible() {
        return;
    }
    let level = |command: &str| command.split(' ').nth(2).unwrap_or_default().to_owned();
    let commands = commands_of(Measurement);
    let commands: Vec<_> =
        commands.iter().filter(|command| levels.contains(&&*level(command)) == are_these).collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for command in commands {
        let command = &shortened(command, &level(command));
        let output = run(command, None);
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("MPI") && said.contains(" is not installed") {
            println!("not run: {command}: {}", said.trim_end());
            continue;
        }
        assert!(output.status.success() && !output.stdout.is_empty(), "{command}\n{output:?}");
    }
}

// Apart, so that each has a time limit of its own.

#[test]
fn servers_are_measured_by_the_printed_commands() {
    measure(true, &["web"]);
}

#[test]
fn mpi_is_measured_by_the_printed_commands() {
    measure(true, &["mpi"]);
}

#[test]
fn everything_else_is_measured_by_the_printed_commands() {
    measure(false, &["web", "mpi"]);
}

#[test]
fn a_key_is_made_and_a_far_end_measured() {
    if !is_possible() {
        return;
    }
    let laboratory = page("docs/laboratory.md");
    let key = laboratory.split('`').find(|quoted| quoted.starts_with("(umask")).expect("how a key is made");
    let [serve, measure] = &commands_of(FarEnd)[..] else { panic!("a far end and a measurement") };
    // The address of the page is this machine's own here. What begins before the far end listens is refused.
    let address = "ip address add 192.0.2.7/32 dev lo";
    let printed = succeeds(&format!("{address}\n{key}\n{serve} &\nuntil {measure}; do sleep 0.2; done"));
    assert!(printed.contains("192.0.2.7"), "{printed}");
}

/// A session as printed takes minutes. With the least time for each cell, and of few levels, it takes seconds:
/// docs/laboratory.md has both options.
const SHORTENED: &str = " --time 0.005 --levels unix";

#[test]
fn sessions_are_taken_shown_and_compared_by_the_printed_commands() {
    if !is_possible() {
        return;
    }
    let [session, report, cells, compare] = &commands_of(Session)[..] else {
        panic!("a session, a report, …")
    };
    succeeds(&format!(
        "{session}{SHORTENED}
        cp -r sessions/mine sessions/before; cp -r sessions/mine sessions/after; rm sessions/mine/report.html
        {report}
        test -s sessions/mine/report.html
        {cells}
        test -s cells.csv
        {compare}"
    ));
}

/// Instead of cargo: it puts this build's own programs and libraries where the printed commands would build them for
/// release. The directory of the first and that of the second follow.
const CARGO: &str = r#"#!/bin/sh
set -e
target=target action=$1
while [ $# != 0 ] && [ "$1" != -- ]; do
    [ "$1" != --target-dir ] || target=$2
    shift
done
[ "$action" != --version ] || { echo cargo 99.0.0; exit; }
mkdir -p "$target/release"
# The installer has cargo build beside itself, while it runs; the others are only read, or find themselves.
[ -e "$target/release/bywire-install" ] || cp PROGRAMS/bywire-install "$target/release"
ln -sf PROGRAMS/bywire LIBRARIES/libbywire_sockets.so LIBRARIES/libbywire_fi.so LIBRARIES/libbywire_capi.so LIBRARIES/libbywire_capi.a "$target/release"
if [ "$action" = run ]; then
    shift
    exec "$target/release/bywire-install" "$@"
fi
"#;

#[test]
fn a_clone_is_installed_and_removed_by_the_printed_commands() {
    let programs = Path::new(env!("CARGO_BIN_EXE_bywire")).parent().expect("a directory");
    let libraries = std::env::current_exe().expect("this test");
    let libraries = libraries.parent().expect("a directory");
    if !programs.join("bywire-install").exists() || !libraries.join("libbywire_capi.a").exists() {
        return println!(
            "not run: bywire-install and libbywire_capi were not built: cargo test --workspace builds them"
        );
    }
    if !root().join(".git").exists() {
        return println!("not run: this is no clone: there is nothing to clone from");
    }
    if !is_possible() || !packages::have(&[("git", "git")]) {
        return;
    }
    let cargo = CARGO.replace("PROGRAMS", &programs.display().to_string());
    let cargo = cargo.replace("LIBRARIES", &libraries.display().to_string());
    let commands = commands_of(Installation);
    let [clone, install, path, bench, by_cargo, loader] = &commands[..] else { panic!("{commands:?}") };
    let uninstall = page("README.md");
    let uninstall =
        uninstall.split('`').find(|quoted| quoted.starts_with("./x uninstall")).expect("how it goes");
    let address = clone.split(' ').nth(2).expect("an address");
    let session = match Tier::current() {
        Tier::Soak => format!("{bench}{SHORTENED}"),
        // As printed, until something is stored. An interrupted session ends with its report, too.
        _ => format!(
            "{bench} &
            until grep -q . sessions/*/cells.jsonl; do kill -0 $!; sleep 0.1; done
            kill $!
            wait $! || test $? = 130"
        ),
    };
    let tree = root().canonicalize().expect("the tree");
    let tree = tree.display();
    succeeds(&format!(
        "export HOME=\"$PWD\" CARGO_HOME=\"$PWD/cargo\"
        mkdir -p cargo/bin
        cat >cargo/bin/cargo <<'END'\n{cargo}END
        chmod +x cargo/bin/cargo
        # What the page clones is this very tree here.
        git config --global url.{tree}.insteadOf {address}
        git config --global safe.directory '*'
        mkdir src; cd src
        {clone}
        # As it is now, committed or not.
        cp {tree}/x .
        {install}
        {path}
        test \"$(command -v bywire)\" = \"$HOME/.bywire/bin/bywire\"
        bywire --version
        {session}
        ls sessions/*/report.html
        {uninstall}
        test ! -e \"$HOME/.bywire\"
        # From here on below /usr/local, which is another one.
        mount -t tmpfs none /usr/local
        PATH=\"$HOME/cargo/bin:$PATH\"
        {by_cargo}
        # So is the loader's cache.
        mkdir \"$HOME/etc\"; cp -a /etc/. \"$HOME/etc\"; mount --bind \"$HOME/etc\" /etc
        sudo() {{ \"$@\"; }}
        PATH=\"$PATH:/usr/sbin:/sbin\"
        {loader}
        ldconfig -p | grep /usr/local/lib/libbywire.so.0",
    ));
}
