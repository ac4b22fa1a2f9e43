//! Observers whose panics, and the panics of operations, are reported, and the text that shows their number.

use crate::{GRANULE, ONE};
use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{
    AccessMap, BackingChange, BackingObserver, BackingOutcome, BackingStore, Bytes, Detail, OffsetRange,
    Operation, PhysicalMemory, Properties, Region, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

const IDLE: WaitFor<'static> = WaitFor::all_devices();

/// The outcomes and the parts of all changes.
type Seen = Arc<Mutex<Vec<(BackingOutcome, Vec<OffsetRange>)>>>;

/// Notes the outcome of each change. Panics before a change if it has a text.
#[derive(Clone, Default)]
struct Noting(Seen, Option<&'static str>);

impl BackingObserver for Noting {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.1.map_or(Ok(()), |text| panic!("{text}"))
    }

    fn after(&self, change: &BackingChange<'_>, outcome: BackingOutcome) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((outcome, change.parts.to_vec()));
    }
}

impl Noting {
    fn take(&self) -> Vec<(BackingOutcome, Vec<OffsetRange>)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn region<B: gpu_vmm_core::Backend>(host: &B) -> Region<B> {
    let mut region = Region::builder(host).reserve(Bytes(4 * GRANULE.0)).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region.grow_to(GRANULE + GRANULE).unwrap();
    region
}

#[test]
fn observer_panic_is_the_refusals_reason() {
    let host = HostConfig::new().open().unwrap();
    let mut region: Region<HostBackend> = region(&host);
    region.on_backing_change(Noting(Seen::default(), Some("no time")));
    let error = region.unmap(GRANULE, GRANULE, IDLE).unwrap_err();
    let Detail::Vetoed { range, reason } = error.detail() else { panic!("{error}") };
    assert_eq!((range.offset, range.length), (GRANULE, GRANULE));
    assert_eq!(reason, "the observer panicked: no time");
    // Of several parts, the first one.
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE)).unwrap();
    region.map(Bytes(3 * GRANULE.0), &memory).unwrap();
    let error = region.shrink_to(Bytes::ZERO, IDLE).unwrap_err();
    let Detail::Vetoed { range, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((range.offset, range.length), (Bytes::ZERO, GRANULE + GRANULE));
}

#[test]
fn region_text_has_its_observer_count() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host);
    assert!(format!("{region:?}").contains("0 observers"));
    let first = region.on_backing_change(Noting::default());
    region.on_backing_change(Noting::default());
    assert!(format!("{region:?}").contains("2 observers"));
    assert!(region.remove_observer(first));
    assert!(format!("{region:?}").contains("1 observers"));
}

/// A panic in the middle of an operation leaves the memory in an unknown state, and the observer receives that outcome.
#[test]
fn panicking_operation_is_reported_as_poisoned() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut region = region(&host);
    let noting = Noting::default();
    let observer = region.on_backing_change(noting.clone());
    host.during(Operation::Unmap, || panic!("in the driver"));
    catch_unwind(AssertUnwindSafe(|| region.unmap(Bytes::ZERO, GRANULE, IDLE))).unwrap_err();
    let part = OffsetRange { offset: Bytes::ZERO, length: GRANULE };
    assert_eq!(noting.take(), [(BackingOutcome::Poisoned, vec![part])]);
    assert!(region.remove_observer(observer));
    drop(region);
    // SAFETY: the region is dropped, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}

/// Adjacent mappings are one part, and the part behind a hole is another.
#[test]
fn region_end_is_announced_in_runs() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host);
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE)).unwrap();
    region.map(Bytes(3 * GRANULE.0), &memory).unwrap();
    let noting = Noting::default();
    region.on_backing_change(noting.clone());
    drop(region);
    let parts = [(0, 2), (3, 1)].map(|(offset, length)| OffsetRange {
        offset: Bytes(offset * GRANULE.0),
        length: Bytes(length * GRANULE.0),
    });
    assert_eq!(noting.take(), [(BackingOutcome::Changed, parts.to_vec())]);
}

/// The new mapping is inside the one that it replaces, and all of the latter changes.
#[test]
fn replaced_mapping_is_reported_whole() {
    let host = HostConfig::new().open().unwrap();
    let mut region: Region<HostBackend> =
        Region::builder(&host).reserve(Bytes(4 * GRANULE.0)).build().unwrap();
    region.grow_to(Bytes(4 * GRANULE.0)).unwrap();
    let noting = Noting::default();
    region.on_backing_change(noting.clone());
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE)).unwrap();
    let wanted = [MappedMemory { offset: GRANULE, memory, access: AccessMap::NONE }];
    region.apply_layout(Operation::ApplyChange, &wanted, IDLE).unwrap();
    let part = OffsetRange { offset: Bytes::ZERO, length: Bytes(4 * GRANULE.0) };
    assert_eq!(noting.take(), [(BackingOutcome::Changed, vec![part])]);
}

/// Memory that another holder keeps is mapped again too.
#[test]
fn resume_announcement_includes_shared_memory() {
    let host = HostConfig::new().open().unwrap();
    let mut region: Region<HostBackend> = region(&host);
    let _held = region.mapping_at(GRANULE).unwrap().memory.clone();
    let noting = Noting::default();
    region.on_backing_change(noting.clone());
    let mut list = Vec::new();
    region.suspend_into(&BackingStore::nothing(), IDLE, &mut list).unwrap();
    assert_eq!(list.len(), 1);
    region.resume_from(&mut list).unwrap();
    let part = OffsetRange { offset: Bytes::ZERO, length: GRANULE + GRANULE };
    assert_eq!(noting.take(), [(); 2].map(|()| (BackingOutcome::Changed, vec![part])));
}
