//! The kernel's messages about the GPU.

use rustix::fs::OFlags;
use serde::Serialize;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

/// The words of messages that are kept, in lower case.
const WORDS: &[&str] =
    &["amdgpu", "kfd", "amd-vi", "nvidia", "nvrm", "nouveau", "libamdhip64", "libhsa-runtime64", "libcuda"];

/// The number of messages that are kept from before the check and from during it.
const MAX_LINES: usize = 150;

/// The kernel's messages about the GPU.
#[derive(Serialize, PartialEq, Eq, Default, Debug)]
pub(super) struct Messages {
    /// The source of the messages, if one could be read.
    pub(super) source: Option<&'static str>,
    /// Why no source could be read.
    pub(super) unreadable: Option<String>,
    /// The last messages from before the check.
    pub(super) before: Vec<String>,
    /// The messages since the check began.
    pub(super) during: Vec<String>,
}

/// Returns the seconds since the machine started, by which the kernel dates its messages.
pub(super) fn now() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(f64::MAX)
}

/// Reads the messages. Those that are not older than `since` belong to the check.
pub(super) fn messages(since: f64) -> Messages {
    let refused = match records() {
        Ok(text) => return sorted("/dev/kmsg", &text, since, record),
        Err(refused) => refused,
    };
    match journal() {
        Ok(text) => sorted("journalctl", &text, since, journal_line),
        Err(other) => Messages {
            unreadable: Some(format!("/dev/kmsg: {refused}; journalctl: {other}")),
            ..Messages::default()
        },
    }
}

/// Sorts the messages about the GPU by their time.
fn sorted(source: &'static str, text: &str, since: f64, parse: fn(&str) -> Option<(f64, &str)>) -> Messages {
    let mut messages = Messages { source: Some(source), ..Messages::default() };
    for (time, message) in text.lines().filter_map(parse) {
        let lower = message.to_lowercase();
        if !WORDS.iter().any(|word| lower.contains(word)) {
            continue;
        }
        let list = if time < since { &mut messages.before } else { &mut messages.during };
        list.push(format!("[{time:.6}] {message}"));
    }
    for list in [&mut messages.before, &mut messages.during] {
        list.drain(..list.len().saturating_sub(MAX_LINES));
    }
    messages
}

/// Reads all records of the kernel's buffer.
fn records() -> Result<String, String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = File::options().read(true).custom_flags(flags).open("/dev/kmsg");
    let mut file = opened.map_err(|error| error.to_string())?;
    let (mut all, mut record) = (String::new(), vec![0; 16 << 10]);
    loop {
        match file.read(&mut record) {
            Ok(0) => return Ok(all),
            // A second line of a record describes the device.
            Ok(length) => {
                all.push_str(String::from_utf8_lossy(&record[..length]).lines().next().unwrap_or_default());
                all.push('\n');
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(all),
            // The record was overwritten before it was read.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Parses a record: `6,1234,5678901,-;the message`, with microseconds in the third place.
fn record(line: &str) -> Option<(f64, &str)> {
    let (head, message) = line.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    Some((micros as f64 / 1e6, message))
}

/// Reads the journal, which some systems let users read that may not read the kernel's buffer.
fn journal() -> Result<String, String> {
    let mut command = Command::new("journalctl");
    command.args(["--dmesg", "--boot", "--output=short-monotonic", "--no-pager", "--quiet"]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() && !text.is_empty() {
        true => Ok(text),
        false => Err("no messages of the kernel".to_owned()),
    }
}

/// Parses a line of the journal: `[   12.345678] host kernel: the message`.
fn journal_line(line: &str) -> Option<(f64, &str)> {
    let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (_, message) = rest.split_once(" kernel: ")?;
    Some((time.trim().parse().ok()?, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_messages_are_kept_and_dated() {
        let text = "6,1,1000000,-;amdgpu: loaded\n6,2,2500000,-;usb 1-1: a keyboard\nnonsense\n\
                    3,3,9000001,-;NVRM: Xid (PCI:0000:01:00): 31\n";
        let messages = sorted("test", text, 9.0, record);
        assert_eq!(messages.before, ["[1.000000] amdgpu: loaded"]);
        assert_eq!(messages.during, ["[9.000001] NVRM: Xid (PCI:0000:01:00): 31"]);
        let text = "[    3.500000] box17 kernel: kfd kfd: added device 1002:744c\n-- a remark --\n";
        let messages = sorted("test", text, 3.0, journal_line);
        assert_eq!(messages.during, ["[3.500000] kfd kfd: added device 1002:744c"]);
    }

    #[test]
    fn gpu_words_match_in_any_case() {
        for word in WORDS {
            let text = format!("6,1,2000000,-;said: {}[7]: something\n", word.to_uppercase());
            let messages = sorted("test", &text, 2.0, record);
            assert_eq!(messages.during.len(), 1, "{word}, at the moment at which the check begins");
            assert!(messages.before.is_empty());
        }
        for text in ["6,1,two,-;amdgpu: x\n", "6,1;amdgpu: x\n", "6,1,2,-,amdgpu: x\n"] {
            assert_eq!(sorted("test", text, 0.0, record).during.len(), 0, "{text:?} is no record");
        }
        for text in ["3.5] box kernel: amdgpu\n", "[x] box kernel: amdgpu\n", "[3.5] box sshd: amdgpu\n"] {
            assert_eq!(sorted("test", text, 0.0, journal_line).during.len(), 0, "{text:?} is no line");
        }
    }

    #[test]
    fn a_flood_leaves_the_last_messages() {
        let text: String =
            (0..1000).map(|index| format!("6,{index},{index}000000,-;amdgpu: {index}\n")).collect();
        let messages = sorted("test", &text, 500.0, record);
        assert_eq!((messages.before.len(), messages.during.len()), (MAX_LINES, MAX_LINES));
        assert_eq!(messages.during.last().unwrap(), "[999.000000] amdgpu: 999");
        assert_eq!(messages.before[0], "[350.000000] amdgpu: 350");
        assert_eq!((messages.source, messages.unreadable), (Some("test"), None));
    }
}
