//! Programs that a process starts with one end of a channel.

use super::*;
use std::process::Command;

#[test]
fn child_end_is_seen_with_command() {
    alone(|| {
        let mut command = Command::new("sh");
        let (channel, mut child) = Channel::spawn(command.args(["-c", "read line; exit 7"])).unwrap();
        assert!(channel.is_connected());
        drop(channel);
        assert_eq!(child.wait().unwrap().code(), Some(7), "a channel that is closed ends the child's input");

        let (channel, mut child) = Channel::spawn(&mut command).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!channel.is_connected());
        drop(command);
    });
}

#[test]
fn unstartable_program_is_named() {
    alone(|| {
        let error = Channel::spawn(&mut Command::new("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("spawn answered ENOENT") && error.contains("/no/such/program"), "{error}");
    });
}

#[test]
fn missing_standard_input_is_reported() {
    alone(|| {
        #[allow(unsafe_code)] // closes a descriptor that no object of Rust owns
        // SAFETY: the process is one of its own, in which nothing reads the standard input.
        unsafe {
            libc::close(0)
        };
        let error = Channel::from_stdin().unwrap_err().to_string();
        assert!(error.contains("fcntl answered EBADF") && error.contains("standard input"), "{error}");
    });
}
