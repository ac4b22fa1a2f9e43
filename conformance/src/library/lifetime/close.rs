//! Closing a region, and the errors that it reports.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Operation, PhysicalMemory, Placement, Region};
use gpu_vmm_testkit::{FaultInject, Live, TestKit};

cases! { "lifetime":
    /// Closing a region releases its memory and its addresses, and reports success.
    close_gives_back,
    /// Closing an empty region asks no device to wait.
    close_of_nothing,
    /// Closing reports a failed call; memory that could not be released at first is released when the region is dropped.
    close_tells_what_failed,
    /// Discarding a region repeats a call that failed, and reports success if that releases everything.
    discarding_tries_again,
    /// The backend records calls that fail while a region is dropped; memory that a device may still use stays mapped.
    @isolated dropping_records_what_failed,
}

/// A full region on a backend with fault injection.
fn full<B: TestKit>(subject: &Subject<B>) -> (FaultInject<B>, Region<FaultInject<B>>) {
    let backend = FaultInject::new(subject.backend.clone());
    let place = Placement::Exact(subject.hole(2));
    let builder = Region::builder(&backend).on(subject.device).reserve(subject.units(2)).at(place);
    let mut region = builder.build().unwrap();
    for units in [1, 2] {
        region.grow_to(subject.units(units)).unwrap();
    }
    (backend, region)
}

fn close_gives_back<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let (_, region) = full(subject);
    let range = region.range();
    region.close(idle()).unwrap();
    assert_eq!(subject.free(), before);
    let again = subject.region(2).at(Placement::Exact(range.base)).build().unwrap();
    assert_eq!(again.range(), range);
}

fn close_of_nothing<B: TestKit>(subject: &Subject<B>) {
    let (backend, mut region) = full(subject);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    backend.fail(0, u64::MAX);
    region.close(idle()).unwrap();
    assert_eq!(backend.stop(), 0);
}

fn close_tells_what_failed<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    for (failing, call) in [(0, Operation::WaitForDevice), (1, Operation::Unmap)] {
        let (backend, region) = full(subject);
        let range = region.range();
        backend.fail(failing, 1);
        let error = region.close(idle()).unwrap_err();
        assert_eq!(error.driver_error().unwrap().call, call.name(), "{error}");
        backend.stop();
        assert_eq!(subject.free(), before, "after {error}");
        subject.region(2).at(Placement::Exact(range.base)).build().unwrap();
    }
}

#[allow(unsafe_code)]
fn discarding_tries_again<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let (backend, region) = full(subject);
    backend.fail(0, 1);
    // SAFETY: no work uses the region.
    unsafe { region.discard() }.unwrap();
    assert!(backend.stop() > 1, "no call after the one that failed");
    assert_eq!((backend.live(), subject.free()), (Live::default(), before));
}

fn dropping_records_what_failed<B: TestKit>(subject: &Subject<B>) {
    let (backend, region) = full(subject);
    let pieces: Vec<PhysicalMemory<FaultInject<B>>> =
        region.mappings().map(|mapping| mapping.memory.clone()).collect();
    let count = subject.backend.drop_log().count();
    backend.fail(0, 1);
    drop(region);
    assert_eq!(
        backend.stop(),
        1,
        "unmapped although the wait failed and the device may still use the memory"
    );
    assert_eq!(subject.backend.drop_log().count(), count + 1);
    let recorded = subject.backend.drop_log().take_last().unwrap();
    assert_eq!(recorded.driver_error().unwrap().call, Operation::WaitForDevice.name(), "{recorded}");
    drop(pieces);
}
