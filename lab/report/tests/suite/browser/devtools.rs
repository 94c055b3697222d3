//! A headless browser, driven by the DevTools protocol over two named pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Enough time for a browser to start on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const LEAVING: Duration = Duration::from_secs(10);

pub struct Browser {
    process: Child,
    commands: File,
    messages: Receiver<Value>,
    /// Events that have arrived, in order.
    pub events: Vec<Value>,
    session: Option<String>,
    asked: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens an empty page. `None` where no browser is installed, which is printed.
    pub fn open() -> Option<Self> {
        let there = |name: &&&str| {
            let mut looked = Command::new(name);
            looked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            looked.status().is_ok_and(|status| status.success())
        };
        let Some(name) = BROWSERS.iter().find(there) else {
            println!("not run: no Chromium here: apt-get install chromium");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let pipe = |end: &str| profile.path().join(end);
        let made = Command::new("mkfifo").args([pipe("to"), pipe("from")]).status().unwrap();
        assert!(made.success());
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3<\"$TO\" 4>\"$FROM\"", "sh"]).arg(name);
        shell.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]);
        shell.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        shell.args(["--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank"]);
        shell.arg(format!("--user-data-dir={}", pipe("profile").display()));
        shell.env("TO", pipe("to")).env("FROM", pipe("from"));
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = shell.spawn().unwrap();
        // Each open waits until the shell opens the other end, so the order is the same.
        let commands = OpenOptions::new().write(true).open(pipe("to")).unwrap();
        let messages = listen(&pipe("from"));
        let mut browser = Self {
            process,
            commands,
            messages,
            events: Vec::new(),
            session: None,
            asked: 0,
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", attached);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut request = json!({ "id": self.asked, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = session.clone().into();
        }
        self.commands.write_all(format!("{request}\0").as_bytes()).unwrap();
        let asked = self.asked;
        let answer = self.await_message(method, |message| message["id"] == asked);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn await_message(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let left = TIMEOUT.saturating_sub(started.elapsed());
            let message = self.messages.recv_timeout(left).unwrap_or_else(|_| panic!("no answer to {what}"));
            if wanted(&message) {
                return message;
            }
            self.events.push(message);
        }
    }

    /// Opens a page at a width, light or dark, and waits until it has been loaded.
    pub fn show(&mut self, page: &Path, width: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask("Emulation.setEmulatedMedia", features);
        self.events.clear();
        self.ask("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        if !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.await_message("the page", |message| message["method"] == "Page.loadEventFired");
            self.events.push(event);
        }
    }

    /// The value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.ask("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub fn press(&mut self, key: &str, code: u32) {
        self.press_down(key, code);
        self.key("keyUp", key, code);
    }

    /// Presses a key and does not let it up again, which takes as long once more.
    pub fn press_down(&mut self, key: &str, code: u32) {
        self.key("keyDown", key, code);
    }

    fn key(&mut self, kind: &str, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        let event =
            json!({ "type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code });
        self.ask("Input.dispatchKeyEvent", event);
    }

    /// A picture of the whole page, for people.
    pub fn picture(&mut self, to: &Path) {
        use base64::Engine;
        let shot = self.ask("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its own child processes if it is still running.
        let _closed = self.commands.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let started = Instant::now();
        while started.elapsed() < LEAVING && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _dead_already = self.process.kill();
        let _gone = self.process.wait();
    }
}

fn listen(from: &Path) -> Receiver<Value> {
    let mut reader = BufReader::new(File::open(from).unwrap());
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        while reader.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
            bytes.pop();
            let Ok(message) = serde_json::from_slice(&bytes) else { return };
            if sender.send(message).is_err() {
                return;
            }
            bytes.clear();
        }
    });
    messages
}
