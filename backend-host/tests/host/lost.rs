//! Addresses that are lost while a region is suspended.

use crate::{GRANULE, ONE};
use gpu_vmm_core::{
    Address, BackingKind, BackingStore, Bytes, Detail, Operation, Placement, Region, RegionState, WaitFor,
};
use gpu_vmm_host::HostConfig;
use gpu_vmm_testkit::FaultInject;

/// The first of several reservations loses its addresses, and the release of the next one's memory fails. Nothing can be rolled
/// back by then, so the region is suspended, and can be resumed.
#[test]
fn a_failure_after_lost_addresses_is_lost_addresses() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let at = Placement::Exact(Address(0x2000_0000_0000));
    let mut region = Region::builder(&backend).on(ONE).reserve(GRANULE).at(at).build().unwrap();
    for granules in [1, 2, 4] {
        region.grow_to(Bytes(GRANULE.0 * granules)).unwrap();
    }
    assert_eq!(region.reservations().len(), 3);
    let contents: Vec<u8> = (0..region.end().0).map(|at| (at % 251) as u8).collect();
    region.write(Bytes::ZERO, &contents).unwrap();
    let store = BackingStore::pinned(&backend, region.end()).unwrap();
    let state = RegionState::Suspended { memory: region.end(), store: BackingKind::Pinned };
    backend.lose_addresses(true);
    // The first reservation releases its memory and cannot regain its addresses. From then on each release fails.
    let later = backend.clone();
    backend.during(Operation::RegainAddresses, move || later.fail_calls(&[Operation::ReturnMemory]));
    let error = region.suspend(&store, WaitFor::all_devices()).unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressesLost { .. }), "{error}");
    assert_eq!(region.state(), state);
    backend.stop();
    let error = region.resume().unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
    assert_eq!(region.state(), state);
    backend.lose_addresses(false);
    region.resume().unwrap();
    let mut read = vec![0; contents.len()];
    region.read(Bytes::ZERO, &mut read).unwrap();
    assert!(read == contents, "other bytes came back");
}
