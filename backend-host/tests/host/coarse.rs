//! A machine whose second device has memory of twice the granularity, as GPUs of different generations can have.
//!
//! Each rule of the granularity is checked against the memory in the call, not against the backend's first device: the address, the
//! offset and the size, each alone.

use crate::{ONE, SMALL, TWO};
use gpu_vmm_core::extend::{MappedMemory, forward};
use gpu_vmm_core::{
    Access, AccessMap, Address, Backend, Bytes, CopyCalls, Detail, Device, DeviceId, Granularity,
    MemoryCalls, MovePath, Operation, PhysicalMemory, Placement, Properties, Region, Result, SyncCalls,
    WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig, HostHandle, HostReservation};
use std::sync::{Arc, Mutex};

const IDLE: WaitFor<'static> = WaitFor::all_devices();
/// The granularity of the second device.
const COARSE: Bytes = Bytes(2 * SMALL.0);

#[derive(Clone, Debug)]
struct Mixed {
    host: HostBackend,
}

// SAFETY: every call is passed to the host backend; the second device only requires larger units.
unsafe impl Backend for Mixed {
    forward!(host: vendor, instance, driver, devices, memory_info, can_access, capabilities, quirks, unmaps_runs);
    forward!(host: granularity, check_host_access, reservation_unit, drop_log, deferred);

    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        let unit = self.host.granularity_of(operation, properties)?;
        Ok(if properties.device == TWO { Granularity::new(COARSE).unwrap_or(unit) } else { unit })
    }
}

/// Passes all calls of memory, copies and waiting to the member `host`.
macro_rules! pass_calls_on {
    ($backend:ty) => {
        // SAFETY: every call is passed to the host backend.
        unsafe impl MemoryCalls for $backend {
            type Handle = HostHandle;

            type Reservation = HostReservation;

            forward!(host: MemoryCalls);
        }

        // SAFETY: as above.
        unsafe impl CopyCalls for $backend {
            forward!(host: CopyCalls);
        }

        // SAFETY: as above.
        unsafe impl SyncCalls for $backend {
            forward!(host: SyncCalls);
        }
    };
}

pass_calls_on!(Mixed);

fn mixed() -> Mixed {
    let host = HostConfig::new().devices(2).memory(Bytes::mib(64)).granularity(SMALL).open().unwrap();
    Mixed { host }
}

/// Returns a region of the first device with a mapping of each size, one behind the other.
fn region(backend: &Mixed, sizes: &[Bytes]) -> Region<Mixed> {
    let mut region =
        Region::builder(backend).on(ONE).alignment(COARSE).reserve(Bytes(16 * SMALL.0)).build().unwrap();
    let mut end = Bytes::ZERO;
    for size in sizes {
        end += *size;
        region.grow_to(end).unwrap();
    }
    region
}

