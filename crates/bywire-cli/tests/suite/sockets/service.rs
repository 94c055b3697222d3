//! One service for the whole machine, from outside: named or started by systemd, or of another version; its units; an
//! installation elsewhere, or moved; containers that share a directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bywire_testing::eventually;

use super::{Fabric, Running, SLOW_SERVER, await_listener, ended, groups, library, port, start, text, write};
use crate::packages::have;

const FILE_BYTES: usize = 300_000;
const COMMAND: &str = env!("CARGO_BIN_EXE_bywire");

/// Fetches files with `bywire run` on both sides. Returns the number of carried connections.
fn fetched(fabric: &Fabric, bywire: &str, socket: &str) -> u64 {
    write(fabric.place("file"), text(5, FILE_BYTES));
    let port = port();
    let run = |words: &[&str]| {
        let mut command = fabric.plain(&[&[bywire, "run", "--"], words].concat());
        // The library is found beside the command.
        command.env("BYWIRE_PAIRING", socket).env_remove("BYWIRE_SOCKETS_LIBRARY");
        if bywire == COMMAND {
            command.env("BYWIRE_SOCKETS_LIBRARY", library());
        }
        command
    };
    let _server = start(&mut run(&["python3", "-c", SLOW_SERVER, &port.to_string(), &fabric.place("")]));
    await_listener(port);
    let url = format!("http://127.0.0.1:{port}/file");
    let found = ended(&mut run(&[&["curl", "-s", "-S"][..], &[url.as_str(); 20]].concat()));
    assert!(found.status.success() && found.stdout.len() == 20 * FILE_BYTES, "{found:?}");
    let mut status = fabric.plain(&[bywire, "status", "--json"]);
    let status = ended(status.env("BYWIRE_PAIRING", socket));
    assert!(status.status.success(), "{status:?}");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    status["carried_ever"].as_u64().expect("a number")
}

/// Waits until a service reports that it listens.
fn ready(command: &mut Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    let running = Running::new(child);
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    running
}

fn own_services(fabric: &Fabric) -> Vec<String> {
    groups::commands_of(fabric.directory.path())
        .into_iter()
        .filter(|words| words.contains("__pairing"))
        .collect()
}

#[test]
fn a_named_service_is_used_and_no_other_is_started() {
    if !have(&[("python3", "python3"), ("curl", "curl")]) {
        return;
    }
    let fabric = Fabric::new();
    let socket = fabric.place("machine");
    // No service: that is reported, and everything is TCP.
    let alone = ended(fabric.carried(&["true"]).env("BYWIRE_PAIRING", &socket));
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(
        alone.status.success()
            && said.ends_with(": everything stays the kernel's\n")
            && said.lines().count() == 1,
        "{said}"
    );
    assert!(said.contains(&format!("BYWIRE_PAIRING={socket}: no pairing service listens there")), "{said}");
    assert!(said.contains("name the socket of a running `bywire pair`, or leave it empty"), "{said}");
    let _service = ready(&mut fabric.plain(&[COMMAND, "pair", "--socket", &socket]));
    assert_eq!(fetched(&fabric, COMMAND, &socket), 1);
    assert_eq!(own_services(&fabric), Vec::<String>::new());
    let second = ended(&mut fabric.plain(&[COMMAND, "pair", "--socket", &socket]));
    assert!(!second.status.success(), "one is enough: {second:?}");
    let file = fabric.place("file");
    fs::write(&file, "precious").expect("written");
    let refused = ended(&mut fabric.plain(&[COMMAND, "pair", "--socket", &file]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("exists and is not the socket"), "{said}");
    assert_eq!(fs::read_to_string(&file).expect("still there"), "precious");
    // An empty value selects the user's own service.
    assert_eq!(fetched(&fabric, COMMAND, ""), 1);
    assert_eq!(own_services(&fabric).len(), 1);
}

#[test]
fn a_service_of_another_version_is_reported_and_the_program_runs() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let fabric = Fabric::new();
    let socket = fabric.place("machine");
    // It answers a status with its end at once, as services did that did not tell their version.
    let answer = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1]); s.listen(64)\n\
        print('ready', flush=True)\n\
        while True:\n\
        \x20 c = s.accept()[0]\n\
        \x20 try: c.send(bytes([10]) + c.recv(64)[1:])\n\
        \x20 except OSError: pass";
    let _service = ready(&mut fabric.plain(&["python3", "-c", answer, &socket]));
    let ran = ended(fabric.carried(&["echo", "it runs"]).env("BYWIRE_PAIRING", &socket));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && ran.stdout == b"it runs\n", "{ran:?}");
    assert!(
        said.contains("another version") && said.ends_with(": everything stays the kernel's\n"),
        "{said}"
    );
    let status = ended(fabric.plain(&[COMMAND, "status"]).env("BYWIRE_PAIRING", &socket));
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(!status.status.success() && said.contains("another version"), "{status:?}");
}

