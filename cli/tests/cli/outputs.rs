//! Written files: their permissions, targets that are not regular files, and interrupts at any time.

use crate::report::snapshot;
use crate::rig::{Folder, command, stderr};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

/// Writes a pool snapshot. Returns its path, and the path of a page.
fn pool(folder: &Folder) -> (String, String) {
    let file = folder.file("pool.json");
    fs::write(&file, serde_json::to_vec(&snapshot()).unwrap()).unwrap();
    (file, folder.file("page.html"))
}

#[test]
fn replaced_file_keeps_its_permissions() {
    let folder = Folder::new("outputs-rights");
    let (file, page) = pool(&folder);
    fs::write(&page, "before").unwrap();
    let other_name = folder.file("other");
    fs::hard_link(&page, &other_name).unwrap();
    for mode in [0o600, 0o644, 0o751] {
        fs::set_permissions(&page, Permissions::from_mode(mode)).unwrap();
        assert!(command(&["report", &file, "--html", &page]).status().unwrap().success());
        assert_eq!(fs::metadata(&page).unwrap().mode() & 0o7777, mode);
    }
    assert_eq!(fs::read_to_string(&other_name).unwrap(), "before", "it was overwritten");
    // Another user's file keeps its owner, if the test runs as root.
    if std::os::unix::fs::chown(&page, Some(12345), Some(12346)).is_ok() {
        assert!(command(&["report", &file, "--html", &page]).status().unwrap().success());
        let found = fs::metadata(&page).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (12345, 12346, 0o751));
    }
}

