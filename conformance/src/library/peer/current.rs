//! The calling thread's current device, which the library must not change.
#![allow(unsafe_code)] // calls the driver

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{BackingStore, Bytes, Stream, Vendor};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::loaded;

cases! { "peer":
    /// Work with another device's memory leaves the calling thread's current device unchanged, and on CUDA its current
    /// context.
    the_current_device_stays,
}

/// The driver's current device of the calling thread, as a number, or its current context.
fn current<B: TestKit>(subject: &Subject<B>) -> u64 {
    let get = match subject.backend.vendor() {
        Vendor::Hip => "hipGetDevice",
        Vendor::Cuda => "cuCtxGetCurrent",
        vendor => skip(format!("{vendor} has no current device")),
    };
    let library = loaded(&subject.backend.driver().library).expect("the driver's library");
    let mut current = 0_u64;
    // SAFETY: the function writes a number or a pointer, for which `current` has room.
    let code =
        unsafe { library.get::<unsafe extern "C" fn(*mut u64) -> i32>(get).unwrap()(&raw mut current) };
    assert_eq!(code, 0, "{get}");
    current
}

fn the_current_device_stays<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let before = current(subject);
    let stays = |after: &str| assert_eq!(current(subject), before, "after {after}");
    let (unit, backend) = (subject.unit(), &subject.backend);
    let mut region = subject.region(1).on(other).access(one, RW).build().unwrap();
    stays("reserving");
    region.grow_to(unit).unwrap();
    stays("growing");
    region.write(Bytes(0), &[1]).unwrap();
    region.fill(Bytes(8), Bytes(8), 1).unwrap();
    stays("writing");
    let mut near = subject.region(1).access(other, RW).build().unwrap();
    near.grow_to(unit).unwrap();
    near.copy_from(Bytes(0), &region, Bytes(0), unit).unwrap();
    stays("copying");
    let mut event = backend.event(other).unwrap();
    event.record(Stream::DEFAULT).unwrap();
    event.wait().unwrap();
    backend.synchronize(other).unwrap();
    backend.memory_info(other).unwrap();
    stays("waiting");
    let store = BackingStore::pinned(backend, unit).unwrap();
    region.suspend(&store, idle()).unwrap();
    stays("suspending");
    region.resume().unwrap();
    stays("resuming");
    drop((event, region, near));
    stays("dropping");
}
