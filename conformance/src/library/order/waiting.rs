//! Rule 7: calls that take memory away wait first, and do nothing if the wait fails.

use crate::case::cases;
use crate::library::tools::streams_idle;
use crate::subject::Subject;
use gpu_vmm_core::{Access, Bytes, Error, Operation, PhysicalMemory, Placement, Region, Stream, WaitFor};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "order":
    /// Unmapping and shrinking wait for the devices first; if the wait fails, no other driver call is made and nothing has
    /// changed.
    a_failed_wait_for_devices_changes_nothing,
    /// Unmapping waits for every device that has access; if any of these waits fails, nothing has changed.
    every_device_is_waited_for,
    /// Unmapping waits for each named stream; if a wait fails, no other driver call is made and nothing has changed.
    a_failed_wait_for_streams_changes_nothing,
    /// Growth to another address waits before it gives up the old address; if the wait fails, the region keeps its address.
    a_failed_wait_does_not_move,
    /// Unmapping with `WaitFor::nothing()` makes one driver call, the unmap.
    a_promise_waits_for_nothing,
    /// Memory that no device has access to is unmapped without a wait.
    no_access_needs_no_wait,
    /// Reducing a device's access waits for that device; if the wait fails, the device keeps its access. Setting the same
    /// access needs no wait.
    a_failed_wait_leaves_the_access,
    /// Reducing access over several mappings waits if the device has access to any of them; if the wait fails, nothing has
    /// changed.
    any_mapping_needs_the_wait,
    /// The null stream can be named as a stream to wait for.
    the_null_stream,
    /// A shrink waits for the devices that have access to any of the parts that it removes.
    a_shrink_waits_for_every_part,
}

fn region<B: TestKit>(subject: &Subject<B>) -> (FaultInject<B>, Region<FaultInject<B>>) {
    region_at(subject, Placement::Anywhere)
}

fn region_at<B: TestKit>(subject: &Subject<B>, place: Placement) -> (FaultInject<B>, Region<FaultInject<B>>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = Region::builder(&backend).on(subject.device).reserve(subject.units(4)).at(place);
    let mut region = builder.build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    (backend, region)
}

fn a_failed_wait_for_devices_changes_nothing<B: TestKit>(subject: &Subject<B>) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 1);
    let error = region.unmap(Bytes(0), subject.units(2), WaitFor::all_devices()).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
    assert_eq!(backend.stop(), 1, "another call followed the failed wait");
    assert_eq!(region.mapped(), subject.units(2));
    region.write(Bytes(0), b"still there").unwrap();
    backend.fail(0, 1);
    let error = region.shrink_to(Bytes(0), WaitFor::all_devices()).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
    backend.stop();
    assert_eq!(region.end(), subject.units(2));
}

fn every_device_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let backend = FaultInject::new(subject.backend.clone());
    let mut region =
        Region::builder(&backend).on(a).access(b, Access::ReadWrite).reserve(subject.unit()).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    for (failing, tried) in [(0, 1), (1, 2)] {
        backend.fail(failing, 1);
        let error = region.unmap(Bytes(0), subject.granularity(), WaitFor::all_devices()).unwrap_err();
        assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
        assert_eq!(backend.stop(), tried, "another call followed the failed wait");
        assert_eq!(region.mapped(), subject.granularity());
    }
    region.write(Bytes(0), b"still there").unwrap();
}

fn a_failed_wait_for_streams_changes_nothing<B: TestKit>(subject: &Subject<B>) {
    let (backend, mut region) = region(subject);
    let [one, other] = [(); 2].map(|()| subject.backend.own_stream(subject.device).unwrap());
    let streams = [one.stream(), Stream::DEFAULT, other.stream()];
    for (failing, tried) in [(0, 1), (1, 2), (2, 3)] {
        backend.fail(failing, 1);
        let done = streams_idle(&streams);
        let error = region.unmap(Bytes(0), subject.units(2), done).unwrap_err();
        assert_eq!(error.driver_error().unwrap().call, Operation::WaitForStream.name());
        assert_eq!(backend.stop(), tried, "another call followed the failed wait");
        assert_eq!(region.mapped(), subject.units(2));
    }
    region.write(Bytes(0), b"still there").unwrap();
}

