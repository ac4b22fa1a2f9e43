//! Two machines, a region with every feature of a region, and a comparison of two regions.

use crate::{ONE, TWO, UNIT, units};
use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Access, Address, Backend, Bytes, CopyCalls, Device, DeviceId, MemoryCalls, PhysicalMemory, Placement,
    Properties, Region, SyncCalls,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_share::{Channel, Exporter, ImportOptions, ImportedRegion};

pub(crate) const RW: Access = Access::ReadWrite;

/// Returns addresses that no program of this machine uses, 4 GiB for each number. Each test that depends on free addresses has a
/// number of its own.
pub(crate) fn far(number: u64) -> Placement {
    Placement::Exact(Address(0x1000_0000_0000 + (number << 32)))
}

/// Opens a machine with two devices.
pub(crate) fn machine() -> HostBackend {
    HostConfig::new().devices(2).memory(Bytes::mib(64)).granularity(UNIT).open().unwrap()
}

/// Creates `count` units of shareable memory.
pub(crate) fn piece<B: Backend>(backend: &B, device: DeviceId, count: u64) -> PhysicalMemory<B> {
    PhysicalMemory::create(backend, units(count), Properties::on(device).shareable()).unwrap()
}

/// Maps memory and writes `mark` to both its ends.
pub(crate) fn put<B: Backend>(region: &mut Region<B>, at: u64, memory: &PhysicalMemory<B>, mark: u8) {
    region.map(units(at), memory).unwrap();
    region.set_access(units(at), memory.size(), memory.device(), RW).unwrap();
    region.write(units(at), &[mark; 8]).unwrap();
    region.write(units(at) + memory.size() - Bytes(8), &[mark; 8]).unwrap();
}

/// Creates an empty region with 64 units of addresses.
pub(crate) fn empty<B: Backend>(backend: &B) -> Region<B> {
    Region::builder(backend).memory(Properties::on(ONE).shareable()).reserve(units(64)).build().unwrap()
}

/// Creates a region with two units, a hole of one, one unit, the first two again, and two units of another device: up to unit 8.
pub(crate) fn full<B: Backend>(backend: &B) -> Region<B> {
    let mut region = empty(backend);
    let (first, second, third) = (piece(backend, ONE, 2), piece(backend, ONE, 1), piece(backend, TWO, 2));
    put(&mut region, 0, &first, 1);
    put(&mut region, 3, &second, 2);
    put(&mut region, 4, &first, 3);
    put(&mut region, 6, &third, 4);
    region
}

/// Returns each mapping's offset and size, and the bytes at both its ends.
pub(crate) fn seen<B: Backend>(region: &Region<B>) -> Vec<(Bytes, Bytes, [u8; 8], [u8; 8])> {
    let read = |offset| {
        let mut bytes = [0; 8];
        region.read(offset, &mut bytes).unwrap();
        bytes
    };
    let mappings = region.mappings();
    mappings
        .map(|one| {
            let (offset, length) = (one.offset, one.length);
            (offset, length, read(offset), read(offset + length - Bytes(8)))
        })
        .collect()
}

/// Shares a region and imports it.
pub(crate) fn shared<A: Backend, B: Backend>(
    region: &Region<A>,
    import: &ImportOptions,
    importer: &B,
) -> (Exporter<A>, ImportedRegion<B>) {
    let (ours, theirs) = Channel::pair().unwrap();
    let exporter = Exporter::share(ours, region).unwrap();
    (exporter, import.receive(importer, theirs).unwrap())
}

/// A host backend whose devices have no UUID.
#[derive(Clone, Debug)]
pub(crate) struct WithoutUuids {
    inner: HostBackend,
    devices: Vec<Device>,
}

impl WithoutUuids {
    pub(crate) fn open() -> Self {
        let inner = machine();
        let mut devices = inner.devices().to_vec();
        devices.iter_mut().for_each(|device| device.uuid = None);
        Self { inner, devices }
    }
}

// SAFETY: every call is forwarded to the host backend, which meets the requirements.
unsafe impl Backend for WithoutUuids {
    forward!(inner: vendor, instance, driver, memory_info, can_access, capabilities, quirks, unmaps_runs);
    forward!(inner: granularity, granularity_of, recommended_granularity, check_host_access);
    forward!(inner: reservation_unit, drop_log, deferred);

    fn devices(&self) -> &[Device] {
        &self.devices
    }
}

// SAFETY: as above.
unsafe impl MemoryCalls for WithoutUuids {
    type Handle = <HostBackend as MemoryCalls>::Handle;
    type Reservation = <HostBackend as MemoryCalls>::Reservation;
    forward!(inner: MemoryCalls);
}

// SAFETY: as above.
unsafe impl CopyCalls for WithoutUuids {
    forward!(inner: CopyCalls);
}

// SAFETY: as above.
unsafe impl SyncCalls for WithoutUuids {
    forward!(inner: SyncCalls);
}
