//! Errors of the driver, calls that fail, and what remains after them.

use super::{
    BOTH, CudaBackend, ONE, SIZE, TWO, UNIT, both, bound, check_nothing_is_left, idle, memory, open,
};
use crate::rig::Cuda;
use gpu_vmm_core::multicast::{Multicast, MulticastRange, Team};
use gpu_vmm_core::{Backend, Bytes, Detail, PhysicalMemory, Placement, Properties, Result};
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::{FaultInject, Live};

type Faulty = FaultInject<CudaBackend>;

cases! {
    whichever_call_fails_nothing_is_left;
    what_cannot_be_unmapped_comes_back;
    what_cannot_be_unbound_stays_bound;
    failed_rollback_leaves_the_object;
    failed_close_leaves_the_object;
    failed_unbind_returns_the_first_error;
    what_fails_in_dropping_is_logged;
    switches_that_are_full_get_advice [FAIL = "cuMulticastCreate:1:47"] => |cuda| {
        answers(cuda, &["cuMulticastCreate", "CUDA_ERROR_MULTICAST_RESOURCE_FULL (47)", "release objects"]);
    };
    a_fabric_in_trouble_gets_advice [FAIL = "cuMulticastBindMem:2:401"] => |cuda| {
        answers(
            cuda,
            &["cuMulticastBindMem", "CUDA_ERROR_ILLEGAL_STATE (401)", "begin again", "64 MiB of device 1"],
        );
    };
    unready_fabric_gets_advice [FAIL = "cuMulticastBindMem:1:802"] => |cuda| {
        answers(cuda, &["CUDA_ERROR_SYSTEM_NOT_READY (802)", "nvidia-fabricmanager must run"]);
    };
    a_binding_that_lacks_memory_gets_advice [FAIL = "cuMulticastBindMem:1:2"] => |cuda| {
        answers(cuda, &["CUDA_ERROR_OUT_OF_MEMORY (2)", "it is not memory alone that can be short"]);
    };
    a_binding_that_fails_names_its_ranges [FAIL = "cuMulticastBindMem:1:1,cuMulticastUnbind:1:999"];
    a_device_of_another_clique_is_named [FAIL = "cuMulticastAddDevice:2:101"] => |cuda| {
        answers(cuda, &["cuMulticastAddDevice", "CUDA_ERROR_INVALID_DEVICE (101)", "device 1"]);
    };
    a_granularity_may_fail [FAIL = "cuMulticastGetGranularity:2:1"] => |cuda| {
        answers(cuda, &["cuMulticastGetGranularity", "64 MiB on 2 devices"]);
    };
    a_granularity_is_asked_for_whole_granules [FAIL = "cuMulticastGetGranularity:1:1"] => |cuda| {
        let error = Team::builder(&open(cuda)).size(Bytes(1)).device(ONE).granularity().unwrap_err();
        assert!(error.to_string().contains("2 MiB on 1 devices"), "{error}");
    };
    a_map_may_fail [FAIL = "cuMemMap:1:401"] => |cuda| {
        answers(cuda, &["cuMemMap", "ILLEGAL_STATE"])
    };
    access_may_fail [FAIL = "cuMemSetAccess:1:1"] => |cuda| answers(cuda, &["cuMemSetAccess"]);
}

/// Builds everything from the object to its address.
fn build<B: gpu_vmm_core::multicast::MulticastBackend>(
    backend: &B,
    memory: &[PhysicalMemory<B>],
) -> Result<MulticastRange<B>> {
    let mut object = both(backend).create()?.complete();
    for memory in memory {
        object.bind(Bytes::ZERO, memory, Bytes::ZERO, SIZE)?;
    }
    Ok(object.map(Placement::Anywhere)?)
}

/// Checks the error of a failing build, that nothing is left, and that the next build succeeds.
fn answers(cuda: &Cuda, parts: &[&str]) {
    let backend = open(cuda);
    let memory = BOTH.map(|device| memory(&backend, device));
    let error = build(&backend, &memory).unwrap_err();
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
    let left = cuda.counts();
    assert_eq!((left.handles, left.reservations, left.mappings, left.bindings), (2, 0, 0, 0));
    build(&backend, &memory).unwrap().close(idle()).unwrap();
    drop(memory);
    check_nothing_is_left(cuda, &backend);
}

