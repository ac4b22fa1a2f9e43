//! The traits' calls for tests: a failure is a panic, and each call's contract is upheld by the way in which tests use it.
#![allow(unsafe_code)]

use gpu_vmm_core::{
    Access, Address, Alignment, Backend, Bytes, CopyCalls, DeviceId, Grant, Handle, MemoryCalls, Operation,
    Properties, Reservation,
};
use gpu_vmm_cuda::{CudaBackend, CudaHandle, CudaReservation};
use gpu_vmm_testkit::{TestKit, Walked};

/// The device of tests that need one.
pub(crate) const DEVICE: DeviceId = DeviceId(0);

/// Returns `count` granules of the device.
pub(crate) fn granules(backend: &CudaBackend, count: u64) -> Bytes {
    Bytes(backend.device(Operation::QueryDevice, DEVICE).unwrap().granularity.bytes().0 * count)
}

/// Reserves addresses aligned to a granule.
pub(crate) fn reserve(backend: &CudaBackend, size: Bytes, hint: Option<Address>) -> CudaReservation {
    let alignment = Alignment::new(granules(backend, 1)).unwrap();
    // SAFETY: tests reserve whole granules, aligned to a granule.
    unsafe { backend.reserve(size, alignment, hint) }.unwrap()
}

/// Creates memory of the test's device.
pub(crate) fn create(backend: &CudaBackend, size: Bytes) -> CudaHandle {
    create_with(backend, size, Properties::on(DEVICE))
}

/// Creates memory.
pub(crate) fn create_with(backend: &CudaBackend, size: Bytes, properties: Properties) -> CudaHandle {
    // SAFETY: tests create whole granules, on devices that exist.
    unsafe { backend.create(size, &properties) }.unwrap()
}

/// Maps a handle with read and write access for the test's device.
pub(crate) fn map(reservation: &mut CudaReservation, offset: Bytes, handle: &CudaHandle) {
    // SAFETY: tests map at free offsets.
    unsafe { reservation.map(offset, handle) }.unwrap();
    set_access(reservation, offset, handle.size(), &[grant(DEVICE, Access::ReadWrite)]);
}

/// Sets access.
pub(crate) fn set_access(reservation: &mut CudaReservation, offset: Bytes, length: Bytes, grants: &[Grant]) {
    // SAFETY: tests pass whole mappings.
    unsafe { reservation.set_access(offset, length, grants) }.unwrap();
}

/// Removes mappings.
pub(crate) fn unmap(reservation: &mut CudaReservation, offset: Bytes, length: Bytes) {
    // SAFETY: tests pass whole mappings, and each call that starts work waits for it.
    unsafe { reservation.unmap(offset, length) }.unwrap();
}

/// Queries the device's access from the driver.
pub(crate) fn access(reservation: &CudaReservation, offset: Bytes) -> Access {
    // SAFETY: tests query only mapped offsets.
    unsafe { reservation.access(offset, DEVICE) }.unwrap()
}

/// Returns a grant for a device.
pub(crate) const fn grant(device: DeviceId, access: Access) -> Grant {
    Grant { device, access }
}

/// Returns the address of an offset.
pub(crate) fn at(reservation: &CudaReservation, offset: Bytes) -> Address {
    reservation.range().base + offset
}

/// Copies bytes from the host.
pub(crate) fn write(backend: &CudaBackend, to: Address, bytes: &[u8]) {
    // SAFETY: tests write memory that they have mapped for writing.
    unsafe { backend.copy_from_host(DEVICE, to, bytes) }.unwrap();
}

/// Copies bytes to the host.
pub(crate) fn read(backend: &CudaBackend, from: Address, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; length];
    // SAFETY: tests read memory that they have mapped for reading.
    unsafe { backend.copy_to_host(DEVICE, &mut bytes, from) }.unwrap();
    bytes
}

/// Writes the pattern by a kernel.
pub(crate) fn write_pattern(backend: &CudaBackend, device: DeviceId, to: Address, length: Bytes, seed: u64) {
    // SAFETY: tests write memory that they have mapped for writing.
    unsafe { backend.write_pattern(device, to, length, seed) }.unwrap();
}

/// Counts wrong words by a kernel.
pub(crate) fn count_wrong(
    backend: &CudaBackend,
    device: DeviceId,
    from: Address,
    length: Bytes,
    seed: u64,
) -> u64 {
    // SAFETY: tests read memory that they have mapped for reading.
    unsafe { backend.count_wrong(device, from, length, seed) }.unwrap()
}

/// Returns the free memory of the test's device.
pub(crate) fn free(backend: &CudaBackend) -> Bytes {
    backend.memory_info(DEVICE).unwrap().free
}

/// Walks a list in the device's memory.
pub(crate) fn walk(backend: &CudaBackend, head: Address, most: u64) -> Walked {
    // SAFETY: tests build lists in memory that they have mapped.
    unsafe { backend.walk_list(DEVICE, head, most) }.unwrap()
}
