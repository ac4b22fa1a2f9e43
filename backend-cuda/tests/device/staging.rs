//! Copies to and from devices that run concurrently with other work.
#![allow(unsafe_code)]

use crate::support::*;
use gpu_vmm_core::{Address, Bytes, CopyCalls, CopyStream, DeviceId, Pinned, Properties, Reservation};
use gpu_vmm_cuda::{CudaBackend, CudaReservation};
use std::time::Instant;

/// Maps a device's memory with access for it.
fn mapped(backend: &CudaBackend, device: DeviceId, size: Bytes) -> CudaReservation {
    let mut reservation = reserve(backend, size, None);
    let memory = create_with(backend, size, Properties::on(device));
    // SAFETY: nothing is mapped there.
    unsafe { reservation.map(Bytes::ZERO, &memory) }.unwrap();
    set_access(&mut reservation, Bytes::ZERO, size, &[grant(device, gpu_vmm_core::Access::ReadWrite)]);
    reservation
}

/// Queues copies of the whole range to the host, chunk by chunk.
fn fetch(copy_stream: &mut dyn CopyStream, to: &dyn Pinned, from: Address, chunk: Bytes) {
    for offset in (0..to.size().0).step_by(chunk.0 as usize) {
        let length = Bytes(chunk.0.min(to.size().0 - offset));
        let to = to.start().as_ptr().wrapping_add(offset as usize);
        // SAFETY: both sides have this many bytes, and no code touches them until the copy stream has finished.
        unsafe { copy_stream.copy_to_host(to, from + Bytes(offset), length) }.unwrap();
    }
}

/// Queues copies of the whole range from the host, chunk by chunk.
fn send(copy_stream: &mut dyn CopyStream, to: Address, from: &dyn Pinned, chunk: Bytes) {
    for offset in (0..from.size().0).step_by(chunk.0 as usize) {
        let length = Bytes(chunk.0.min(from.size().0 - offset));
        let from = from.start().as_ptr().wrapping_add(offset as usize);
        // SAFETY: as above.
        unsafe { copy_stream.copy_from_host(to + Bytes(offset), from, length) }.unwrap();
    }
}

/// A size whose copy takes many times as long as a call.
const LONG: Bytes = Bytes::mib(256);

pub(crate) fn queuing_waits_for_nothing(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let (mut reservation, mut other) = (mapped(backend, DEVICE, LONG), mapped(backend, DEVICE, granule));
    let base = at(&reservation, Bytes::ZERO);
    let pinned = backend.pin(LONG).unwrap();
    let mut copy_stream = backend.copy_stream(DEVICE).unwrap();
    let began = Instant::now();
    for _ in 0..4 {
        fetch(&mut *copy_stream, &*pinned, base, LONG);
        send(&mut *copy_stream, base, &*pinned, LONG);
    }
    let queued = began.elapsed();
    // The default stream does not wait for the copy stream either.
    // SAFETY: the bytes are mapped.
    unsafe { backend.fill(DEVICE, at(&other, Bytes::ZERO), granule, 0) }.unwrap();
    let beside = began.elapsed();
    copy_stream.finish().unwrap();
    let all = began.elapsed();
    println!("8 copies of {LONG}: queued after {queued:?}, a fill beside them done {beside:?}, all {all:?}");
    assert!(queued < all / 2 && beside < all / 2);
    unmap(&mut reservation, Bytes::ZERO, LONG);
    unmap(&mut other, Bytes::ZERO, granule);
}