fn a_failed_wait_does_not_move<B: TestKit>(subject: &Subject<B>) {
    // The position of the wait among the driver calls depends on the path of growth, so each call fails in turn until it is
    // the wait.
    let is_found = (0..20).any(|number| {
        let base = subject.hole(8);
        let (backend, mut region) = region_at(subject, Placement::Exact(base));
        let _in_the_way = subject.region(1).at(Placement::Exact(region.range().end())).build().unwrap();
        region.write_pattern(subject.device, Bytes(0), region.end(), 1).unwrap();
        let before = (region.range(), subject.free_here());
        backend.fail(number, 1);
        let grown = region.grow_or_move(subject.units(6), WaitFor::all_devices());
        backend.stop();
        let is_the_wait = |error: Error| {
            error.driver_error().is_some_and(|source| source.call == Operation::WaitForDevice.name())
        };
        if !grown.is_err_and(is_the_wait) {
            return false;
        }
        assert_eq!((region.range(), subject.free_here()), before);
        assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 1).unwrap(), 0);
        true
    });
    assert!(is_found, "growth to another address waits for nothing");
}

#[allow(unsafe_code)]
fn a_promise_waits_for_nothing<B: TestKit>(subject: &Subject<B>) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 0);
    // SAFETY: no work was queued on the memory.
    region.unmap(Bytes(0), subject.units(2), unsafe { WaitFor::nothing() }).unwrap();
    assert_eq!(backend.stop(), 1, "more calls than the unmap");
}

fn no_access_needs_no_wait<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).reserve(subject.units(2)).build().unwrap();
    let memory = PhysicalMemory::create(&backend, subject.unit(), subject.properties()).unwrap();
    region.map(Bytes(0), &memory).unwrap();
    backend.fail(0, 0);
    region.unmap(Bytes(0), subject.unit(), WaitFor::all_devices()).unwrap();
    assert_eq!(backend.stop(), 1, "a wait for a device without access");
}

fn a_failed_wait_leaves_the_access<B: TestKit>(subject: &Subject<B>) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 1);
    let error = region.set_access(Bytes(0), subject.units(2), subject.device, Access::Read).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
    assert_eq!(region.access(Bytes(0), subject.device), Access::ReadWrite);
    backend.fail(0, 0);
    region.set_access(Bytes(0), subject.units(2), subject.device, Access::ReadWrite).unwrap();
    assert!(backend.stop() <= 1, "a wait although the access stays the same");
}

fn any_mapping_needs_the_wait<B: TestKit>(subject: &Subject<B>) {
    let (unit, device) = (subject.unit(), subject.device);
    for offset in [Bytes(0), unit] {
        let backend = FaultInject::new(subject.backend.clone());
        let mut region = Region::builder(&backend).reserve(subject.units(2)).build().unwrap();
        for place in [Bytes(0), unit] {
            let memory = PhysicalMemory::create(&backend, unit, subject.properties()).unwrap();
            region.map(place, &memory).unwrap();
        }
        region.set_access(offset, unit, device, Access::ReadWrite).unwrap();
        backend.fail(0, 1);
        let error = region.set_access(Bytes(0), subject.units(2), device, Access::None).unwrap_err();
        assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
        assert_eq!(backend.stop(), 1, "another call followed the failed wait");
        assert_eq!(region.access(offset, device), Access::ReadWrite);
    }
}

#[allow(unsafe_code)]
fn the_null_stream<B: TestKit>(subject: &Subject<B>) {
    let (_, mut region) = region(subject);
    // SAFETY: null is the default stream of both vendors.
    let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
    region.unmap(Bytes(0), subject.units(2), streams_idle(&[stream])).unwrap();
}

fn a_shrink_waits_for_every_part<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).on(one).reserve(subject.units(3)).build().unwrap();
    for (offset, device) in [(Bytes(0), one), (subject.units(2), other)] {
        let memory = PhysicalMemory::create(&backend, subject.unit(), subject.properties()).unwrap();
        region.map(offset, &memory).unwrap();
        region.set_access(offset, subject.unit(), device, Access::ReadWrite).unwrap();
    }
    // The second call is the wait for the second device.
    backend.fail(1, 1);
    let error = region.shrink_to(Bytes(0), WaitFor::all_devices()).unwrap_err();
    backend.stop();
    assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
    assert_eq!(region.mapped(), subject.units(2));
}
