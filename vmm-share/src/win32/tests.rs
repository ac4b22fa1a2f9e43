//! Tests that run on Windows only: `cargo test -p gpu-vmm-share` there.

use super::*;
use crate::PeerError;
use gpu_vmm_core::extend::handles::adopt;
use gpu_vmm_core::{Detail, Error};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::RawHandle;
use std::os::windows::io::{AsHandle, IntoRawHandle};
use std::process::{Child, Command, Stdio};

/// The environment variable that names the test in its child process.
const CHILD: &str = "GPU_VMM_TEST_CHILD";

/// Runs this test again in a child process with pipes. Returns `None` in that process.
fn child(test: &str) -> Option<Child> {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let path = format!("share::win32::tests::{test}");
    let mut command = Command::new(program);
    command.args(["--exact", &path, "--nocapture"]).env(CHILD, test);
    Some(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

/// `FILE_FLAG_DELETE_ON_CLOSE`.
const GONE_WITH_THE_LAST_HANDLE: u32 = 0x0400_0000;

/// Creates a file with this text, which identifies the object of a handle.
fn file(text: &str) -> File {
    let path = std::env::temp_dir().join(format!("gpu-vmm-{}-{text}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(GONE_WITH_THE_LAST_HANDLE)
        .open(&path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn content(handle: OwnedHandle) -> String {
    let mut file = File::from(handle);
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Waits for the line of a child's output that begins with `begin`, and returns the rest of the line.
fn said(child: &mut Child, begin: &str) -> String {
    let mut all = String::new();
    let output = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while output.read(&mut byte).unwrap() == 1 {
        match byte[0] {
            b'\n' => match all.trim_end().split_once(begin) {
                Some((_, rest)) => return rest.to_owned(),
                None => all.clear(),
            },
            other => all.push(char::from(other)),
        }
    }
    panic!("the child ended without {begin:?}");
}

fn numbers<const N: usize>(line: &str) -> [u64; N] {
    let all: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
    all.try_into().unwrap()
}

fn line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line
}

fn tell(child: &mut Child, text: &str) {
    let input = child.stdin.as_mut().unwrap();
    writeln!(input, "{text}").unwrap();
    input.flush().unwrap();
}

#[test]
fn what_one_process_offers_another_one_fetches() {
    let Some(mut child) = child("what_one_process_offers_another_one_fetches") else {
        let file = file("offered");
        let Offer { exporter, value } = Offer::of(file.as_handle()).unwrap();
        println!("\noffer: {} {} {value}", exporter.pid, exporter.created);
        line();
        return;
    };
    let [pid, created, value] = numbers(&said(&mut child, "offer: "));
    let exporter = ProcessId { pid: pid as u32, created };
    let offer = Offer { exporter, value };
    assert_eq!(pid, u64::from(child.id()));
    assert_eq!(content(offer.fetch().unwrap()), "offered");

    // A later process with the same ID, a handle that the exporter does not have, and numbers that no handle has.
    let later = Offer { exporter: ProcessId { created: created + 1, ..exporter }, value };
    assert!(matches!(later.fetch().as_ref().map_err(Error::extension), Err(Some(PeerError::Gone { .. }))));
    let closed = Offer { value: 0x7fff_fff0, ..offer }.fetch().unwrap_err();
    let answer = closed.driver_error().unwrap();
    assert_eq!((answer.call, answer.code), ("DuplicateHandle", 6), "{closed}");
    for value in [0, u64::MAX, u64::from(u32::MAX), 1 << 31, 1 << 32] {
        assert!(
            matches!(
                (Offer { value, ..offer }.fetch()).as_ref().map_err(Error::extension),
                Err(Some(PeerError::BadMessage { .. }))
            ),
            "{value:#x}"
        );
    }

    tell(&mut child, "end");
    assert!(child.wait().unwrap().success());
    let error = offer.fetch().unwrap_err();
    assert!(
        matches!(error.extension(), Some(PeerError::Gone { .. }))
            || matches!(error.detail(), Detail::Driver { .. }),
        "{error}"
    );
}

#[test]
fn given_handles_are_taken_or_closed() {
    let Some(mut child) = child("given_handles_are_taken_or_closed") else {
        let ProcessId { pid, created } = ProcessId::current().unwrap();
        println!("\nprocess: {pid} {created}");
        let [value] = numbers(&line());
        // SAFETY: the parent has given the first handle to this process. No handle has the number 0, or a number so high.
        let [taken, rest @ ..] = unsafe { [take(value), take(0), take(0x7fff_fff0), take(u64::MAX)] };
        assert_eq!(content(taken.unwrap()), "given");
        for refused in rest {
            assert!(
                matches!(refused.as_ref().map_err(Error::extension), Err(Some(PeerError::BadMessage { .. }))),
                "{refused:?}"
            );
        }
        return;
    };
    let [pid, created] = numbers(&said(&mut child, "process: "));
    let to = ProcessId { pid: pid as u32, created };
    let file = file("given");
    let kept = give(file.as_handle(), to).unwrap();
    let dropped = give(file.as_handle(), to).unwrap();
    assert_ne!(kept.value(), dropped.value());
    let [kept_there, dropped_there] =
        [&kept, &dropped].map(|given| Offer { exporter: to, value: given.value() });
    kept.delivered();
    drop(dropped);
    assert_eq!(content(kept_there.fetch().unwrap()), "given");
    assert!(dropped_there.fetch().is_err());
    let stranger = give(file.as_handle(), ProcessId { created: created ^ 1, ..to });
    assert!(
        matches!(stranger.as_ref().map_err(Error::extension), Err(Some(PeerError::Gone { .. }))),
        "{stranger:?}"
    );
    tell(&mut child, &kept_there.value.to_string());
    assert!(child.wait().unwrap().success());
}

#[test]
fn process_is_named_by_number_and_creation() {
    let here = ProcessId::current().unwrap();
    assert_eq!(here, ProcessId::current().unwrap());
    assert_eq!(here.pid, std::process::id());
    // Between 2020 and 2200, in units of 100 ns since 1601.
    assert!((132_223_104_000_000_000..189_000_000_000_000_000).contains(&here.created), "{here:?}");
    // Process IDs are multiples of four.
    let gone = ProcessId { pid: 3, ..here };
    assert!(gone.open(Operation::DuplicateHandle).is_err());
}

#[test]
fn driver_handles_are_checked_before_ownership() {
    for none in [0usize, usize::MAX, 0x4000_0002, 0x7fff_fff0] {
        // SAFETY: none of these values is a handle.
        let adopted = unsafe { adopt(Operation::ExportMemory, none as RawHandle) };
        assert!(
            matches!(adopted.as_ref().map_err(Error::detail), Err(Detail::DriverContractViolated { .. })),
            "{none:#x}"
        );
    }
    let file = OwnedHandle::from(file("adopted"));
    // SAFETY: the handle's ownership is passed on here.
    let adopted = unsafe { adopt(Operation::ExportMemory, file.into_raw_handle()) };
    assert_eq!(content(adopted.unwrap()), "adopted");
}
