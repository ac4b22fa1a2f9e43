//! The operation in each error, the device of a tensor without memory, and deleters that are called with no tensor.

use crate::{GRANULE, IDLE, Machine, bytes_view, machine, shared};
use gpu_vmm::dlpack::TensorRegion;
use gpu_vmm::{
    BackingChange, BackingObserver, BackingOutcome, Bytes, Detail, DeviceId, Error, Operation, Region,
};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

#[test]
fn a_tensor_without_memory_is_on_the_device_of_the_regions_growth() {
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
fn a_change_that_is_refused_is_the_callers_operation() {
    let machine = machine();
    let shared = shared(&machine, 1);
    let tensor = shared.dlpack(None, &bytes_view(0, 4)).unwrap();
    let change = || shared.change(Operation::Unmap, false, |region| region.unmap(Bytes(0), GRANULE, IDLE));
    assert_eq!(change().unwrap_err().operation(), Operation::Unmap);
    drop(tensor);
    change().unwrap();
}

/// Calls the region that it observes, and notes the operation of each error.
struct Calling(TensorRegion<Machine>, Arc<Mutex<Vec<Operation>>>);

impl BackingObserver for Calling {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let answers = [
            self.0.with(Region::address).map(drop),
            self.0.grow_to(GRANULE).map(drop),
            self.0.write(Bytes(0), &[1]),
            self.0.read(Bytes(0), &mut [0]),
            self.0.resume().map(drop),
            self.0.dlpack(None, &bytes_view(0, 1)).map(drop),
        ];
        self.1
            .lock()
            .unwrap()
            .extend(answers.iter().filter_map(|answer| answer.as_ref().err()).map(Error::operation));
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

#[test]
fn a_call_that_does_not_wait_is_refused_as_the_operation_that_it_is() {
    let machine = machine();
    let (shared, operations) = (shared(&machine, 1), Arc::default());
    let observer = shared.on_backing_change(Calling(shared.clone(), Arc::clone(&operations))).unwrap();
    assert_eq!(shared.shrink_to(Bytes(0), IDLE).unwrap().removed, GRANULE);
    let expected = [
        Operation::LockRegion,
        Operation::Grow,
        Operation::Write,
        Operation::Read,
        Operation::Resume,
        Operation::ExportTensor,
    ];
    assert_eq!(*operations.lock().unwrap(), expected);
    // The observer holds a clone of its own region.
    assert!(shared.remove_observer(observer).unwrap());
    assert!(!shared.remove_observer(observer).unwrap());
}
