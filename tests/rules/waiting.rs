//! Rule 7: what takes memory away waits first, and does nothing where waiting fails.

use crate::subject::{Subject, cases};
use gpu_vmm::decorators::FaultInject;
use gpu_vmm::{Access, AnyBackend, Bytes, DeviceId, Done, Region};

cases!("waiting": unmap_waits_for_devices, a_promise_waits_for_nothing, no_access_needs_no_wait, changing_access_waits,
    the_null_stream);

const D0: DeviceId = DeviceId(0);

fn region(subject: &Subject) -> (FaultInject<AnyBackend>, Region<FaultInject<AnyBackend>>) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).reserve(subject.units(4)).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    (backend, region)
}

fn unmap_waits_for_devices(subject: &Subject) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 1);
    let error = region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle()).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, "synchronize");
    assert_eq!(backend.stop(), 1, "nothing else was tried");
    assert_eq!(region.mapped(), subject.units(2));
    region.write(Bytes(0), b"still there").unwrap();
    backend.fail(0, 1);
    let error = region.shrink_to(Bytes(0), Done::when_devices_idle()).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, "synchronize");
    backend.stop();
    assert_eq!(region.end(), subject.units(2));
}

#[allow(unsafe_code)]
fn a_promise_waits_for_nothing(subject: &Subject) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 0);
    // SAFETY: no work was queued on the memory.
    region.unmap(Bytes(0), subject.units(2), unsafe { Done::promised() }).unwrap();
    assert_eq!(backend.stop(), 1, "one call, the unmap");
}

fn no_access_needs_no_wait(subject: &Subject) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).reserve(subject.units(2)).build().unwrap();
    let on = gpu_vmm::Properties::on(D0);
    region.map(Bytes(0), &gpu_vmm::Physical::create(&backend, subject.unit(), on).unwrap()).unwrap();
    backend.fail(0, 0);
    region.unmap(Bytes(0), subject.unit(), Done::when_devices_idle()).unwrap();
    assert_eq!(backend.stop(), 1, "no device could have used it");
}

fn changing_access_waits(subject: &Subject) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 1);
    let error = region.set_access(Bytes(0), subject.units(2), D0, Access::Read).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, "synchronize");
    assert_eq!(region.access(Bytes(0), D0), Access::ReadWrite);
    backend.fail(0, 0);
    region.set_access(Bytes(0), subject.units(2), D0, Access::ReadWrite).unwrap();
    assert!(backend.stop() <= 1, "the same access takes nothing away");
}

#[allow(unsafe_code)]
fn the_null_stream(subject: &Subject) {
    let (_, mut region) = region(subject);
    // SAFETY: null is the default stream of both vendors.
    let stream = unsafe { gpu_vmm::Stream::from_raw(std::ptr::null_mut()) };
    region.unmap(Bytes(0), subject.units(2), Done::when_streams_idle(&[stream])).unwrap();
}
