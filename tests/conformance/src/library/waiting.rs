//! Rule 7: what takes memory away waits first, and does nothing where waiting fails.

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::decorators::FaultInject;
use gpu_vmm_core::{Access, Bytes, Done, Region, Workbench};

cases! { "waiting":
    /// unmap waits for devices.
    unmap_waits_for_devices,
    /// a promise waits for nothing.
    a_promise_waits_for_nothing,
    /// no access needs no wait.
    no_access_needs_no_wait,
    /// changing access waits.
    changing_access_waits,
    /// the null stream.
    the_null_stream,
}

fn region<B: Workbench>(subject: &Subject<B>) -> (FaultInject<B>, Region<FaultInject<B>>) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).reserve(subject.units(4)).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    (backend, region)
}

fn unmap_waits_for_devices<B: Workbench>(subject: &Subject<B>) {
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
fn a_promise_waits_for_nothing<B: Workbench>(subject: &Subject<B>) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 0);
    // SAFETY: no work was queued on the memory.
    region.unmap(Bytes(0), subject.units(2), unsafe { Done::promised() }).unwrap();
    assert_eq!(backend.stop(), 1, "one call, the unmap");
}

fn no_access_needs_no_wait<B: Workbench>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).reserve(subject.units(2)).build().unwrap();
    let on = gpu_vmm_core::Properties::on(subject.device);
    region.map(Bytes(0), &gpu_vmm_core::Physical::create(&backend, subject.unit(), on).unwrap()).unwrap();
    backend.fail(0, 0);
    region.unmap(Bytes(0), subject.unit(), Done::when_devices_idle()).unwrap();
    assert_eq!(backend.stop(), 1, "no device could have used it");
}

fn changing_access_waits<B: Workbench>(subject: &Subject<B>) {
    let (backend, mut region) = region(subject);
    backend.fail(0, 1);
    let error = region.set_access(Bytes(0), subject.units(2), subject.device, Access::Read).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, "synchronize");
    assert_eq!(region.access(Bytes(0), subject.device), Access::ReadWrite);
    backend.fail(0, 0);
    region.set_access(Bytes(0), subject.units(2), subject.device, Access::ReadWrite).unwrap();
    assert!(backend.stop() <= 1, "the same access takes nothing away");
}

#[allow(unsafe_code)]
fn the_null_stream<B: Workbench>(subject: &Subject<B>) {
    let (_, mut region) = region(subject);
    // SAFETY: null is the default stream of both vendors.
    let stream = unsafe { gpu_vmm_core::Stream::from_raw(std::ptr::null_mut()) };
    region.unmap(Bytes(0), subject.units(2), Done::when_streams_idle(&[stream])).unwrap();
}
