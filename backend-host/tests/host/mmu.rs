//! The MMU checks too: an access that no device has ends the process.

use crate::child::{is_child, spawn};
use crate::range::{Range, create};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{Access, Address, Bytes, DeviceId};
use gpu_vmm_host::HostConfig;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

fn read(at: Address) -> u8 {
    // SAFETY: a read that the MMU refuses ends the child, which the test expects.
    unsafe { at.as_ptr::<u8>().read_volatile() }
}

fn write(at: Address) {
    // SAFETY: as for read.
    unsafe { at.as_ptr::<u8>().write_volatile(1) }
}

/// Runs `body` in a child on a mapping with this access for the second device, and returns the signal that ended it.
fn signal_of(test: &str, access: Option<Access>, body: impl FnOnce(Address)) -> Option<i32> {
    signal_with(test, TWO, access, body)
}

/// Runs `body` in a child on a mapping with this access for `who`; `None` sets no access.
fn signal_with(test: &str, who: DeviceId, access: Option<Access>, body: impl FnOnce(Address)) -> Option<i32> {
    if !is_child() {
        let status = spawn(test, Stdio::null());
        assert!(status.success() || status.signal().is_some(), "{test}: {status}");
        return status.signal();
    }
    let host = HostConfig::new().devices(2).memory(Bytes::mib(8)).open().unwrap();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    if let Some(access) = access {
        range.put(Bytes::ZERO, &handle);
        range.write(ONE, Bytes::ZERO, &[42]).unwrap();
        range.grant(Bytes::ZERO, GRANULE, ONE, Access::None).unwrap();
        range.grant(Bytes::ZERO, GRANULE, who, access).unwrap();
    }
    body(range.at(Bytes::ZERO));
    if access.is_some() {
        range.unmap(Bytes::ZERO, GRANULE).unwrap();
    }
    None
}

#[test]
fn reading_addresses_without_memory_faults() {
    let signal =
        signal_of("mmu::reading_addresses_without_memory_faults", None, |at| assert_ne!(read(at), 42));
    assert!(is_child() || signal == Some(libc::SIGSEGV), "{signal:?}");
}

#[test]
fn reading_without_access_faults() {
    let signal =
        signal_of("mmu::reading_without_access_faults", Some(Access::None), |at| assert_ne!(read(at), 42));
    assert!(is_child() || signal == Some(libc::SIGSEGV), "{signal:?}");
}

#[test]
fn writing_with_read_access_faults() {
    let signal = signal_of("mmu::writing_with_read_access_faults", Some(Access::Read), write);
    assert!(is_child() || signal == Some(libc::SIGSEGV), "{signal:?}");
}

#[test]
fn reading_with_read_access_does_not() {
    let test = "mmu::reading_with_read_access_does_not";
    assert_eq!(signal_of(test, Some(Access::Read), |at| assert_eq!(read(at), 42)), None);
}

#[test]
fn writing_with_write_access_does_not() {
    let test = "mmu::writing_with_write_access_does_not";
    assert_eq!(signal_of(test, Some(Access::ReadWrite), write), None);
}

#[test]
fn the_host_reads_and_writes_what_it_was_given() {
    let test = "mmu::the_host_reads_and_writes_what_it_was_given";
    let body = |at| {
        assert_eq!(read(at), 42);
        write(at);
        assert_eq!(read(at), 1);
    };
    assert_eq!(signal_with(test, DeviceId::HOST, Some(Access::ReadWrite), body), None);
}

#[test]
fn the_host_faults_where_it_writes_to_what_it_may_read() {
    let test = "mmu::the_host_faults_where_it_writes_to_what_it_may_read";
    let signal = signal_with(test, DeviceId::HOST, Some(Access::Read), |at| {
        assert_eq!(read(at), 42);
        write(at);
    });
    assert!(is_child() || signal == Some(libc::SIGSEGV), "{signal:?}");
}

#[test]
fn the_host_faults_where_its_access_was_taken() {
    let test = "mmu::the_host_faults_where_its_access_was_taken";
    let signal = signal_with(test, DeviceId::HOST, Some(Access::None), |at| assert_ne!(read(at), 42));
    assert!(is_child() || signal == Some(libc::SIGSEGV), "{signal:?}");
}
