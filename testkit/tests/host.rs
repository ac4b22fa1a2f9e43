//! The raw calls on host memory that only benchmarks use, and no rule of the conformance suite.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(unsafe_code, clippy::unwrap_used)]

use gpu_vmm_core::DeviceId;
use gpu_vmm_host::HostBackend;
use gpu_vmm_testkit::raw::abi::{Code, PORTABLE};
use gpu_vmm_testkit::raw::{Driver, Missing, below};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

const SIZE: usize = 1 << 16;

fn open() -> Box<dyn Driver> {
    below(&HostBackend::open().unwrap(), DeviceId(0), None).unwrap()
}

/// Returns why a call cannot be made.
fn missing(call: impl FnOnce() -> Code) -> String {
    catch_unwind(AssertUnwindSafe(call)).unwrap_err().downcast::<Missing>().unwrap().0
}

#[test]
fn bytes_are_copied_on_the_device() {
    let driver = open();
    let (mut at, mut back) = (0, vec![0_u8; SIZE]);
    let bytes: Vec<u8> = (0..SIZE).map(|place| (place % 251) as u8).collect();
    // SAFETY: one address is written; the allocation is twice as long as the copied halves.
    unsafe {
        assert_eq!(driver.allocate(&raw mut at, 2 * SIZE), Code::SUCCESS);
        let second = at + SIZE as u64;
        assert_eq!(driver.copy_from_host(at, bytes.as_ptr().cast(), SIZE), Code::SUCCESS);
        assert_eq!(driver.copy_on_device(second, at, SIZE), Code::SUCCESS);
        assert_eq!(driver.copy_to_host(back.as_mut_ptr().cast(), second, SIZE), Code::SUCCESS);
        let why = missing(|| driver.copy_on_device(second - 1, at, SIZE));
        assert!(why.ends_with("what is copied does not overlap"), "{why}");
        assert_eq!(driver.free(at), Code::SUCCESS);
        assert_ne!(driver.copy_on_device(second, at, SIZE), Code::SUCCESS, "it was freed");
    }
    assert_eq!(back, bytes);
}

#[test]
fn host_memory_is_freed_once() {
    let driver = open();
    let mut pointer = null_mut();
    // SAFETY: one pointer is written, and its memory is as long as the filled range.
    unsafe {
        assert_eq!(driver.host_allocate(&raw mut pointer, SIZE, PORTABLE), Code::SUCCESS);
        pointer.cast::<u8>().write_bytes(7, SIZE);
        assert_eq!(driver.host_free(pointer), Code::SUCCESS);
        let why = missing(|| driver.host_free(pointer));
        assert!(why.ends_with("given back once"), "{why}");
        let why = missing(|| driver.host_allocate(&raw mut pointer, SIZE, 4));
        assert!(why.ends_with("memory of the host is every device's"), "{why}");
    }
}

#[test]
fn what_has_no_counterpart_is_missing() {
    let (driver, mut address) = (open(), 0);
    // SAFETY: the pointer is valid for one address.
    let why = missing(|| unsafe { driver.allocate_async(&raw mut address, SIZE, null_mut()) });
    assert_eq!(why, "there is no counterpart of cuMemAllocAsync and hipMallocAsync");
    let why = missing(|| driver.enable_peer(0));
    assert!(why.ends_with("a plain allocation is its own device's"), "{why}");
}
