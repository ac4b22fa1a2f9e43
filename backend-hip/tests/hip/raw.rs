//! The raw calls that benchmarks compare gpu-vmm with. The driver layer of the conformance suite makes the others.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::Backend;
use gpu_vmm_testkit::raw::abi::{Code, NON_BLOCKING, PORTABLE, RELEASE_THRESHOLD};
use gpu_vmm_testkit::raw::{Driver, below, loaded};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;
use std::sync::{Mutex, PoisonError};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "raw::bytes_there_and_back", needs: Needs::Device, run: there_and_back },
    Test { name: "raw::pool_keeps_the_requested_amount", needs: Needs::Device, run: kept },
    Test { name: "raw::listener_gets_each_call", needs: Needs::Device, run: told },
];

fn open(rig: &Rig, tell: Option<fn(&'static str)>) -> Box<dyn Driver> {
    below(&rig.backend, ZERO, tell).unwrap()
}

#[track_caller]
fn good(driver: &dyn Driver, code: Code) {
    assert_eq!(code, Code::SUCCESS, "{}", driver.name(code));
}

fn with_stream(driver: &dyn Driver, work: impl FnOnce(*mut c_void)) {
    let mut stream = null_mut();
    // SAFETY: the function writes one stream, which is destroyed when its work is done.
    unsafe {
        good(driver, driver.stream_create(&raw mut stream, NON_BLOCKING));
        work(stream);
        good(driver, driver.stream_synchronize(stream));
        good(driver, driver.stream_destroy(stream));
    }
}

/// Copies bytes from page-locked memory to the device, to another allocation, and back.
fn there_and_back(rig: &Rig) {
    const SIZE: usize = 100_000;
    let driver = &*open(rig, None);
    let (mut pinned, mut first, mut second) = (null_mut(), 0, 0);
    // SAFETY: each pointer is writable; all memory is as long as the copies, and lives until they have finished.
    unsafe {
        good(driver, driver.host_allocate(&raw mut pinned, SIZE, PORTABLE));
        let mut flags = 0_u32;
        assert_eq!(rig.hip2("hipHostGetFlags", (&raw mut flags).addr(), pinned.addr()), 0);
        assert_eq!(flags & PORTABLE, PORTABLE, "{flags:#x}");
        let bytes = slice::from_raw_parts_mut(pinned.cast::<u8>(), SIZE);
        (0..SIZE).for_each(|place| bytes[place] = (place % 251) as u8);
        good(driver, driver.allocate(&raw mut first, SIZE));
        good(driver, driver.allocate(&raw mut second, SIZE));
        with_stream(driver, |stream| {
            good(driver, driver.copy_from_host_later(first, pinned, SIZE, stream));
            good(driver, driver.stream_synchronize(stream));
            good(driver, driver.copy_on_device(second, first, SIZE));
            good(driver, driver.synchronize());
            bytes.fill(0);
            good(driver, driver.copy_to_host_later(pinned, second, SIZE, stream));
        });
        assert!((0..SIZE).all(|place| bytes[place] == (place % 251) as u8));
        good(driver, driver.free(first));
        good(driver, driver.free(second));
        good(driver, driver.host_free(pinned));
    }
}

/// When the stream is synchronized, a pool keeps freed memory up to the threshold, and releases all of it if the
/// threshold is 0.
///
/// The test runs on HIP 6 only: the pools of HIP 7 keep a reservation and memory below HIP until the process ends,
/// which the other tests would count as leaks.
fn kept(rig: &Rig) {
    /// `hipMemPoolAttrReservedMemCurrent`: the memory that the pool holds.
    const HELD: usize = 5;
    type Get = unsafe extern "C" fn(*mut c_void, usize, *mut u64) -> i32;
    let hip = loaded(&rig.backend.driver().library).unwrap();
    if rig.backend.driver().version_number >= 70_000_000 {
        return;
    }
    let size = rig.units(16).0 as usize;
    let driver = &*open(rig, None);
    let mut pool = null_mut();
    // SAFETY: the function writes one pool.
    good(driver, unsafe { driver.default_pool(&raw mut pool, 0) });
    let held_after = |threshold: u64| {
        let (mut threshold, mut held) = (threshold, 0);
        // SAFETY: both attributes are numbers of 64 bits; one address is written, and freed once.
        unsafe {
            good(driver, driver.pool_set(pool, RELEASE_THRESHOLD, (&raw mut threshold).cast()));
            with_stream(driver, |stream| {
                let mut address = 0;
                good(driver, driver.allocate_async(&raw mut address, size, stream));
                good(driver, driver.free_async(address, stream));
            });
            let get = hip.get::<Get>("hipMemPoolGetAttribute").unwrap();
            assert_eq!(get(pool, HELD, &raw mut held), 0);
        }
        held
    };
    assert_eq!(held_after(0), 0);
    assert!(held_after(u64::MAX) >= size as u64);
    assert_eq!(held_after(0), 0);
}

/// `tell` is called with the name of each call; without it nothing is reported.
fn told(rig: &Rig) {
    static TOLD: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    fn tell(name: &'static str) {
        TOLD.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }
    let count = |tell| {
        let mut count = 0;
        let driver = &*open(rig, tell);
        // SAFETY: the function writes one number.
        good(driver, unsafe { driver.device_count(&raw mut count) });
        // SAFETY: as above; a null pointer is refused.
        assert_eq!(unsafe { driver.device_count(null_mut()) }, Code::INVALID_VALUE);
        assert_eq!(rig.hip("hipGetLastError", 0), Code::INVALID_VALUE.0 as u32);
    };
    count(None);
    assert!(TOLD.lock().unwrap().is_empty());
    count(Some(tell));
    assert_eq!(*TOLD.lock().unwrap(), ["hipGetDeviceCount"; 2]);
}
