use super::*;
use crate::PeerError;
use gpu_vmm_core::{Detail, Operation};
use gpu_vmm_testkit::forked::{Child, give_up_root};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use std::io::{Read, Write, pipe};
use std::process::{Command, Stdio};

const FETCH: Operation = Operation::DuplicateHandle;

fn memory() -> OwnedFd {
    memfd_create("memory", MemfdFlags::CLOEXEC).unwrap()
}

/// The token of another process that has the file.
fn token_of(pid: u32, file: &OwnedFd) -> Token {
    let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()).unwrap();
    let identity = Identity::of(FETCH, pid, pidfd.as_fd()).unwrap();
    Token { pid, identity, ..of_this(FETCH, file.as_fd()).unwrap() }
}

/// The identity of a later process.
fn later(identity: Identity) -> Identity {
    match identity {
        Identity::Inode(inode) => Identity::Inode(inode + 1),
        Identity::StartTime(ticks) => Identity::StartTime(ticks + 1),
    }
}

/// Another process, which is killed on drop.
struct Sleep(std::process::Child);

impl Sleep {
    /// Starts a process with this file as its descriptor 0.
    fn with(file: &OwnedFd) -> (Self, Token) {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(file.try_clone().unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
        let sleep = Self(command.spawn().unwrap());
        let pid = sleep.0.id();
        (sleep, Token { pid, number: 0, ..token_of(pid, file) })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn descriptor_is_fetched_while_process_lives() {
    let file = memory();
    let (sleep, token) = Sleep::with(&file);
    let fetched = fetch(FETCH, &token).unwrap();
    assert_eq!(FileId::of(FETCH, fetched.as_fd()).unwrap(), token.file);
    assert_eq!(fcntl_getfd(&fetched).unwrap(), FdFlags::CLOEXEC);
    drop(sleep);
    let error = fetch(FETCH, &token).unwrap_err();
    let expected = format!("there is no process {} in this PID namespace", token.pid);
    assert!(matches!(error.extension(), Some(PeerError::Gone { why }) if *why == expected), "{error}");
}

#[test]
fn unexpected_descriptor_is_not_taken() {
    let file = memory();
    let (_sleep, token) = Sleep::with(&file);
    let inode = FileId { inode: token.file.inode + 1, ..token.file };
    let device = FileId { device: token.file.device + 1, ..token.file };
    for (token, part) in [
        (Token { identity: later(token.identity), ..token }, "the one with that number here, "),
        (Token { identity: Identity::StartTime(1), ..token }, "started at tick 1"),
        (Token { file: inode, ..token }, "here that descriptor is open on inode"),
        (Token { file: device, ..token }, "here that descriptor is open on inode"),
        (Token { number: 99, ..token }, "here that descriptor is not open"),
        (Token { number: -1, ..token }, "no descriptor has the number -1"),
        (Token { pid: 0, ..token }, "no process has the number 0"),
        (Token { pid: u32::MAX, ..token }, "no process has the number 4294967295"),
    ] {
        let error = fetch(FETCH, &token).unwrap_err().to_string();
        assert!(error.contains(part), "{part:?} is missing in {error:?}");
    }
    let error = fetch(FETCH, &Token { file: inode, ..token }).unwrap_err();
    let Detail::Mismatch { what, theirs, ours } = error.detail() else { panic!("{error}") };
    assert_eq!((*what, theirs), ("descriptor", &format!("{}, open on {inode}", token.number)));
    assert_eq!(*ours, format!("here that descriptor is open on {}", token.file));
    let later = later(token.identity);
    let error = fetch(FETCH, &Token { identity: later, ..token }).unwrap_err();
    let Detail::Mismatch { what, theirs, ours } = error.detail() else { panic!("{error}") };
    assert_eq!((*what, theirs), ("process", &format!("{}, {later}", token.pid)));
    assert_eq!(*ours, format!("the one with that number here, {}", token.identity));
    // Where pidfds have no inodes of their own.
    let started = Identity::StartTime(start_time(FETCH, token.pid).unwrap());
    fetch(FETCH, &Token { identity: started, ..token }).unwrap();
}

#[test]
fn token_names_the_open_file() {
    let file = memory();
    let token = of_this(FETCH, file.as_fd()).unwrap();
    assert_eq!((token.pid, token.number), (std::process::id(), file.as_raw_fd()));
    let fetched = fetch(FETCH, &token).unwrap();
    assert_eq!(FileId::of(FETCH, fetched.as_fd()).unwrap(), FileId::of(FETCH, file.as_fd()).unwrap());
}

/// A user other than root fetches from a process that is not dumpable, which only root may trace.
#[test]
fn permission_error_says_what_is_needed() {
    let (mut ready, mut told) = pipe().unwrap();
    let file = memory();
    let owner = Child::fork(|| {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
        told.write_all(b"!").unwrap();
        loop {
            std::thread::park();
        }
    });
    ready.read_exact(&mut [0]).unwrap();
    let token = token_of(owner.id(), &file);
    Child::fork(|| {
        give_up_root();
        let error = fetch(FETCH, &token).unwrap_err();
        assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("CAP_SYS_PTRACE"), "{error}");
    })
    .finish();
}

#[test]
fn system_error_names_descriptor_and_process() {
    let file = memory();
    let token = of_this(FETCH, file.as_fd()).unwrap();
    Child::fork(|| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        let error = fetch(FETCH, &token).unwrap_err().to_string();
        let expected = format!("descriptor {} of process {}", token.number, token.pid);
        assert!(error.contains("pidfd_open answered EMFILE") && error.contains(&expected), "{error}");
    })
    .finish();
}

#[test]
fn a_program_can_have_any_name() {
    let rest = b" S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n";
    for name in [b"sleep".as_slice(), b"a b", b") R 1 (", b"()))", b"\xff)\xff"] {
        let stat = [b"12 (", name, b")", rest].concat();
        assert_eq!(parse_start_time(&stat), Some(4711), "{name:?}");
    }
    for stat in [b"".as_slice(), b"12 (sleep", b"12 (sleep) S 1 2", b"12 (\xff) \xff"] {
        assert_eq!(parse_start_time(stat), None, "{stat:?}");
    }
}
