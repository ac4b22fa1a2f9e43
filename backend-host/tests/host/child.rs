//! Tests that need a process of their own: they run this binary again for themselves alone.

use std::process::{Command, ExitStatus, Stdio};

const CHILD: &str = "GPU_VMM_HOST_TEST_CHILD";

pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the test of this name in a process of its own; the child's errors come out with the test's.
pub(crate) fn spawn(test: &str, stdin: impl Into<Stdio>) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(stdin)
        .stdout(Stdio::null())
        .status()
        .unwrap()
}

/// Runs `body` in a process of its own, which is what it may spoil. `test` is the test's own name.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if is_child() {
        body();
    } else {
        let status = spawn(test, Stdio::null());
        assert!(status.success(), "{test} in a process of its own: {status}");
    }
}