#[test]
fn systemd_passes_the_socket_to_the_service_and_keeps_it() {
    if !have(&[("python3", "python3"), ("curl", "curl")]) {
        return;
    }
    let fabric = Fabric::new();
    let socket = fabric.place("machine");
    // What systemd does for a unit with a packet socket.
    let hand_over = "import os, socket, sys\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1]); s.listen(64)\n\
        os.set_inheritable(s.fileno(), True)\n\
        if s.fileno() != 3: os.dup2(s.fileno(), 3)\n\
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n\
        os.execv(sys.argv[2], sys.argv[2:])";
    let _service = ready(&mut fabric.plain(&["python3", "-c", hand_over, &socket, COMMAND, "pair"]));
    assert_eq!(fetched(&fabric, COMMAND, &socket), 1);
    assert_eq!(own_services(&fabric), Vec::<String>::new());
    let wrong = hand_over.replace("SOCK_SEQPACKET", "SOCK_STREAM");
    let refused =
        ended(&mut fabric.plain(&["python3", "-c", &wrong, &fabric.place("other"), COMMAND, "pair"]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("handed over"), "{said}");
}

#[test]
fn settings_and_directories_that_others_can_change_are_refused() {
    let fabric = Fabric::new();
    let (config, open) = (fabric.place("bywire.toml"), fabric.place("open"));
    fs::create_dir(&open).expect("made");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("chmod");
    let refused = |words: &[&str], why: &str| {
        let found = ended(&mut fabric.plain(&[&[COMMAND, "pair"], words].concat()));
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    };
    refused(&["--socket", &format!("{open}/socket")], "others must not be able");
    let socket = fabric.place("socket");
    for (text, mode, why) in [
        ("[sockets]\none-address-space = [[\"a\"], [\"a\"]]\n", 0o644, "two address spaces"),
        ("[sockets]\none-address-spaces = []\n", 0o644, "line 2"),
        ("", 0o666, "written by others"),
    ] {
        write(&config, text);
        fs::set_permissions(&config, fs::Permissions::from_mode(mode)).expect("chmod");
        refused(&["--socket", &socket, "--config", &config], why);
    }
}

/// A container made of namespaces and a root directory: it shares its network, the given mounts, and the programs of
/// this machine. `$4` changes the environment.
const CONTAINER: &str = "root=$1 shared=$2 prefix=$3 place=$4; shift 4; mount -t tmpfs tmpfs \"$root\"
    for name in usr bin sbin lib lib64 etc dev; do
        if [ -L /$name ]; then cp -P /$name \"$root/\"
        elif [ -d /$name ]; then mkdir \"$root/$name\"; mount --rbind /$name \"$root/$name\"; fi
    done
    mkdir -p \"$root/proc\" \"$root/tmp\" \"$root/run/shared\" \"$root/opt/bywire\"
    mount -t proc proc \"$root/proc\"
    mount --bind \"$shared\" \"$root/run/shared\"; mount --bind \"$prefix\" \"$root/opt/bywire\"
    exec env -u BYWIRE_SOCKETS_LIBRARY -u BYWIRE_RUNTIME_DIR PATH=/usr/bin:/bin:/usr/sbin:/sbin \"$place\" \
        chroot \"$root\" /opt/bywire/bin/bywire run -- \"$@\"";

#[test]
fn containers_of_one_network_are_carried_through_a_shared_directory() {
    if !have(&[("python3", "python3"), ("curl", "curl"), ("unshare", "util-linux")]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("not run: containers are made of namespaces, which takes root");
    }
    let fabric = Fabric::new();
    let [prefix, shared] = ["prefix", "shared"].map(|name| fabric.place(name));
    for directory in ["bin", "lib/bywire"] {
        fs::create_dir_all(format!("{prefix}/{directory}")).expect("made");
    }
    fs::create_dir(&shared).expect("made");
    fs::copy(COMMAND, format!("{prefix}/bin/bywire")).expect("copied");
    fs::copy(library(), format!("{prefix}/lib/bywire/libbywire_sockets.so")).expect("copied");
    write(format!("{shared}/file"), text(7, FILE_BYTES));
    let contained = |place: &str, words: &[&str]| {
        let root = tempfile::tempdir_in(fabric.directory.path()).expect("a directory").keep();
        let root = root.display().to_string();
        let words = [&["sh", "-ec", CONTAINER, "sh", &root, &shared, &prefix, place], words].concat();
        fabric.plain(
            &[&["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"], &words[..]]
                .concat(),
        )
    };
    let _service = ready(&mut fabric.plain(&[COMMAND, "pair", "--socket", &format!("{shared}/machine")]));
    // Through a runtime directory, which the first one makes and in which it starts the service, and through the host's service.
    for (place, asked) in [
        ("BYWIRE_RUNTIME_DIR=/run/shared/bywire", ["BYWIRE_RUNTIME_DIR", &format!("{shared}/bywire")]),
        ("BYWIRE_PAIRING=/run/shared/machine", ["BYWIRE_PAIRING", &format!("{shared}/machine")]),
    ] {
        let port = port();
        let server = ["python3", "-c", SLOW_SERVER, &port.to_string(), "/run/shared"];
        let _server = start(&mut contained(place, &server));
        await_listener(port);
        let url = format!("http://127.0.0.1:{port}/file");
        let found = ended(&mut contained(place, &[&["curl", "-s", "-S"][..], &[url.as_str(); 20]].concat()));
        assert!(
            found.status.success() && found.stdout.len() == 20 * FILE_BYTES,
            "{place}: {:?}",
            found.stderr
        );
        let status = ended(fabric.plain(&[COMMAND, "status", "--json"]).env(asked[0], asked[1]));
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
        assert_eq!(status["carried_ever"], 1, "{place}: {status}");
    }
    println!(
        "not run: under podman, docker and kubelet, which are not here: their images and their own confinement"
    );
}

/// Both units, with the program of this build.
pub const UNITS: [(&str, &str); 2] = [
    ("bywire-pairing.socket", include_str!("../../../../../packaging/bywire-pairing.socket")),
    ("bywire-pairing.service", include_str!("../../../../../packaging/bywire-pairing.service")),
];

#[test]
fn the_systemd_units_are_valid() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = UNITS.map(|(name, text)| {
        let path = directory.path().join(name);
        write(&path, text.replace("/usr/local/bin/bywire", COMMAND));
        path
    });
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&paths).output() {
        Ok(said) => {
            let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
            assert!(!said.contains("bywire-pairing"), "{said}");
        }
        Err(error) => println!("not run: the units are not verified: `systemd-analyze`: {error}"),
    }
}

