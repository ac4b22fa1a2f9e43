//! Copies of queues on host memory: the memory that they may use, and the calls that reach their streams.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::event::{gpu_vmm_event_free, gpu_vmm_event_new};
use crate::handles;
use crate::status::{GPU_VMM_INVALID_ARGUMENT, GPU_VMM_OK};
use gpu_vmm::Placement;
use gpu_vmm::host::HostConfig;
use std::ptr::null_mut;

fn open() -> AnyBackend {
    AnyBackend::from(HostConfig::new().devices(2).open().unwrap())
}

fn region(backend: &AnyBackend, size: Bytes) -> Region {
    // At such a place the addresses behind the region are free.
    let builder = Memory::builder(backend).at(Placement::Restorable).reserve(Bytes::mib(2));
    let mut memory = builder.extend_by(Bytes::mib(2)).build().unwrap();
    memory.grow_to(size).unwrap();
    Region::of(backend, memory)
}

fn pinned(backend: &AnyBackend, size: Bytes) -> Pinned {
    Pinned { backend: backend.clone(), memory: Arc::from(backend.pin(size).unwrap()) }
}

fn queue(backend: &AnyBackend, device: DeviceId) -> CopyQueue {
    let state = Lock::new(Queued { stream: backend.copy_stream(device).unwrap(), memory: InUse::default() });
    CopyQueue { backend: backend.clone(), device, state }
}

