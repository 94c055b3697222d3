//! What README.md and docs tell a newcomer to type is typed here, as it stands there.

mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use packages::Service;

/// How a script begins that is alone: what it makes ends with it.
const ALONE: &str =
    "mount -t tmpfs none /run; ip link set lo up; ip address add 192.0.2.7/32 dev lo; cd \"$1\"";
/// What a script is given; one that takes longer hangs.
const SECONDS: &str = "120";

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).expect(name)
}

/// The blocks of code of a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').map_or("", |(_language, lines)| lines))
}

/// The one block of a page with these words in it.
fn block<'page>(page: &'page str, words: &str) -> &'page str {
    let mut found = blocks(page).filter(|block| block.contains(words));
    let block = found.next().unwrap_or_else(|| panic!("no block has {words:?}"));
    assert!(found.next().is_none(), "several blocks have {words:?}");
    block
}

/// The lines of a page's blocks that begin so.
fn lines<'page>(page: &'page str, beginning: &'static str) -> impl Iterator<Item = &'page str> {
    blocks(page).flat_map(str::lines).filter(move |line| line.starts_with(beginning))
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

#[test]
fn the_first_network_answers_and_is_taken_down() {
    if !Path::new("/dev/net/tun").exists() {
        return println!("not run: no TAP device can be made here: `modprobe tun`");
    }
    if !is_possible() || !packages::have(&[("ping", "iputils-ping")]) {
        return;
    }
    let (readme, ethernet) = (page("README.md"), page("docs/ethernet.md"));
    let takes_down = block(&readme, "ip netns add");
    let goes_on = block(&ethernet, "ip netns add");
    for script in [takes_down.to_owned(), format!("{goes_on}bywire eth down\n")] {
        // Its `ping` ends well with the first answer: on a busy machine others may come too late.
        let printed = succeeds(&format!("{script}! bywire eth status"));
        assert!(printed.contains("3 packets transmitted"), "{printed}");
    }
}

#[test]
fn the_printed_settings_are_taken() {
    if !Path::new("/dev/net/tun").exists() {
        return println!("not run: no TAP device can be made here: `modprobe tun`");
    }
    if !is_possible() {
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
fn programs_are_carried_by_the_first_commands() {
    let Some(redis) = Service::find("redis-server", "redis-server") else { return };
    let (readme, sockets) = (page("README.md"), page("docs/sockets.md"));
    let block = block(&readme, "bywire run");
    assert!(blocks(&sockets).any(|other| other == block), "the two pages begin otherwise");
    if !is_possible() {
        return;
    }
    // A terminal for each of the two programs, which do not end by themselves, or not soon.
    let [server, client, status] = block.lines().collect::<Vec<_>>()[..] else { panic!("{block}") };
    let script = format!(
        "{server} >server.txt &
        until redis-cli -p 7000 ping; do sleep 0.1; done
        {client} >client.txt &
        until {status} --json | grep -q '\"carried_ever\":[1-9]'; do sleep 0.1; done
        {status}"
    );
    let output = run(&script, Some(&redis));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("carried"), "{output:?}");
}

#[test]
fn measurements_are_taken_by_the_printed_commands() {
    if !is_possible() {
        return;
    }
    let (readme, laboratory) = (page("README.md"), page("docs/laboratory.md"));
    let commands: Vec<&str> =
        lines(&readme, "bywire measure ").chain(lines(&laboratory, "bywire measure ")).collect();
    assert!(commands.len() >= 9, "{commands:?}");
    for command in commands {
        // The one towards another machine has a test of its own.
        if command.contains("--key") {
            continue;
        }
        let output = run(command, None);
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains(" is not here") {
            println!("not run: {command}: {}", said.trim_end());
            continue;
        }
        assert!(output.status.success() && !output.stdout.is_empty(), "{command}\n{output:?}");
    }
}

#[test]
fn a_key_is_made_and_a_far_end_measured() {
    if !is_possible() {
        return;
    }
    let laboratory = page("docs/laboratory.md");
    let key = laboratory.split('`').find(|quoted| quoted.starts_with("(umask")).expect("how a key is made");
    let [serve, measure] = block(&laboratory, "bywire serve").lines().collect::<Vec<_>>()[..] else {
        panic!("a far end and a measurement")
    };
    // The address of the page is this machine's own here. What begins before the far end listens is refused.
    let printed = succeeds(&format!("{key}\n{serve} &\nuntil {measure}; do sleep 0.2; done"));
    assert!(printed.contains("192.0.2.7"), "{printed}");
}
