//! Vectors and regions with banks: steps of growth, observers, refusals, and pointers as text.

use crate::{GRANULE, ONE};
use gpu_vmm_core::{
    BackingChange, BackingObserver, BackingOutcome, BackingStore, BankedRegion, Bytes, Detail, DeviceVec,
    Operation, Region, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const IDLE: WaitFor<'static> = WaitFor::all_devices();

/// Refuses every change, and counts the requests.
#[derive(Clone, Default)]
struct Refusing(Arc<AtomicUsize>);

impl BackingObserver for Refusing {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err("it is in use".into())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

/// Creates a vector of 16 granules, and adds one byte.
fn one_more_than_16_granules(host: &HostBackend) -> DeviceVec<u8, HostBackend> {
    let mut bytes = DeviceVec::build(Region::builder(host).reserve(Bytes(64 * GRANULE.0))).unwrap();
    bytes.resize(16 * GRANULE.0 as usize, 1).unwrap();
    assert_eq!(bytes.region().end(), Bytes(16 * GRANULE.0));
    bytes.push(2).unwrap();
    bytes
}

#[test]
fn vector_growth_steps_depend_on_copies() {
    let in_place = one_more_than_16_granules(&HostConfig::new().open().unwrap());
    assert_eq!(in_place.region().end(), Bytes(18 * GRANULE.0));
    let copied = one_more_than_16_granules(&HostConfig::new().without_virtual_memory().open().unwrap());
    assert!(copied.region().is_plain());
    assert_eq!(copied.region().end(), Bytes(24 * GRANULE.0));
}

#[test]
fn refused_vector_move_asks_observers_once() {
    let host = HostConfig::new().open().unwrap();
    let builder = Region::builder(&host).reserve(Bytes(16 * GRANULE.0)).guarded();
    let mut bytes = DeviceVec::<u8, _>::build(builder).unwrap().movable();
    bytes.resize(16 * GRANULE.0 as usize, 1).unwrap();
    let refusing = Refusing::default();
    let observer = bytes.on_backing_change(refusing.clone());
    let error = bytes.push(2).unwrap_err();
    assert!(matches!(error.detail(), Detail::Vetoed { .. }), "{error}");
    assert_eq!(refusing.0.load(Ordering::Relaxed), 1);
    assert!(bytes.remove_observer(observer));
    assert!(!bytes.remove_observer(observer));
    bytes.push(2).unwrap();
    assert_eq!(refusing.0.load(Ordering::Relaxed), 1);
}

/// A step that is no larger than the needed size is not tried again.
#[test]
fn first_vector_step_is_tried_once() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut bytes = DeviceVec::<u8, _>::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    host.fail(0, u64::MAX);
    bytes.push(1).unwrap_err();
    assert_eq!(host.stop(), 1);
    assert!(bytes.is_empty());
}

#[test]
fn suspended_vector_takes_no_elements() {
    let host = HostConfig::new().open().unwrap();
    let mut numbers = DeviceVec::from_slice(&host, ONE, &[1_u32, 2]).unwrap();
    let store = BackingStore::pinned(&host, GRANULE).unwrap();
    numbers.suspend(&store, IDLE).unwrap();
    numbers.extend_from_slice(&[]).unwrap();
    assert!(matches!(numbers.push(3).unwrap_err().detail(), Detail::Suspended { .. }));
    numbers.resume().unwrap();
    assert_eq!(numbers.to_vec().unwrap(), [1, 2]);
}

#[test]
fn pointer_text_has_type_and_address() {
    let host = HostConfig::new().open().unwrap();
    let numbers = DeviceVec::from_slice(&host, ONE, &[1_u32]).unwrap();
    let pointer = numbers.as_device_ptr();
    assert_eq!(format!("{pointer:?}"), format!("DevicePtr<u32>({})", pointer.address()));
}

#[test]
fn banked_region_needs_virtual_memory() {
    let host = HostConfig::new().without_virtual_memory().open().unwrap();
    let error = BankedRegion::build(Region::builder(&host).reserve(GRANULE)).unwrap_err();
    assert_eq!(error.operation(), Operation::AddBank);
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
}

#[test]
fn bank_observer_is_removed_once() {
    let host = HostConfig::new().open().unwrap();
    let mut banked = BankedRegion::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    let bank = banked.add_bank(GRANULE).unwrap();
    let refusing = Refusing::default();
    let observer = banked.on_backing_change(refusing.clone());
    banked.select(bank, IDLE).unwrap_err();
    assert!(banked.remove_observer(observer));
    assert!(!banked.remove_observer(observer));
    banked.select(bank, IDLE).unwrap();
    assert_eq!(refusing.0.load(Ordering::Relaxed), 1);
}

#[test]
fn oversized_bank_takes_no_memory() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut banked = BankedRegion::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    let error = banked.add_bank(GRANULE + Bytes(1)).unwrap_err();
    let Detail::OutOfRange { range, limit } = error.detail() else { panic!("{error}") };
    assert_eq!((error.operation(), range.length, *limit), (Operation::AddBank, GRANULE + GRANULE, GRANULE));
    assert_eq!((host.made(Operation::CreateMemory), banked.banks().count()), (0, 0));
}

/// One call fills the memory, whatever the byte. Other elements are copied.
#[test]
fn equal_elements_are_filled_at_once() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut numbers = DeviceVec::<u16, _>::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    for (length, value, fills) in [(3, 0x0707, 1), (5, 0, 2), (6, 0x0708, 2)] {
        numbers.resize(length, value).unwrap();
        assert_eq!(host.made(Operation::Fill), fills, "{value:#x}");
    }
    assert_eq!(numbers.to_vec().unwrap(), [0x0707, 0x0707, 0x0707, 0, 0, 0x0708]);
}

#[test]
fn vector_shrinks_to_its_last_mapping() {
    let host = HostConfig::new().open().unwrap();
    let mut bytes = DeviceVec::build(Region::builder(&host).reserve(Bytes(4 * GRANULE.0))).unwrap();
    for granules in [1, 2, 3] {
        bytes.resize(granules * GRANULE.0 as usize, 1_u8).unwrap();
    }
    for (length, end) in [(GRANULE.0 + 1, 2), (GRANULE.0, 1), (0, 0)] {
        bytes.truncate(length as usize);
        bytes.shrink_to_fit(IDLE).unwrap();
        assert_eq!(bytes.region().end(), Bytes(end * GRANULE.0), "{length}");
    }
}