#[test]
fn new_file_has_default_permissions() {
    let folder = Folder::new("outputs-new");
    let (file, page) = pool(&folder);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 026; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gpu-vmm")]);
    assert!(shell.args(["report", &file, "--html", &page]).status().unwrap().success());
    assert_eq!(fs::metadata(&page).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn read_only_file_is_not_replaced() {
    let folder = Folder::new("outputs-read-only");
    let (file, page) = pool(&folder);
    fs::write(&page, "before").unwrap();
    fs::set_permissions(&page, Permissions::from_mode(0o444)).unwrap();
    let mut command = command(&["report", &file, "--html", &page]);
    // Root may write any file, so the command runs as another user, who owns the folder.
    if std::os::unix::fs::chown(&page, Some(65534), Some(65534)).is_ok() {
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let expected = format!("gpu-vmm: error: {page} cannot be written: Permission denied (os error 13)\n");
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected));
    assert_eq!(fs::read_to_string(&page).unwrap(), "before");
    assert_eq!(folder.names(), ["page.html", "pool.json"]);
}

#[test]
fn dangling_link_gets_its_file() {
    let folder = Folder::new("outputs-link");
    let (file, page) = pool(&folder);
    let link = folder.file("link");
    std::os::unix::fs::symlink("page.html", &link).unwrap();
    assert!(command(&["report", &file, "--html", &link]).status().unwrap().success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
}

#[test]
fn a_named_pipe_gets_a_report_once() {
    let folder = Folder::new("outputs-pipe");
    let pipe = folder.file("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let arguments =
        ["bench", "--backend", "host", "--filter", "calls", "--samples", "1", "--json", "--out", &pipe];
    let mut child = command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    File::open(&pipe).unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["pairs"].as_array().unwrap().len(), 1);
}

#[test]
fn named_standard_output_gets_both_texts() {
    let folder = Folder::new("outputs-stdout");
    let to = folder.file("all");
    let trace = folder.file("run.trace");
    fs::write(&trace, "a 1 4096 0\nf 1\n").unwrap();
    let mut replay = command(&["replay", "--backend", "host", &trace, "--snapshot", "/dev/stdout"]);
    assert!(replay.stdout(File::create(&to).unwrap()).status().unwrap().success());
    let all = fs::read_to_string(&to).unwrap();
    assert!(all.starts_with("{\n") && all.contains("\n}\n/"), "{all}");
    assert!(all.ends_with("for reading the clock are subtracted.\n"), "{all}");
    assert_eq!(folder.names(), ["all", "run.trace"]);
}

#[test]
fn named_standard_error_is_appended() {
    let folder = Folder::new("outputs-stderr");
    let (file, all) = pool(&folder);
    fs::write(&all, "before\n").unwrap();
    let behind = File::options().append(true).open(&all).unwrap();
    let mut report = command(&["report", &file, "--html", "/dev/stderr"]);
    assert!(report.stderr(behind).status().unwrap().success());
    let all = fs::read_to_string(&all).unwrap();
    assert!(all.starts_with("before\n<!") && all.ends_with("</html>\n"), "{all}");
}

#[test]
fn interrupt_leaves_old_or_new_file() {
    let folder = Folder::new("outputs-interrupt");
    let (file, page) = pool(&folder);
    // Writing a large page takes a while.
    let mut large = snapshot();
    large.device = "x".repeat(4 << 20);
    fs::write(&file, serde_json::to_vec(&large).unwrap()).unwrap();
    let arguments = ["report", &file, "--html", &page];
    assert!(command(&arguments).status().unwrap().success());
    let complete = fs::metadata(&page).unwrap().len();

    let mut caught = 0;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP].into_iter().cycle().take(9) {
        fs::write(&page, "before").unwrap();
        let mut child = command(&arguments).spawn().unwrap();
        let mut is_written = false;
        if seen_partial(&folder, &mut child) {
            caught += 1;
            is_written = stopped_while_partial(&folder, &child) && !is_ignored(signal);
            for signal in [signal, Signal::CONT] {
                kill_process(Pid::from_child(&child), signal).unwrap();
            }
        }
        let status = child.wait().unwrap();
        let is_ended = status.signal() == Some(signal.as_raw());
        assert!(is_ended || (status.success() && !is_written), "the signal is not lost: {status}");
        assert_eq!(folder.names(), ["page.html", "pool.json"], "after {signal:?}");
        let length = fs::metadata(&page).unwrap().len();
        assert!([6, complete].contains(&length), "{length} of {complete} bytes, after {signal:?}");
    }
    assert!(caught > 0, "no signal arrived during a write");
}

/// Returns whether this process ignores a signal, as under `nohup`. Its children ignore it too.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

/// Stops the command. Returns true if its temporary file exists then, so that signals are deferred.
fn stopped_while_partial(folder: &Folder, child: &Child) -> bool {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).unwrap();
    let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), options).unwrap();
    folder.names().iter().any(|name| name.starts_with('.'))
}

/// Waits for a temporary file with content; false if the command ends before.
fn seen_partial(folder: &Folder, child: &mut Child) -> bool {
    loop {
        let partial = folder.names().into_iter().find(|name| name.starts_with('.'));
        let length = partial.and_then(|name| fs::metadata(folder.file(&name)).ok()).map(|found| found.len());
        if length.is_some_and(|length| length > 0) {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let folder = Folder::new("outputs-nohup");
    let out = folder.file("report.json");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gpu-vmm")]);
    shell.args(["bench", "--backend", "host", "--filter", "calls", "--samples", "3", "--out", &out]);
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    stdout.read_to_end(&mut Vec::new()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fs::metadata(&out).unwrap().len() > 100);
}

#[test]
fn file_size_limit_leaves_the_old_file() {
    let folder = Folder::new("outputs-limit");
    let (file, page) = pool(&folder);
    fs::write(&page, "before").unwrap();
    for trap in ["trap '' XFSZ; ", ""] {
        let mut shell = Command::new("sh");
        let script = format!("{trap}ulimit -f 4; exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_gpu-vmm")]);
        let output = shell.args(["report", &file, "--html", &page]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{trap}");
        let expected = format!("gpu-vmm: error: {page} cannot be written: File too large (os error 27)\n");
        assert_eq!(stderr(&output), expected);
        assert_eq!(fs::read_to_string(&page).unwrap(), "before");
        assert_eq!(folder.names(), ["page.html", "pool.json"]);
    }
}
