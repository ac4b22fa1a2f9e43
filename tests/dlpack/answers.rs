//! The operation in each error, the device of a tensor without memory, and deleters that are called with no tensor.

use crate::{GRANULE, IDLE, Machine, bytes_view, machine, shared};
use gpu_vmm::dlpack::TensorRegion;
use gpu_vmm::{
    BackingChange, BackingObserver, BackingOutcome, BackingStore, Bytes, Detail, DeviceId, ObserverId,
    Operation, Region,
};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

#[test]
fn empty_tensor_is_on_the_growth_device() {
    let machine = machine();
    let (zero, one) = (DeviceId(0), DeviceId(1));
    let empty = TensorRegion::new(Region::builder(&machine).on(one).reserve(GRANULE).build().unwrap());
    empty.dlpack(Some(one), &bytes_view(0, 0)).unwrap();
    let error = empty.dlpack(Some(zero), &bytes_view(0, 0)).unwrap_err();
    assert!(matches!(error.detail(), Detail::BadTensor { .. }), "{error}");
}

#[test]
fn a_deleter_ignores_a_null_pointer() {
    let machine = machine();
    let shared = shared(&machine, 1);
    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap().into_raw();
    let legacy = shared.dlpack_unversioned(None, &bytes_view(0, 4)).unwrap().into_raw();
    // SAFETY: both structures are valid, and each deleter is called once with its own.
    unsafe {
        let (delete, delete_legacy) = (tensor.as_ref().deleter.unwrap(), legacy.as_ref().deleter.unwrap());
        delete(null_mut());
        delete_legacy(null_mut());
        assert_eq!(shared.exports(), 2);
        delete(tensor.as_ptr());
        delete_legacy(legacy.as_ptr());
    }
    assert_eq!(shared.exports(), 0);
}

#[test]
fn refused_change_names_the_callers_operation() {
    let machine = machine();
    let shared = shared(&machine, 1);
    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap();
    let change = || shared.change(Operation::Unmap, false, |region| region.unmap(Bytes(0), GRANULE, IDLE));
    assert_eq!(change().unwrap_err().operation(), Operation::Unmap);
    drop(tensor);
    change().unwrap();
}

/// Calls the region that it observes. Notes the operation of each error, and whether the error is `Notifying`.
struct Calling(TensorRegion<Machine>, BackingStore<Machine>, Arc<Mutex<Vec<(Operation, bool)>>>);

/// Does nothing when memory changes.
struct Idle;

impl BackingObserver for Idle {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

impl BackingObserver for Calling {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Self(region, store, _) = self;
        let change =
            |force| region.change(Operation::Unmap, force, |region| region.unmap(Bytes(0), GRANULE, IDLE));
        let answers = [
            region.with(Region::address).map(drop),
            region.grow_to(GRANULE).map(drop),
            region.write(Bytes(0), &[1]),
            region.read(Bytes(0), &mut [0]),
            region.resume().map(drop),
            region.dlpack(None, &bytes_view(0, 1)).map(drop),
            region.dlpack_unversioned(None, &bytes_view(0, 1)).map(drop),
            region.shrink_to(Bytes(0), IDLE).map(drop),
            region.shrink_exported_to(Bytes(0), IDLE).map(drop),
            region.suspend(store, IDLE).map(drop),
            region.suspend_exported(store, IDLE).map(drop),
            change(false),
            change(true),
            region.on_backing_change(Idle).map(drop),
            region.remove_observer(ObserverId(0)).map(drop),
        ];
        let refusals = answers.iter().filter_map(|answer| answer.as_ref().err());
        let refusals = refusals.map(|error| (error.operation(), matches!(error.detail(), Detail::Notifying)));
        self.2.lock().unwrap().extend(refusals);
        // A call that needs no lock has its answer.
        assert_eq!(region.exports(), 0);
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

#[test]
fn refused_call_names_its_operation() {
    let machine = machine();
    let store = BackingStore::pinned(&machine, Bytes::mib(4)).unwrap();
    let (shared, operations) = (shared(&machine, 1), Arc::default());
    let observer = shared.on_backing_change(Calling(shared.clone(), store, Arc::clone(&operations))).unwrap();
    assert_eq!(shared.shrink_to(Bytes(0), IDLE).unwrap().removed, GRANULE);
    let expected = [
        Operation::LockRegion,
        Operation::Grow,
        Operation::Write,
        Operation::Read,
        Operation::Resume,
        Operation::ExportTensor,
        Operation::ExportTensor,
        Operation::Shrink,
        Operation::Shrink,
        Operation::Suspend,
        Operation::Suspend,
        Operation::Unmap,
        Operation::Unmap,
        Operation::LockRegion,
        Operation::LockRegion,
    ];
    assert_eq!(*operations.lock().unwrap(), expected.map(|operation| (operation, true)));
    // The observer holds a clone of its own region.
    assert!(shared.remove_observer(observer).unwrap());
    assert!(!shared.remove_observer(observer).unwrap());
}
