//! Moves to another device on machines that the conformance suite lacks: without peers, and with three devices.

use crate::{ONE, SMALL, TWO};
use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, Detail, DeviceId, Error, Location, MovePath, Moved, Operation,
    Properties, Region, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

const THREE: DeviceId = DeviceId(2);
const IDLE: WaitFor<'static> = WaitFor::all_devices();

fn machine(config: &HostConfig) -> HostBackend {
    config.clone().devices(3).memory(Bytes::mib(64)).granularity(SMALL).open().unwrap()
}

/// Creates a region whose bytes depend on their offset.
fn filled(host: &HostBackend, properties: Properties) -> Region<HostBackend> {
    let mut region = Region::builder(host).memory(properties).reserve(SMALL + SMALL).build().unwrap();
    region.grow_to(SMALL).unwrap();
    region.grow_to(SMALL + SMALL).unwrap();
    region.write(SMALL - Bytes(3), b"over both").unwrap();
    region
}

fn check(region: &Region<HostBackend>) {
    let mut bytes = [0; 9];
    region.read(SMALL - Bytes(3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"over both");
}

#[test]
fn without_peers_bytes_go_through_host() {
    let host = machine(&HostConfig::new().without_peers());
    let mut region = filled(&host, Properties::on(ONE));
    let moved = region.move_to_device(TWO, MovePath::Fastest(None), IDLE).unwrap();
    assert_eq!(moved, Moved { by_peer: Bytes(0), through_host: SMALL + SMALL });
    check(&region);
    assert!(region.mappings().all(|mapping| mapping.memory.device() == TWO));
}

#[test]
fn memory_of_two_devices_moves_together() {
    let host = machine(&HostConfig::new());
    let mut region = Region::builder(&host).on(ONE).reserve(SMALL + SMALL).build().unwrap();
    region.grow_to(SMALL).unwrap();
    region.grow_to_on(TWO, SMALL + SMALL).unwrap();
    region.write(SMALL - Bytes(3), b"over both").unwrap();
    region.set_access(SMALL, SMALL, ONE, Access::Read).unwrap();
    let free = host.memory_info(THREE).unwrap().free;
    region.move_to_device(THREE, MovePath::Fastest(None), IDLE).unwrap();
    check(&region);
    let access = |offset| [ONE, TWO, THREE].map(|device| region.access(offset, device));
    assert_eq!(access(Bytes(0)), [Access::None, Access::None, Access::ReadWrite]);
    assert_eq!(access(SMALL), [Access::Read, Access::None, Access::ReadWrite], "a peer keeps what it had");
    assert_eq!(host.memory_info(THREE).unwrap().free, free - SMALL - SMALL);
}

#[test]
fn move_is_refused_for_unreachable_peer() {
    let host = machine(&HostConfig::new().without_peers());
    // Every device can access host memory, so the region can be open to a device that is no peer.
    let properties = Properties::on(ONE).located(Location::Host);
    let mut region = filled(&host, properties);
    region.set_access(Bytes(0), SMALL, THREE, Access::Read).unwrap();
    region.move_to_device(TWO, MovePath::Fastest(None), IDLE).unwrap();
    assert_eq!(region.access(Bytes(0), THREE), Access::Read);
    check(&region);
    let alone = Region::builder(&host).on(ONE).access(THREE, Access::Read).reserve(SMALL).build();
    assert!(
        matches!(
            alone.as_ref().map_err(Error::detail),
            Err(Detail::PeerUnreachable { device: THREE, owner: ONE, .. })
        ),
        "{alone:?}"
    );
}

/// The memory of future growth counts too: a region with access for another device does not move to a device whose memory that
/// one cannot access.
#[test]
fn move_keeps_the_reach_of_peers() {
    let host = FaultInject::new(machine(&HostConfig::new()));
    host.hide_memory(TWO, true);
    let builder = Region::builder(&host).on(ONE).reserve(SMALL);
    let empty = builder.clone().access(THREE, Access::Read).build().unwrap();
    let mut mapped = builder.build().unwrap();
    mapped.grow_to(SMALL).unwrap();
    mapped.set_access(Bytes(0), SMALL, THREE, Access::Read).unwrap();
    for mut region in [empty, mapped] {
        let error = region.move_to_device(TWO, MovePath::Fastest(None), IDLE).unwrap_err();
        assert!(matches!(error.detail(), Detail::PeerUnreachable { device: THREE, owner: TWO }), "{error}");
        region.grow_to(SMALL).unwrap();
        assert!(region.mappings().all(|mapping| mapping.memory.device() == ONE));
        assert_eq!(region.access(Bytes(0), THREE), Access::Read);
    }
}

/// A suspended region has no mappings to move, and would grow by memory of the other device.
#[test]
fn a_suspended_region_does_not_move() {
    let host = machine(&HostConfig::new());
    let mut region = filled(&host, Properties::on(ONE));
    region.suspend(&BackingStore::nothing(), IDLE).unwrap();
    let error = region.move_to_device(TWO, MovePath::Fastest(None), IDLE).unwrap_err();
    assert!(matches!(error.detail(), Detail::Suspended { .. }), "{error}");
    assert_eq!(error.operation(), Operation::MoveToDevice);
    assert_eq!(region.settings().memory.device, ONE);
}

/// Only the error of a suspend names the call that leaves the memory where it is.
#[test]
fn cloned_memory_error_names_possible_calls() {
    let host = machine(&HostConfig::new());
    let mut region = filled(&host, Properties::on(ONE));
    let held = region.mapping_at(SMALL).map(|mapping| mapping.memory.clone());
    let holder = |error: Error| match error.detail() {
        Detail::StillReferenced { range, holder } => {
            assert_eq!((range.offset, range.length), (SMALL, SMALL));
            *holder
        }
        other => panic!("{other:?}"),
    };
    let moved = holder(region.move_to_device(TWO, MovePath::Fastest(None), IDLE).unwrap_err());
    let suspended = holder(region.suspend(&BackingStore::nothing(), IDLE).unwrap_err());
    assert!(moved.starts_with("is also held by a clone"), "{moved}");
    let way_out = "; to suspend the region nevertheless, use the suspend call for shared memory (C and Python: \
                   \"shared\", Rust: \"into\"), which leaves this memory in place";
    assert_eq!(suspended, format!("{moved}{way_out}"));
    drop(held);
    region.move_to_device(TWO, MovePath::Fastest(None), IDLE).unwrap();
    check(&region);
}
