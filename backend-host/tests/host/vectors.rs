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
fn a_full_vector_grows_by_an_eighth_in_place_and_by_half_with_copies() {
    let in_place = one_more_than_16_granules(&HostConfig::new().open().unwrap());
    assert_eq!(in_place.region().end(), Bytes(18 * GRANULE.0));
    let copied = one_more_than_16_granules(&HostConfig::new().without_virtual_memory().open().unwrap());
    assert!(copied.region().is_plain());
    assert_eq!(copied.region().end(), Bytes(24 * GRANULE.0));
}

#[test]
fn a_vector_whose_move_is_refused_asks_its_observers_once() {
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

/// A step that is no larger than what is needed is not tried again.
#[test]
fn the_first_step_of_a_vector_is_tried_once() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut bytes = DeviceVec::<u8, _>::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    host.fail(0, u64::MAX);
    bytes.push(1).unwrap_err();
    assert_eq!(host.stop(), 1);
    assert!(bytes.is_empty());
}

#[test]
fn no_elements_are_added_to_a_suspended_vector() {
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
fn a_pointer_is_shown_with_its_type_and_address() {
    let host = HostConfig::new().open().unwrap();
    let numbers = DeviceVec::from_slice(&host, ONE, &[1_u32]).unwrap();
    let pointer = numbers.as_device_ptr();
    assert_eq!(format!("{pointer:?}"), format!("DevicePtr<u32>({})", pointer.address()));
}

#[test]
fn a_region_with_banks_needs_virtual_memory_before_its_first_bank() {
    let host = HostConfig::new().without_virtual_memory().open().unwrap();
    let error = BankedRegion::build(Region::builder(&host).reserve(GRANULE)).unwrap_err();
    assert_eq!(error.operation(), Operation::AddBank);
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
}

#[test]
fn an_observer_of_a_region_with_banks_is_removed_once() {
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
fn a_bank_larger_than_the_addresses_takes_no_memory() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut banked = BankedRegion::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    let error = banked.add_bank(GRANULE + Bytes(1)).unwrap_err();
    let Detail::OutOfRange { range, limit } = error.detail() else { panic!("{error}") };
    assert_eq!((error.operation(), range.length, *limit), (Operation::AddBank, GRANULE + GRANULE, GRANULE));
    assert_eq!((host.made(Operation::CreateMemory), banked.banks().count()), (0, 0));
}

/// One call fills the memory, whatever the byte. Other elements are copied.
#[test]
fn new_elements_of_equal_bytes_are_filled_by_one_call() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut numbers = DeviceVec::<u16, _>::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    for (length, value, fills) in [(3, 0x0707, 1), (5, 0, 2), (6, 0x0708, 2)] {
        numbers.resize(length, value).unwrap();
        assert_eq!(host.made(Operation::Fill), fills, "{value:#x}");
    }
    assert_eq!(numbers.to_vec().unwrap(), [0x0707, 0x0707, 0x0707, 0, 0, 0x0708]);
}

#[test]
fn a_vector_that_ends_with_a_mapping_keeps_none_behind_it() {
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