#[test]
fn an_installation_finds_its_own_files() {
    if !have(&[("python3", "python3"), ("curl", "curl")]) {
        return;
    }
    let Some(installer) =
        Path::new(COMMAND).parent().map(|place| place.join("bywire-install")).filter(|file| file.exists())
    else {
        return println!("not run: bywire-install was not built: cargo test --workspace builds it");
    };
    let fabric = Fabric::new();
    let prefix = fabric.place("prefix");
    // The files of a release build; the libraries are beside the command.
    let built = fabric.place("built");
    fs::create_dir(&built).expect("made");
    fs::copy(COMMAND, format!("{built}/bywire")).expect("copied");
    fs::copy(library(), format!("{built}/libbywire_sockets.so")).expect("copied");
    let provider = std::env::current_exe().expect("this test").with_file_name("libbywire_fi.so");
    fs::copy(provider, format!("{built}/libbywire_fi.so")).expect("copied");
    let installed = ended(&mut fabric.plain(&[
        &installer.display().to_string(),
        "--prefix",
        &prefix,
        "--command",
        &format!("{built}/bywire"),
    ]));
    assert!(installed.status.success(), "{installed:?}");
    fs::remove_dir_all(&built).expect("gone, so that nothing of it is used");
    let bywire = format!("{prefix}/bin/bywire");
    assert_eq!(fetched(&fabric, &bywire, ""), 1);
    let own = eventually("its own service", || own_services(&fabric).into_iter().next());
    assert!(own.starts_with(&bywire), "{own}");
    let unit =
        fs::read_to_string(format!("{prefix}/lib/systemd/system/bywire-pairing.service")).expect("a unit");
    assert!(unit.contains(&format!("ExecStart={bywire} pair\n")), "{unit}");
    assert!(Path::new(&prefix).join("lib/systemd/system/bywire-pairing.socket").exists());
    assert!(Path::new(&prefix).join("share/man/man1/bywire-pair.1").exists());
}
