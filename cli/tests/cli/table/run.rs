//! Runs the command in each way.

use super::files::Files;
use super::places;
use super::rows::{Row, Way};
use super::terminal::Terminal;
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The result of a run.
pub(super) struct Cell {
    pub(super) status: String,
    pub(super) error: String,
    pub(super) files: String,
}

/// The time limit of a run, which no run comes near.
const TOO_LONG: Duration = Duration::from_secs(60);

/// Runs a row, or returns why it cannot run.
pub(super) fn run(row: &Row) -> Result<Cell, String> {
    let files = Files::new();
    let mut command = prepared(row, &files)?;
    let open = |name: &str| files.folder().join(name);
    let mut terminal = None;
    let mut reader = None;
    match row.way {
        Way::From(name) => {
            command.stdin(File::open(open(name)).unwrap());
        }
        Way::To(name) => {
            command.stdout(File::options().write(true).truncate(true).open(open(name)).unwrap());
        }
        Way::Onto(name) => {
            command.stdout(File::options().append(true).open(open(name)).unwrap());
        }
        Way::Closed => {
            command.stdout(std::io::pipe().unwrap().1);
        }
        Way::InterruptedOutput => {
            let (unread, full) = full_pipe();
            reader = Some(unread);
            command.stdout(full);
        }
        Way::InterruptedInput => {
            rustix::fs::mkfifoat(rustix::fs::CWD, open("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        }
        Way::Columns(columns) => {
            let drawn_on = Terminal::new(columns);
            drawn_on.attach(&mut command);
            terminal = Some(drawn_on);
        }
        _ => {}
    }
    let mut child = command.spawn().unwrap();
    // The command holds the other ends of pipes and terminals, which otherwise would not be closed.
    drop(command);
    match row.way {
        Way::InterruptedOutput => {
            wait_for_write(&mut child);
            interrupt(&child);
        }
        Way::InterruptedWork => {
            let mut line = String::new();
            let mut from = BufReader::new(child.stdout.take().unwrap());
            from.read_line(&mut line).unwrap();
            assert_ne!(line, "", "{}", row.arguments);
            interrupt(&child);
        }
        Way::InterruptedInput => {
            // The open waits for the reader.
            let _writer = File::options().write(true).open(open("pipe")).unwrap();
            interrupt(&child);
            ended(&mut child);
        }
        _ => {}
    }
    // Both texts fit into the buffers of their pipes, which are read afterwards.
    let status = ended(&mut child);
    drop(reader);
    let mut error = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut error).unwrap();
    }
    if let Some(mut stdout) = child.stdout.take() {
        let _ = stdout.read_to_end(&mut Vec::new());
    }
    if row.way.is_interrupt() {
        let _ = std::fs::remove_file(open("pipe"));
    }
    let mut error = one_line(&error, files.folder());
    if let (Way::Columns(columns), Some(terminal)) = (row.way, terminal) {
        error = width(&terminal.lines(), columns.into());
    }
    Ok(Cell { status: shown(status), error, files: files.changes() })
}

/// Returns the command with its arguments, in its folder.
fn prepared(row: &Row, files: &Files) -> Result<Command, String> {
    let program = Path::new(env!("CARGO_BIN_EXE_gpu-vmm"));
    let mut command = match row.way {
        Way::FullDisk => places::full(program)?,
        Way::ReadOnly => places::read_only(program)?,
        Way::Little => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -v 2097152; exec \"$0\" \"$@\""]).arg(program);
            shell
        }
        way if way.is_interrupt() => {
            // A shell makes background processes ignore SIGINT, these tests included.
            let mut env = Command::new("env");
            env.arg("--default-signal=INT").arg(program);
            env
        }
        _ => Command::new(program),
    };
    command.args(row.arguments.split(' ').map(argument)).current_dir(files.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

fn argument(text: &str) -> OsString {
    let mut bytes = Vec::new();
    for (index, part) in text.split("\\xff").enumerate() {
        if index > 0 {
            bytes.push(0xff);
        }
        bytes.extend_from_slice(part.as_bytes());
    }
    OsStr::from_bytes(&bytes).to_owned()
}

/// Returns a full pipe, so that a write to it blocks.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// Waits until the child blocks in a write to standard output.
fn wait_for_write(child: &mut Child) {
    let began = Instant::now();
    let call = format!("{} 0x1 ", libc::SYS_write);
    // Any thread may write, but the first one does.
    let file = format!("/proc/{}/syscall", child.id());
    while !std::fs::read_to_string(&file).unwrap_or_default().starts_with(&call) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it wrote anything");
        assert!(began.elapsed() < TOO_LONG, "it writes nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Waits for the end of the child, and kills it after the time limit.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if began.elapsed() > TOO_LONG {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn shown(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => code.to_string(),
        Some((None, signal)) => format!("signal {}", signal.unwrap_or_default()),
        None => "did not end".to_owned(),
    }
}

/// Returns the error line, without the command's name and the folder's.
fn one_line(text: &str, folder: &Path) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("gpu-vmm: ").unwrap_or(line).replace('\u{fffd}', "\\xff");
    line.replace(&folder.display().to_string(), "FOLDER")
}

/// Checks that everything drawn fits. A word longer than a line is not broken, so that it can be copied.
fn width(lines: &[String], columns: usize) -> String {
    // Text is never wrapped to fewer columns.
    let columns = columns.max(20);
    assert!(!lines.iter().any(|line| line.contains("panicked")), "{lines:?}");
    let wide = |line: &&String| line.chars().count() > columns && line.trim().contains(' ');
    let bars = lines.iter().filter(wide).filter(|line| line.contains("% ") || line.contains("[=")).count();
    match (lines.iter().filter(wide).count(), bars) {
        (0, _) => "all lines fit".to_owned(),
        (_, 0) => "rows of tables do not fit, bars do".to_owned(),
        _ => "bars do not fit".to_owned(),
    }
}

impl Way {
    fn is_interrupt(self) -> bool {
        matches!(self, Self::InterruptedInput | Self::InterruptedOutput | Self::InterruptedWork)
    }
}
