//! Tests that need a process of their own: they run this binary again for the one test.

use std::env;
use std::process::{Child, Command, ExitStatus, Stdio};

const CHILD: &str = "GPU_VMM_HOST_TEST_CHILD";

/// The command that runs programs of this architecture, if the kernel does not: an emulator's.
const RUNNER: &str = "GPU_VMM_TEST_RUNNER";

pub(crate) fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Returns the task of this process, if it is a child.
pub(crate) fn role() -> Option<String> {
    env::var(CHILD).ok()
}

/// Starts the test of this name in a process of its own; the child's errors appear among the test's.
pub(crate) fn start(test: &str, stdin: impl Into<Stdio>) -> Child {
    start_as(test, "child", stdin)
}

/// Starts a child with a task.
pub(crate) fn start_as(test: &str, role: &str, stdin: impl Into<Stdio>) -> Child {
    program()
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, role)
        .stdin(stdin)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the command that runs this binary again.
fn program() -> Command {
    let binary = env::current_exe().unwrap();
    let Ok(runner) = env::var(RUNNER) else { return Command::new(binary) };
    let mut words = runner.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).arg(binary);
    command
}

/// Starts a child and waits until it has ended.
pub(crate) fn spawn(test: &str, stdin: impl Into<Stdio>) -> ExitStatus {
    start(test, stdin).wait().unwrap()
}

/// Runs `body` in a process of its own, so that it can damage the process. `test` is the test's own name.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if is_child() {
        body();
    } else {
        let status = spawn(test, Stdio::null());
        assert!(status.success(), "{test} in a process of its own: {status}");
    }
}
