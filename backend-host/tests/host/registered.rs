//! The registry of addresses: forked children, plain allocations, and mappings in an unknown state.
#![allow(unsafe_code)] // forks

use crate::child::alone;
use crate::{GRANULE, ONE};
use gpu_vmm_core::{Address, AddressInfo, Bytes, Detail, Operation, Region, WaitFor, at};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::{FaultInject, forked};

fn region(host: &HostBackend) -> Region<HostBackend> {
    let mut region = Region::builder(host).reserve(GRANULE * 4).tag("of the parent").build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region
}

fn found(address: Address) -> Option<AddressInfo> {
    at(address).unwrap()
}

#[test]
fn forked_child_has_its_own_registry() {
    alone("registered::forked_child_has_its_own_registry", || {
        let host = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
        let parents = region(&host);
        let address = parents.address();
        forked::alone(|| {
            let error = at(address).unwrap_err();
            assert!(matches!(error.detail(), Detail::Forked), "{error}");
            assert_eq!(error.operation(), Operation::FindAddress);
            let own = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
            let mut mine = region(&own);
            mine.set_tag("of the child");
            assert_eq!(&*found(mine.address()).unwrap().tag, "of the child");
            assert_eq!(found(address), None);
            // The parent's entry stays the parent's.
            drop(parents);
            assert!(found(mine.address()).is_some());
        });
        assert!(found(address).is_none(), "the closure has owned the region");
    });
}

#[test]
fn plain_region_is_found_where_it_is() {
    let host = HostConfig::new().without_virtual_memory().open().unwrap();
    let mut region = Region::builder(&host).tag("plain").build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let first = region.address();
    let info = found(first + (GRANULE - Bytes(1))).unwrap();
    assert_eq!(
        (&*info.tag, info.region, info.mapping.unwrap().range),
        ("plain", region.range(), region.range())
    );
    region.grow_or_move(GRANULE * 3, WaitFor::all_devices()).unwrap();
    let info = found(region.address() + GRANULE * 2).unwrap();
    assert_eq!((&*info.tag, info.region.size), ("plain", GRANULE * 3));
    let address = region.address();
    drop(region);
    assert!(found(address).is_none_or(|info| &*info.tag != "plain"));
}

#[test]
fn mapping_in_an_unknown_state_says_so() {
    let host = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let mut region = Region::builder(&host).on(ONE).reserve(GRANULE * 4).build().unwrap();
    host.fail_calls(&[Operation::SetAccess, Operation::Unmap]);
    region.grow_to(GRANULE).unwrap_err();
    let info = found(region.address()).unwrap();
    assert!(info.mapping.unwrap().poisoned && info.to_string().contains("unknown state"), "{info}");
    host.fail_calls(&[]);
}
