//! A page in headless Chromium, controlled through Chromium's debugging protocol over two pipes.
//! <https://chromedevtools.github.io/devtools-protocol> documents the methods and events.

use crate::rig::Folder;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of any answer, sufficient on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The names of Chromium and of browsers built from it.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A page in its own browser.
pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    last: u64,
    /// The events that arrived between answers.
    events: Vec<Value>,
}

impl Browser {
    /// Starts a browser with an empty page; `None` if Chromium is not installed, which in CI is a failure.
    pub(crate) fn start(test: &str, folder: &Folder) -> Option<Self> {
        let Some(program) = NAMES.iter().find(|name| is_there(name)) else {
            assert!(std::env::var_os("CI").is_none(), "none of {NAMES:?} is installed");
            // The test harness shows captured output only for failures, so this is written directly.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: none of {NAMES:?} is installed");
            return None;
        };
        // The protocol uses descriptors 3 and 4. The page is this repository's own, and root has no sandbox.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", program])
            .args([
                "--headless",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
            ])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update"])
            .args(["--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage"])
            .arg(format!("--user-data-dir={}", folder.file("browser")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, answers) = channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self { child, input, answers, session: None, last: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Opens a file and waits until it is loaded.
    pub(crate) fn open(&mut self, file: &str) {
        self.events.clear();
        let answer = self.call("Page.navigate", json!({ "url": format!("file://{file}") }));
        assert!(answer["errorText"].is_null(), "{answer}");
        self.until(|event| event["method"] == "Page.loadEventFired");
        self.drawn();
    }

    /// Sets the window's size in points, and the colour scheme.
    pub(crate) fn look(&mut self, width: u32, height: u32, dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        self.drawn();
    }

    /// Returns the value of an expression in the page; of a promise, its result.
    pub(crate) fn ask(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub(crate) fn text(&mut self, expression: &str) -> String {
        let answer = self.ask(expression);
        answer.as_str().unwrap_or_else(|| panic!("{expression} returned {answer}")).to_owned()
    }

    /// Waits until all changes are drawn.
    pub(crate) fn drawn(&mut self) {
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))");
    }

    /// Sends `mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel` at a point of the window.
    pub(crate) fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let pressed = kind == "mousePressed" || kind == "mouseReleased";
        let button = if pressed { "left" } else { "none" };
        let mut event = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
        if kind == "mouseWheel" {
            // Up, with Ctrl pressed.
            event = json!({ "type": kind, "x": x, "y": y, "deltaX": 0, "deltaY": -120, "modifiers": 2 });
        }
        self.call("Input.dispatchMouseEvent", event);
        self.drawn();
    }

    /// Presses a key by its name.
    pub(crate) fn key(&mut self, name: &str) {
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyDown", "key": name }));
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": name }));
        self.drawn();
    }

    /// Returns the whole page as a PNG image in base64.
    pub(crate) fn picture(&mut self) -> String {
        let answer = self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
        answer["data"].as_str().unwrap().to_owned()
    }

    /// Returns the console's messages and the page's other errors.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let bad = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        self.events.iter().filter(|event| bad.iter().any(|name| event["method"] == *name)).collect()
    }

    /// Returns the addresses of everything that was loaded, including the page.
    pub(crate) fn loaded(&self) -> Vec<&str> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).collect()
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).unwrap();
        let id = self.last;
        let answer = self.until(|message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Reads until a message matches. Earlier events count too.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(event) = self.events.iter().find(|event| is_it(event)) {
            return event.clone();
        }
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.answers.recv_timeout(left).expect("an answer of the browser");
            let found = is_it(&message);
            if message["id"].is_null() {
                self.events.push(message.clone());
            }
            if found {
                return message;
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
