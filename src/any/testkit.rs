//! The test kit of the backend that was chosen at run time.
#![allow(unsafe_code)]

use super::AnyBackend;
use gpu_vmm_core::testkit::{CaptureMode, Graph, TestKit, Walked, WorkStream};
use gpu_vmm_core::{Address, Bytes, DeviceId, Result, Stream};

impl TestKit for AnyBackend {
    fn pattern_by(&self) -> &'static str {
        dispatch!(*self, Self, ref backend => backend.pattern_by())
    }

    fn reports_faults(&self) -> bool {
        dispatch!(*self, Self, ref backend => backend.reports_faults())
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.write_pattern(device, at, length, seed) })
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.count_wrong(device, at, length, seed) })
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.walk_list(device, head, most) })
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        dispatch!(*self, Self, ref backend => backend.own_stream(device))
    }

    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        dispatch!(*self, Self, ref backend => backend.blocking_stream(device))
    }

    fn stream_elsewhere(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        dispatch!(*self, Self, ref backend => backend.stream_elsewhere(device))
    }

    fn in_context_of(&self, stream: &dyn WorkStream, act: &mut dyn FnMut()) -> Result<()> {
        dispatch!(*self, Self, ref backend => backend.in_context_of(stream, act))
    }

    unsafe fn open_in_context_of(&self, device: DeviceId, stream: &dyn WorkStream) -> Result<Self> {
        dispatch!(*self, Self, ref backend, AnyBackend as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.open_in_context_of(device, stream) }.map(wrap)
        })
    }

    fn per_thread_stream(&self) -> Option<Stream<'static>> {
        dispatch!(*self, Self, ref backend => backend.per_thread_stream())
    }

    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, mode: CaptureMode) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.begin_capture(device, stream, mode) })
    }

    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        dispatch!(*self, Self, ref backend => backend.end_capture(device, stream))
    }

    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()> {
        dispatch!(*self, Self, ref backend => {
            // SAFETY: as in `create`.
            unsafe { backend.start_pattern_on(device, stream, at, length, seed, rounds) }
        })
    }
}