#[test]
fn copy_spans_reservations_and_keeps_memory() {
    // The place is rounded up to 32 MiB.
    let (host, size) = (open(), Bytes::mib(34));
    let (region, pinned) = (region(&host, size), pinned(&host, size));
    assert!(region.memory.with(|region| region.reservations().len()).unwrap() > 1);
    let bytes: Vec<u8> = (0..size.0).map(|at| (at / 4096) as u8).collect();
    let data = pinned.memory.start().as_ptr();
    // SAFETY: the memory has the size, and no copy is queued.
    unsafe { data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let queue = handles::add(queue(&host, DeviceId(0))).unwrap();
    // SAFETY: the queue is not freed before the last call, and no copy is queued when the memory is changed.
    unsafe {
        let copies = handles::find(queue).unwrap();
        queue_copy(copies, Direction::ToRegion, &region, 4096, &pinned, 0, size.0 - 4096).unwrap();
        assert_eq!(copies.state.lock(Operation::FinishCopies).unwrap().memory.len(), 1);
        assert_eq!(gpu_vmm_copy_queue_finish(queue), GPU_VMM_OK);
        assert!(copies.state.lock(Operation::FinishCopies).unwrap().memory.len() == 0, "it can be freed");
        let mut found = vec![0; bytes.len() - 4096];
        region.memory.read(Bytes(4096), &mut found).unwrap();
        assert!(found == bytes[..found.len()]);
        data.write_bytes(0, bytes.len());
        queue_copy(copies, Direction::ToHost, &region, 4096, &pinned, 8192, size.0 - 8192).unwrap();
        assert_eq!(gpu_vmm_copy_queue_finish(queue), GPU_VMM_OK);
        let copied = std::slice::from_raw_parts(data, bytes.len());
        assert!(copied[..8192] == [0; 8192] && copied[8192..] == bytes[..bytes.len() - 8192]);
        gpu_vmm_copy_queue_free(queue);
    }
}

/// A program may allocate and free page-locked memory for each copy, and never finish the queue.
#[test]
fn memory_returns_when_its_copy_ends() {
    let (host, size) = (open(), Bytes::mib(2));
    let (region, own) = (region(&host, size), queue(&host, DeviceId(0)));
    let copy =
        |pinned: &Pinned| queue_copy(&own, Direction::ToRegion, &region, 0, pinned, 0, size.0).unwrap();
    let freed: Vec<_> = (0..5)
        .map(|_| {
            let pinned = pinned(&host, size);
            copy(&pinned);
            copy(&pinned);
            Arc::downgrade(&pinned.memory)
        })
        .collect();
    assert_eq!(own.state.lock(Operation::FinishCopies).unwrap().memory.len(), 1);
    let kept = freed.iter().filter(|memory| memory.upgrade().is_some()).count();
    assert_eq!(kept, 1, "only the last copy was not looked at");
}

#[test]
fn queue_writes_only_with_device_access() {
    let (host, size) = (open(), Bytes::mib(2));
    let (ours, buffer, own) = (region(&host, size), pinned(&host, size), queue(&host, DeviceId(0)));
    let only_reads = |region: &mut Memory<_>| region.set_access(Bytes::ZERO, size, DeviceId(0), Access::Read);
    ours.memory.change(Operation::SetAccess, true, only_reads).unwrap();
    let copy = |direction| status(|| queue_copy(&own, direction, &ours, 0, &buffer, 0, 8));
    assert_eq!(copy(Direction::ToRegion), crate::status::GPU_VMM_ACCESS_DENIED);
    assert_eq!(copy(Direction::ToHost), GPU_VMM_OK);
}

/// A stream that copies nothing, notes its other calls and fails at the end.
#[derive(Debug)]
struct Failing(Arc<std::sync::Mutex<Vec<&'static str>>>);

// SAFETY: nothing relies on the results of this stream.
unsafe impl CopyStream for Failing {
    unsafe fn copy_to_host(&mut self, _: *mut u8, _: gpu_vmm::Address, _: Bytes) -> gpu_vmm::Result<()> {
        Ok(())
    }

    unsafe fn copy_from_host(&mut self, _: gpu_vmm::Address, _: *const u8, _: Bytes) -> gpu_vmm::Result<()> {
        Ok(())
    }

    unsafe fn hold(&mut self, _: &dyn gpu_vmm::Event) -> gpu_vmm::Result<()> {
        self.0.lock().unwrap().push("hold");
        Ok(())
    }

    unsafe fn record(&mut self, _: &mut dyn gpu_vmm::Event) -> gpu_vmm::Result<()> {
        self.0.lock().unwrap().push("record");
        Ok(())
    }

    fn finish(&mut self) -> gpu_vmm::Result<()> {
        self.0.lock().unwrap().push("finish");
        Err(gpu_vmm::Error::new(Operation::FinishCopies, gpu_vmm::Detail::Forked))
    }
}

#[test]
fn queue_events_reach_its_stream() {
    let host = open();
    let calls = Arc::<std::sync::Mutex<Vec<&str>>>::default();
    let stream: Box<dyn CopyStream> = Box::new(Failing(Arc::clone(&calls)));
    let state = Lock::new(Queued { stream, memory: InUse::default() });
    let made = CopyQueue { backend: host.clone(), device: DeviceId(0), state };
    let (queue, backend) = (handles::add(made).unwrap(), handles::add(Backend(host)).unwrap());
    let mut event = null_mut();
    // SAFETY: the objects are freed after their last use, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_event_new(backend, 0, &raw mut event), GPU_VMM_OK);
        assert_eq!(gpu_vmm_copy_queue_record(queue, event), GPU_VMM_OK);
        assert_eq!(gpu_vmm_copy_queue_hold(queue, event), GPU_VMM_OK);
        assert_eq!(gpu_vmm_copy_queue_finish(queue), crate::status::GPU_VMM_FORKED);
        gpu_vmm_event_free(event);
        gpu_vmm_copy_queue_free(queue);
        crate::backend::gpu_vmm_close(backend);
    }
    assert_eq!(*calls.lock().unwrap(), ["record", "hold", "finish"]);
}

#[test]
fn queue_refuses_foreign_device_or_backend() {
    let (host, stranger, size) = (open(), open(), Bytes::mib(2));
    let copy = |queue: &CopyQueue, region: &Region, pinned: &Pinned, direction| {
        status(|| queue_copy(queue, direction, region, 0, pinned, 0, 8))
    };
    let (ours, buffer, own) = (region(&host, size), pinned(&host, size), queue(&host, DeviceId(0)));
    let (theirs, their_buffer) = (region(&stranger, size), pinned(&stranger, size));
    // The other device may write the memory, and does not own it.
    let (other, access) = (queue(&host, DeviceId(1)), Access::ReadWrite);
    let all = |region: &mut Memory<_>| region.set_access(Bytes::ZERO, size, DeviceId(1), access);
    ours.memory.change(Operation::SetAccess, true, all).unwrap();
    for direction in [Direction::ToRegion, Direction::ToHost] {
        let refused = [
            copy(&other, &ours, &buffer, direction),
            copy(&own, &theirs, &buffer, direction),
            copy(&own, &ours, &their_buffer, direction),
        ];
        assert_eq!(refused, [GPU_VMM_INVALID_ARGUMENT; 3]);
        assert_eq!(copy(&own, &ours, &buffer, direction), GPU_VMM_OK);
    }
    let (queue, backend) = (handles::add(own).unwrap(), handles::add(Backend(stranger)).unwrap());
    let mut event = null_mut();
    // SAFETY: the objects are freed after their last use, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_event_new(backend, 0, &raw mut event), GPU_VMM_OK);
        let refused = [gpu_vmm_copy_queue_hold(queue, event), gpu_vmm_copy_queue_record(queue, event)];
        assert_eq!(refused, [GPU_VMM_INVALID_ARGUMENT; 2]);
        gpu_vmm_event_free(event);
        gpu_vmm_copy_queue_free(queue);
        crate::backend::gpu_vmm_close(backend);
    }
}
