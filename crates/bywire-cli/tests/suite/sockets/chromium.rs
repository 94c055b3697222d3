//! Chromium with its sandboxes loads a page over carried connections, the same as over TCP. It sandboxes all its
//! processes but one, and keeps connections in that one. Needs root, and runs as the user `nobody`.

use std::fs;
use std::process::Command;

use bywire_testing::eventually;
use rustix::process::geteuid;

use super::{Fabric, Running, SLOW_SERVER, await_listener, ended, port, row, said, start, text, write};
use crate::packages::have;

/// The number of files that a page requests.
const FILES: usize = 12;
const COMMAND: &str = env!("CARGO_BIN_EXE_bywire");
/// A browser with its sandboxes cannot run as root.
const USER: [&str; 7] =
    ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--inh-caps=-all"];
/// The page shows what it got, and its length.
const PAGE: &str = "<!doctype html><title>page</title><body><script>
(async () => {
    const words = [];
    for (let file = 0; file < FILES; file++) {
        const bytes = new Uint8Array(await (await fetch('file' + file)).arrayBuffer());
        words.push(bytes.length + ':' + bytes.reduce((sum, byte) => (sum * 31 + byte) % 1000003, 0));
    }
    document.body.textContent = 'got ' + words.join(' ');
})();
</script>";
const OPTIONS: &str = "--headless --disable-gpu --no-first-run --disable-background-networking --disable-component-update \
    --disable-sync --disable-dev-shm-usage --virtual-time-budget=60000 --dump-dom";

/// A command of a user who may have such sandboxes, or, without root, of this user.
fn of_user(fabric: &Fabric, words: &[&str]) -> Command {
    let words = if geteuid().is_root() { [&USER, words].concat() } else { words.to_vec() };
    let mut command = fabric.plain(&words);
    command.env("HOME", fabric.directory.path()).env("BYWIRE_SOCKETS_CALLS", "0");
    // Root's own programs may be in directories that other users do not have.
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

/// Whether this group has a renderer process behind a filter.
fn has_filtered_renderer(group: u32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path()).any(|process| {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        let (words, state, status) = (read("cmdline"), read("stat"), read("status"));
        let [words, state, status] =
            [words, state, status].map(|text| String::from_utf8_lossy(&text).into_owned());
        // After the name in parentheses: the state, the parent, the group.
        let found = state.rsplit(')').next().and_then(|fields| fields.split_ascii_whitespace().nth(2));
        found == Some(&group.to_string())
            && words.contains("--type=renderer")
            && status.contains("Seccomp:\t2\n")
    })
}

/// The text of the page from a server that runs the same way, and whether a renderer was behind a filter.
fn loaded(fabric: &Fabric, prefix: &[&str]) -> (String, bool) {
    let port = port();
    let serve = ["python3", "-c", SLOW_SERVER, &port.to_string(), &fabric.place("www")];
    let _server = start(&mut of_user(fabric, &[prefix, &serve].concat()));
    await_listener(port);
    let profile = format!("--user-data-dir={}", fabric.place("profile"));
    let url = format!("http://127.0.0.1:{port}/page.html");
    let options = OPTIONS.split_ascii_whitespace().chain([profile.as_str(), &url]);
    let mut command = of_user(fabric, &[prefix, &["chromium"], &options.collect::<Vec<_>>()].concat());
    let [out, err] = ["out", "err"].map(|name| fs::File::create(fabric.place(name)).expect("a file"));
    let mut browser = Running::new(command.stdout(out).stderr(err).spawn().expect("it starts"));
    let group = browser.child.id();
    let mut is_filtered = false;
    let status = eventually("the browser ends", || {
        is_filtered = is_filtered || has_filtered_renderer(group);
        browser.child.try_wait().expect("ours")
    });
    let read =
        |name: &str| String::from_utf8_lossy(&fs::read(fabric.place(name)).expect("a file")).into_owned();
    assert!(status.success(), "{prefix:?}: {status} {}", read("err"));
    (read("out"), is_filtered)
}

#[test]
fn chromium_loads_a_page_over_carried_connections_and_keeps_its_sandboxes() {
    if !have(&[("chromium", "chromium"), ("python3", "python3")]) {
        return;
    }
    let fabric = Fabric::new();
    if geteuid().is_root() {
        // The programs run as the owner of the directory: otherwise they would not trust it.
        said(fabric.plain(&["chown", "nobody:nogroup", &fabric.place("")]));
    }
    for words in [&["test", "-x", COMMAND][..], &["python3", "-c", ""]] {
        if !ended(&mut of_user(&fabric, words)).status.success() {
            return println!(
                "not run: Chromium's sandboxes need another user than root, who may not run {words:?}"
            );
        }
    }
    fs::create_dir(fabric.place("www")).expect("a directory");
    write(fabric.place("www/page.html"), PAGE.replace("FILES", &FILES.to_string()));
    for file in 0..FILES {
        write(fabric.place(&format!("www/file{file}")), text(file as u64, 70_000 + file));
    }
    let run = [COMMAND, "run", "--"];
    let (plain, is_filtered) = loaded(&fabric, &[]);
    assert!(plain.matches(':').count() == FILES && is_filtered, "{plain}");
    let (page, is_filtered) = loaded(&fabric, &run);
    assert_eq!(page, plain);
    assert!(is_filtered, "no process for pages was behind a filter");
    let status = said(of_user(&fabric, &[COMMAND, "status", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let carried = status["carried_ever"].as_u64().unwrap_or(0);
    assert!(carried >= 1, "{status}");
    row(said(fabric.plain(&["chromium", "--version"])).trim(), FILES + 1, carried);
}