fn a_binding_that_fails_names_its_ranges(cuda: &Cuda) {
    let backend = open(cuda);
    let mut object = both(&backend).create().unwrap().complete();
    let larger = PhysicalMemory::create(&backend, SIZE + SIZE, Properties::on(TWO)).unwrap();
    let mut bind = || object.bind(UNIT, &larger, SIZE, UNIT + UNIT);
    let error = bind().unwrap_err().to_string();
    let part = "8 MiB of device 1, from 64 MiB of the memory, at 4 MiB of 64 MiB";
    assert!(error.contains("cuMulticastBindMem") && error.contains(part), "{error}");
    bind().unwrap();
    let error = object.unbind(TWO, UNIT).unwrap_err().to_string();
    let part = "8 MiB of device 1 at 4 MiB";
    assert!(error.contains("cuMulticastUnbind") && error.contains(part), "{error}");
    object.unbind(TWO, UNIT).unwrap();
    drop((object, larger));
    check_nothing_is_left(cuda, &backend);
}

fn whichever_call_fails_nothing_is_left(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let memory = BOTH.map(|device| memory(&faulty, device));
    let alone = faulty.live();
    faulty.fail_each(&[]);
    let range = build(&faulty, &memory).unwrap();
    let calls = faulty.stop();
    drop(range);
    // Granularity, create, add, add, bind, bind, reserve, map, set access.
    assert_eq!(calls, 9);
    for number in 0..calls {
        faulty.fail_each(&[number]);
        let error = build(&faulty, &memory).unwrap_err();
        faulty.stop();
        assert_eq!(error.driver_error().unwrap().name, "INJECTED", "{error}");
        assert_eq!(faulty.live(), alone, "after {error}");
        assert_eq!(cuda.counts().bindings, 0, "after {error}");
    }
    // The object of a failed map still exists, and can be mapped later.
    let mut object = bound(&faulty);
    for number in 0..3 {
        faulty.fail_each(&[number]);
        let failed = object.map(Placement::Anywhere).unwrap_err();
        faulty.stop();
        object = failed.into_kept();
        assert_eq!(object.bindings().count(), 2);
    }
    object.map(Placement::Anywhere).unwrap().close(idle()).unwrap();
    drop(memory);
    assert_eq!(faulty.live(), Live::default());
    check_nothing_is_left(cuda, &backend);
}

fn what_cannot_be_unmapped_comes_back(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let mut range = bound(&faulty).map(Placement::Anywhere).unwrap();
    let (address, live) = (range.address(), faulty.live());
    // The waits for each device, and the unmapping.
    for number in 0..3 {
        faulty.fail_each(&[number]);
        let failed = range.unmap(idle()).unwrap_err();
        faulty.stop();
        range = failed.into_kept();
        assert_eq!((range.address(), faulty.live()), (address, live));
    }
    range.unmap(idle()).unwrap().close().unwrap();
    assert_eq!(faulty.live(), Live::default());
    check_nothing_is_left(cuda, &backend);
}

fn what_cannot_be_unbound_stays_bound(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let mut object = bound(&faulty);
    let live = faulty.live();
    faulty.fail_each(&[0]);
    object.unbind(ONE, Bytes::ZERO).unwrap_err();
    faulty.stop();
    assert_eq!((object.bindings().count(), faulty.live()), (2, live));
    object.unbind(ONE, Bytes::ZERO).unwrap();
    object.close().unwrap();
    assert_eq!(faulty.live(), Live::default());
    check_nothing_is_left(cuda, &backend);
}

/// The driver's numbers for the objects that the tests below leave: the object is the first handle of the process, followed
/// by the memory.
const OBJECT: usize = 0x1_0000;

/// Releases a remaining object with its bindings, by the driver's own calls.
fn take_what_was_left(cuda: &Cuda, devices: &[usize]) {
    for device in devices {
        cuda.ok("cuMulticastUnbind", &[OBJECT, *device, 0, SIZE.0 as usize]);
        cuda.release(OBJECT * (2 + device));
    }
    cuda.release(OBJECT);
}