/// Returns the name of the unaligned argument, and the granularity that the error requires.
fn unaligned<T: std::fmt::Debug>(result: Result<T>) -> (&'static str, Bytes) {
    let error = result.unwrap_err();
    match error.detail() {
        Detail::Unaligned { what, granularity, .. } => (what, granularity.bytes()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn move_requires_granularity_of_target_device() {
    let backend = mixed();
    let path = MovePath::Fastest(None);
    let mut fits = region(&backend, &[COARSE, COARSE]);
    fits.write(COARSE - Bytes(3), b"over both").unwrap();
    fits.move_to_device(TWO, path, IDLE).unwrap();
    let mut bytes = [0; 9];
    fits.read(COARSE - Bytes(3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"over both");
    // A piece of the wrong size is refused wherever it is.
    for sizes in [&[SMALL][..], &[SMALL, COARSE], &[COARSE, SMALL], &[COARSE, COARSE, Bytes(3 * SMALL.0)]] {
        let mut region = region(&backend, sizes);
        let before: Vec<_> = region.mappings().map(|one| (one.offset, one.memory.id())).collect();
        let wrong = unaligned(region.move_to_device(TWO, path, IDLE));
        assert_eq!(wrong, ("length", COARSE), "{sizes:?}");
        let after: Vec<_> = region.mappings().map(|one| (one.offset, one.memory.id())).collect();
        assert_eq!(before, after, "{sizes:?}");
    }
    // So is a piece of a right size at an address between two units.
    let mut between = region(&backend, &[SMALL, COARSE]);
    between.unmap(Bytes::ZERO, SMALL, IDLE).unwrap();
    assert_eq!(unaligned(between.move_to_device(TWO, path, IDLE)), ("address", COARSE));
    assert!(between.mappings().all(|mapping| mapping.memory.device() == ONE));
}

/// Every operation of a region has its granularity, so a fork leaves no mapping that no other call could name.
#[test]
fn fork_requires_granularity_of_other_region() {
    let backend = mixed();
    let into = |device| Region::builder(&backend).on(device).reserve(COARSE * 4).build().unwrap();
    let before = |region: &Region<Mixed>| {
        let mappings = region.mappings().map(|one| (one.offset, one.memory.id()));
        (mappings.collect::<Vec<_>>(), region.access(Bytes::ZERO, ONE))
    };
    for sizes in [&[SMALL, SMALL][..], &[COARSE, SMALL, SMALL], &[SMALL, COARSE, SMALL]] {
        let (mut fine, mut coarse) = (region(&backend, sizes), into(TWO));
        let (mappings, length) = (before(&fine), sizes.iter().copied().sum());
        assert_eq!(unaligned(fine.fork(length, &mut coarse)).1, COARSE, "{sizes:?}");
        assert_eq!((before(&fine), coarse.mapped()), (mappings, Bytes::ZERO), "{sizes:?}");
        fine.fork(length, &mut into(ONE)).unwrap();
    }
    let mut coarse = into(TWO);
    region(&backend, &[COARSE, COARSE]).fork(COARSE * 2, &mut coarse).unwrap();
    coarse.unmap(COARSE, COARSE, IDLE).unwrap();
}

/// The same machine, which notes the addresses from which devices copy.
#[derive(Clone, Debug)]
struct Noting {
    mixed: Mixed,
    sources: Arc<Mutex<Vec<(Address, Bytes)>>>,
}

// SAFETY: every call is passed on.
unsafe impl Backend for Noting {
    forward!(mixed: Backend);
}

// SAFETY: as above.
unsafe impl MemoryCalls for Noting {
    type Handle = HostHandle;

    type Reservation = HostReservation;

    forward!(mixed: MemoryCalls);
}

// SAFETY: as above.
unsafe impl CopyCalls for Noting {
    forward!(mixed: copy_from_host, copy_to_host, fill, pin, copy_stream);

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        self.sources.lock().unwrap().push((from, length));
        // SAFETY: the caller upholds the same contract.
        unsafe { self.mixed.copy(device, to, from, length) }
    }
}

// SAFETY: as above.
unsafe impl SyncCalls for Noting {
    forward!(mixed: SyncCalls);
}

/// For the copy, the old memory is mapped a second time, one piece behind the other.
#[test]
fn move_copies_at_aligned_addresses() {
    let host = HostConfig::new().devices(3).memory(Bytes::mib(64)).granularity(SMALL).open().unwrap();
    let backend = Noting { mixed: Mixed { host }, sources: Arc::default() };
    let create = |size, device| PhysicalMemory::create(&backend, size, Properties::on(device)).unwrap();
    // The reservations of several regions begin at addresses that differ.
    let regions: Vec<_> = (0..4)
        .map(|_| {
            let builder = Region::builder(&backend).on(ONE).alignment(COARSE).reserve(COARSE + COARSE);
            let mut region = builder.build().unwrap();
            region.map(Bytes::ZERO, &create(SMALL, ONE)).unwrap();
            region.map(COARSE, &create(COARSE, TWO)).unwrap();
            region.set_access(Bytes::ZERO, SMALL, ONE, Access::ReadWrite).unwrap();
            region.set_access(COARSE, COARSE, TWO, Access::ReadWrite).unwrap();
            region.write(COARSE + Bytes(5), b"kept").unwrap();
            let odd = Region::builder(&backend).on(ONE).reserve(SMALL).build().unwrap();
            region.move_to_device(DeviceId(2), MovePath::Fastest(None), IDLE).unwrap();
            let mut bytes = [0; 4];
            region.read(COARSE + Bytes(5), &mut bytes).unwrap();
            assert_eq!(&bytes, b"kept");
            (region, odd)
        })
        .collect();
    let sources = std::mem::take(&mut *backend.sources.lock().unwrap());
    assert_eq!(sources.iter().map(|(_, length)| *length).collect::<Vec<_>>(), [SMALL, COARSE].repeat(4));
    for (from, length) in sources {
        assert!(from.is_aligned_to(length), "{length} at {from}");
    }
    drop(regions);
}

#[test]
fn mapping_requires_granularity_of_its_memory() {
    let backend = mixed();
    let memory = PhysicalMemory::create(&backend, COARSE, Properties::on(TWO)).unwrap();
    assert_eq!(memory.granularity().bytes(), COARSE);
    // Sizes are rounded up to it.
    let rounded = PhysicalMemory::create(&backend, SMALL, Properties::on(TWO)).unwrap();
    assert_eq!(rounded.size(), COARSE);
    let mut region = region(&backend, &[]);
    for units in [1, 3, 5] {
        let wrong = unaligned(region.map(Bytes(units * SMALL.0), &memory));
        assert_eq!(wrong.1, COARSE, "{units}");
    }
    assert_eq!(region.mapped(), Bytes::ZERO);
    region.map(COARSE, &memory).unwrap();
    // Memory of the first device still fits between.
    let fine = PhysicalMemory::create(&backend, SMALL, Properties::on(ONE)).unwrap();
    region.map(SMALL, &fine).unwrap();
    assert_eq!(region.mapped(), SMALL + COARSE);
}

/// Each way in which memory of the second device can come into the region.
#[test]
fn growth_and_layout_require_memory_granularity() {
    let backend = mixed();
    let coarse = PhysicalMemory::create(&backend, COARSE, Properties::on(TWO)).unwrap();
    let mut region = region(&backend, &[SMALL]);
    assert_eq!(unaligned(region.grow_to_on(TWO, SMALL + COARSE)), ("granularity", COARSE));
    assert_eq!(unaligned(region.grow_with(std::slice::from_ref(&coarse))), ("address", COARSE));
    let wanted = |offset| [MappedMemory { offset, memory: coarse.clone(), access: AccessMap::NONE }];
    let operation = Operation::ApplyChange;
    let here = region.apply_layout(operation, &wanted(SMALL), IDLE);
    assert_eq!(unaligned(here), ("address", COARSE));
    let elsewhere = region.apply_layout_elsewhere(operation, &wanted(SMALL), Placement::Anywhere, IDLE);
    assert_eq!(unaligned(elsewhere), ("address", COARSE));
    // The offset and the address suit the region, and their sum does not suit the memory.
    let between = Placement::Exact(Address(0x2200_0000_0000) + SMALL);
    let mut fine = Region::builder(&backend).on(ONE).reserve(SMALL).build().unwrap();
    let elsewhere = fine.apply_layout_elsewhere(operation, &wanted(COARSE), between, IDLE);
    assert_eq!(unaligned(elsewhere), ("address", COARSE));
    assert_eq!((region.mapped(), region.mappings().count()), (SMALL, 1));
    region.apply_layout(operation, &wanted(COARSE), IDLE).unwrap();
    assert_eq!((region.mapped(), region.end()), (COARSE, COARSE + COARSE));
}

/// The same machine, which states the granularity of each device and nothing else about granularities.
#[derive(Clone, Debug)]
struct Stated {
    host: HostBackend,
    devices: Vec<Device>,
}

// SAFETY: every call is passed to the host backend.
unsafe impl Backend for Stated {
    forward!(host: vendor, instance, driver, memory_info, can_access, capabilities, quirks, unmaps_runs);
    forward!(host: check_host_access, drop_log, deferred);

    fn devices(&self) -> &[Device] {
        &self.devices
    }
}

pass_calls_on!(Stated);

#[test]
fn backend_has_largest_device_granularity() {
    let host = mixed().host;
    let mut devices = host.devices().to_vec();
    let [small, coarse] = [SMALL, COARSE].map(|unit| Granularity::new(unit).unwrap());
    devices[1].granularity = coarse;
    let mut stated = Stated { host, devices };
    for _ in 0..2 {
        assert_eq!((stated.granularity(), stated.reservation_unit()), (coarse, coarse));
        let of = |device| stated.granularity_of(Operation::Map, &Properties::on(device)).unwrap();
        assert_eq!(
            [of(ONE), of(TWO)],
            stated.devices.iter().map(|one| one.granularity).collect::<Vec<_>>()[..]
        );
        // A region can get memory of any device.
        let region = Region::builder(&stated).on(ONE).reserve(SMALL).build().unwrap();
        assert_eq!((region.granularity(), region.reserved()), (coarse, COARSE));
        // Whichever device it is.
        (stated.devices[0].granularity, stated.devices[1].granularity) = (coarse, small);
    }
    stated.devices.clear();
    assert_eq!(stated.granularity(), Granularity::BYTE);
}

#[test]
fn unsized_region_reserves_for_all_memory() {
    let host = mixed().host;
    let mut devices = host.devices().to_vec();
    devices[1].total_memory = Bytes::mib(32);
    let stated = Stated { host, devices };
    for (device, reserved) in [(ONE, Bytes::mib(64)), (TWO, Bytes::mib(32))] {
        let region = Region::builder(&stated).on(device).build().unwrap();
        assert_eq!(region.reserved(), reserved, "{device}");
    }
}

#[test]
fn plain_device_gets_no_peer_access() {
    let host = mixed().host;
    let mut devices = host.devices().to_vec();
    devices[1].no_virtual_memory = Some("it is old".to_owned());
    let stated = Stated { host, devices };
    let error =
        Region::builder(&stated).on(ONE).access(TWO, Access::Read).reserve(SMALL).build().unwrap_err();
    let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
    assert!(reason.starts_with("device 1 has no virtual memory management (it is old)"), "{reason}");
}
