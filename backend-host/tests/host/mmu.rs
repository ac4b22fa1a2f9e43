//! The MMU checks too: an access that no device has ends the process.

use crate::child::{role, start_as};
use crate::range::{Range, create};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{Access, Address, Bytes, DeviceId};
use gpu_vmm_host::HostConfig;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

/// The device with this access alone, whether the CPU then writes, and whether that ends the process. Without access, nothing is
/// mapped.
const CASES: [(DeviceId, Option<Access>, bool, bool); 9] = [
    (TWO, None, false, true),
    (TWO, Some(Access::None), false, true),
    (TWO, Some(Access::Read), true, true),
    (TWO, Some(Access::Read), false, false),
    (TWO, Some(Access::ReadWrite), true, false),
    (DeviceId::HOST, Some(Access::ReadWrite), false, false),
    (DeviceId::HOST, Some(Access::ReadWrite), true, false),
    (DeviceId::HOST, Some(Access::Read), true, true),
    (DeviceId::HOST, Some(Access::None), false, true),
];

fn read(at: Address) -> u8 {
    // SAFETY: a read that the MMU refuses ends the child, which the test expects.
    unsafe { at.as_ptr::<u8>().read_volatile() }
}

/// Accesses memory as a case says.
fn access((device, access, writes, _): (DeviceId, Option<Access>, bool, bool)) {
    let host = HostConfig::new().devices(2).memory(Bytes::mib(8)).open().unwrap();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    let at = range.at(Bytes::ZERO);
    let Some(access) = access else { return assert_ne!(read(at), 42) };
    range.put(Bytes::ZERO, &handle);
    range.write(ONE, Bytes::ZERO, &[42]).unwrap();
    range.grant(Bytes::ZERO, GRANULE, ONE, Access::None).unwrap();
    range.grant(Bytes::ZERO, GRANULE, device, access).unwrap();
    if writes {
        // SAFETY: as for read.
        unsafe { at.as_ptr::<u8>().write_volatile(1) };
    } else {
        assert_eq!(read(at), 42);
    }
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn the_mmu_enforces_the_access() {
    if let Some(number) = role() {
        return access(CASES[number.parse::<usize>().unwrap()]);
    }
    for (number, case) in CASES.iter().enumerate() {
        let mut child = start_as("mmu::the_mmu_enforces_the_access", &number.to_string(), Stdio::null());
        let status = child.wait().unwrap();
        let faulted = status.signal() == Some(libc::SIGSEGV);
        assert!(faulted == case.3 && (faulted || status.success()), "{case:?}: {status}");
    }
}