fn failed_rollback_leaves_the_object(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let object = bound(&faulty);
    // Setting the access fails, and so does the unmapping that undoes the map.
    faulty.fail(2, 2);
    let failed = object.map(Placement::Anywhere).unwrap_err();
    faulty.stop();
    assert!(matches!(failed.error().detail(), Detail::RollbackFailed { .. }), "{failed}");
    // The object cannot be used any more.
    let mut object: Multicast<_> = failed.into_kept();
    let more = memory(&faulty, ONE);
    for answer in [object.unbind(ONE, Bytes::ZERO), object.bind(Bytes::ZERO, &more, Bytes::ZERO, SIZE)] {
        let error = answer.unwrap_err();
        let Detail::Poisoned { range, cause } = error.detail() else { panic!("{error}") };
        assert_eq!((range.offset, range.length), (Bytes::ZERO, SIZE));
        assert!(cause.contains("the rollback failed as well"), "{cause}");
    }
    let failed = object.map(Placement::Anywhere).unwrap_err();
    assert!(matches!(failed.error().detail(), Detail::Poisoned { .. }), "{failed}");
    let error = failed.into_kept().close().unwrap_err();
    assert!(matches!(error.detail(), Detail::Poisoned { .. }), "{error}");
    drop(more);
    assert_eq!(faulty.live(), Live { handles: 3, reservations: 1, mappings: 1, bindings: 2 });
    // SAFETY: no object of this backend is left, and no device is working.
    assert_eq!(unsafe { faulty.reclaim() }.unwrap(), 1);
    take_what_was_left(cuda, &[0, 1]);
    check_nothing_is_left(cuda, &backend);
}

/// The caller has the error, and nothing is tried again in dropping.
fn failed_close_leaves_the_object(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let range = bound(&faulty).map(Placement::Anywhere).unwrap();
    let live = faulty.live();
    // The waits for both devices, then the unmapping.
    faulty.fail_each(&[2]);
    let error = range.close(idle()).unwrap_err();
    faulty.stop();
    assert_eq!(error.driver_error().unwrap().name, "INJECTED", "{error}");
    assert_eq!((faulty.live(), backend.drop_log().count()), (live, 0));
    // SAFETY: no object of this backend is left, and no device is working.
    unsafe { faulty.reclaim() }.unwrap();
    take_what_was_left(cuda, &[0, 1]);
    check_nothing_is_left(cuda, &backend);
}

fn failed_unbind_returns_the_first_error(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let object = bound(&faulty);
    let live = faulty.live();
    faulty.fail(0, 2);
    let error = object.close().unwrap_err();
    assert_eq!(faulty.stop(), 2, "{error}");
    assert!(error.to_string().contains("(driver call 0)"), "{error}");
    assert_eq!((faulty.live(), backend.drop_log().count()), (live, 0));
    take_what_was_left(cuda, &[0, 1]);
    check_nothing_is_left(cuda, &backend);
}

fn what_fails_in_dropping_is_logged(cuda: &Cuda) {
    let backend = open(cuda);
    let faulty: Faulty = FaultInject::new(backend.clone());
    let object = bound(&faulty);
    // The first unbinding fails; the second one is still made.
    faulty.fail_each(&[0]);
    drop(object);
    faulty.stop();
    assert_eq!(backend.drop_log().count(), 1);
    assert!(backend.drop_log().take_last().unwrap().to_string().contains("unbind"));
    assert_eq!(faulty.live(), Live { handles: 2, bindings: 1, ..Live::default() });
    take_what_was_left(cuda, &[0]);

    let range = bound(&faulty).map(Placement::Anywhere).unwrap();
    let live = faulty.live();
    // The waits for both devices, then the unmapping: nothing is unbound under a mapping.
    faulty.fail_each(&[2]);
    drop(range);
    faulty.stop();
    assert_eq!(backend.drop_log().count(), 2);
    assert!(backend.drop_log().take_last().unwrap().to_string().contains("unmap"));
    assert_eq!(faulty.live(), live);
    // SAFETY: no object of this backend is left, and no device is working.
    unsafe { faulty.reclaim() }.unwrap();
    let object = 4 * OBJECT;
    for (device, memory) in [(ONE, 5), (TWO, 6)] {
        cuda.ok("cuMulticastUnbind", &[object, device.0 as usize, 0, SIZE.0 as usize]);
        cuda.release(memory * OBJECT);
    }
    cuda.release(object);
    assert_eq!(cuda.violations(), 0);
}
