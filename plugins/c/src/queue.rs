//! Copies between a region and page-locked host memory that are queued on a stream.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

mod in_use;

use crate::backend::Backend;
use crate::call::{held, status};
use crate::event::Event;
use crate::handles::{Kind, Object};
use crate::region::Region;
use crate::status::{CallResult, Failure, GPU_VMM_OUT_OF_RANGE, Status};
use crate::texts::{clear, give, give_box, object, take_box};
use gpu_vmm::extend::{LendMemory as _, Lock, check_same};
use gpu_vmm::{
    Access, AnyBackend, Bytes, CopyCalls as _, CopyStream, DeviceId, Grant, OffsetRange, Operation,
    Pinned as Locked, Region as Memory, Stream,
};
use in_use::InUse;
use std::ffi::c_void;
use std::sync::Arc;

/// Page-locked host memory, which devices copy to and from at full speed.
/// Calls of several threads run at the same time; no lock protects its bytes.
#[derive(Debug)]
pub struct Pinned {
    backend: AnyBackend,
    memory: Arc<dyn Locked>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Pinned {
    const KIND: Kind = Kind::Pinned;
}

/// A queue of copies between one device and page-locked memory. It has no order with other streams except by events:
/// gpu_vmm_copy_queue_hold and gpu_vmm_copy_queue_record. Calls of several threads take turns.
#[derive(Debug)]
pub struct CopyQueue {
    backend: AnyBackend,
    device: DeviceId,
    state: Lock<Queued>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for CopyQueue {
    const KIND: Kind = Kind::CopyQueue;
}

#[derive(Debug)]
struct Queued {
    /// Dropped first: its destructor waits for the copies.
    stream: Box<dyn CopyStream>,
    memory: InUse,
}

/// Allocates page-locked host memory of `size` bytes. Allocating takes longer than a copy. Free it with
/// gpu_vmm_pinned_free. CUDA: cuMemHostRegister or cuMemHostAlloc; HIP: hipHostMalloc.
///
/// Returns GPU_VMM_DRIVER if the host has too little memory.
///
/// # Safety
///
/// `backend` is null or an open backend. `pinned` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pinned_new(
    backend: *const Backend,
    size: u64,
    pinned: *mut *mut Pinned,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(pinned) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            give_box("pinned", pinned, || {
                Ok(Pinned { backend: backend.clone(), memory: Arc::from(backend.pin(Bytes(size))?) })
            })
        }
    })
}

/// Frees page-locked memory, after the copies that are queued with it: at once if they are done, else in a later call with their queue.
/// Null does nothing.
///
/// # Safety
///
/// `pinned` is null or comes from gpu_vmm_pinned_new, and was not freed yet. Nothing uses its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pinned_free(pinned: *mut Pinned) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(pinned) }
}

/// Returns the address of page-locked memory, for the CPU.
///
/// # Safety
///
/// `pinned` is null or page-locked memory. `data` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pinned_data(pinned: *const Pinned, data: *mut *mut c_void) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(data) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("data", data, object("pinned", pinned)?.memory.start().as_ptr().cast()) }
    })
}

/// Creates a queue for copies of one device. Free it with gpu_vmm_copy_queue_free. CUDA: cuStreamCreate; HIP:
/// hipStreamCreateWithFlags.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE.
///
/// # Safety
///
/// `backend` is null or an open backend. `queue` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_new(
    backend: *const Backend,
    device: u32,
    queue: *mut *mut CopyQueue,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(queue) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, device) = (&object("backend", backend)?.0, DeviceId(device));
            give_box("queue", queue, || {
                let state =
                    Lock::new(Queued { stream: backend.copy_stream(device)?, memory: InUse::default() });
                Ok(CopyQueue { backend: backend.clone(), device, state })
            })
        }
    })
}

/// Frees a queue after its copies. Null does nothing.
///
/// # Safety
///
/// `queue` is null or comes from gpu_vmm_copy_queue_new, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_free(queue: *mut CopyQueue) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(queue) }
}

/// A direction of a queued copy.
#[derive(Clone, Copy)]
enum Direction {
    ToRegion,
    ToHost,
}

/// Queues a copy after its checks. The region is locked meanwhile, and calls that take its memory away wait for the device.
fn queue_copy(
    queue: &CopyQueue,
    direction: Direction,
    region: &Region,
    offset: u64,
    pinned: &Pinned,
    pinned_offset: u64,
    size: u64,
) -> CallResult {
    let (operation, need) = match direction {
        Direction::ToRegion => (Operation::QueueCopyFromHost, Access::ReadWrite),
        Direction::ToHost => (Operation::QueueCopyToHost, Access::Read),
    };
    check_same(operation, &pinned.backend, &queue.backend)?;
    check_same(operation, &region.backend, &queue.backend)?;
    let limit = pinned.memory.size().0;
    if pinned_offset.checked_add(size).is_none_or(|end| end > limit) {
        let (size, offset, limit) = (Bytes(size), Bytes(pinned_offset), Bytes(limit));
        let text =
            format!("{operation}: {size} at offset {offset} exceeds the page-locked memory of {limit}");
        return Err(Failure::new(GPU_VMM_OUT_OF_RANGE, text));
    }
    if size == 0 {
        return Ok(());
    }
    let range = OffsetRange { offset: Bytes(offset), length: Bytes(size) };
    let mut state = held(&queue.state, operation)?;
    let Queued { stream, memory } = &mut *state;
    memory.collect(&queue.backend);
    memory.keep(&pinned.memory);
    // SAFETY: the offset lies in the memory, as compared above.
    let mut host = unsafe { pinned.memory.start().as_ptr().add(pinned_offset as usize) };
    let queued = region.memory.with(|region| -> CallResult {
        let grant = Grant { device: queue.device, access: need };
        let mut device = region.lend(operation, range, grant, Stream::DEFAULT)?;
        for length in pieces(region, queue.device, range)? {
            // SAFETY: the piece is mapped in one reservation, and the queue's device owns it with the access; `lend` has checked
            // that. Calls that unmap it wait for the device first. The page-locked memory is kept until the copy is done.
            unsafe {
                match direction {
                    Direction::ToRegion => stream.copy_from_host(device, host, length)?,
                    Direction::ToHost => stream.copy_to_host(host, device, length)?,
                }
                host = host.add(length.0 as usize);
            }
            device = device + length;
        }
        Ok(())
    });
    // Also after an error: some pieces may be queued.
    memory.queued(&queue.backend, queue.device, &mut **stream);
    queued?
}

/// The lengths of the pieces of a mapped range that lie in one reservation each. Refuses memory of another device.
fn pieces(region: &Memory<AnyBackend>, device: DeviceId, range: OffsetRange) -> CallResult<Vec<Bytes>> {
    let mut next = range.offset;
    while next < range.end() {
        let Some(mapping) = region.mapping_at(next) else { break };
        if mapping.memory.device() != device {
            let owner = mapping.memory.device();
            return Err(Failure::invalid(format!(
                "queue copy: {owner} owns the memory at offset {next}, and the queue is one of {device}"
            )));
        }
        next = mapping.offset + mapping.length;
    }
    let begin = region.address();
    let lengths = region.reservations().filter_map(|reservation| {
        let from = Bytes(reservation.base.0 - begin.0).max(range.offset);
        let to = Bytes(reservation.end().0 - begin.0).min(range.end());
        (from < to).then(|| to - from)
    });
    Ok(lengths.collect())
}

/// Queues a copy of `size` bytes of page-locked memory to a region and returns at once. Until gpu_vmm_copy_queue_finish, nothing may
/// write to either range. The queue's device must own the range and have write access. CUDA: cuMemcpyHtoDAsync; HIP: hipMemcpyAsync.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ACCESS_DENIED, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for
/// memory of another device or backend.
///
/// # Safety
///
/// `queue` is null or a queue, `region` null or a region, `pinned` null or page-locked memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_write(
    queue: *const CopyQueue,
    region: *const Region,
    offset: u64,
    pinned: *const Pinned,
    pinned_offset: u64,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (queue, region, pinned) =
            unsafe { (object("queue", queue)?, object("region", region)?, object("pinned", pinned)?) };
        queue_copy(queue, Direction::ToRegion, region, offset, pinned, pinned_offset, size)
    })
}

/// Queues a copy of `size` bytes of a region to page-locked memory, as gpu_vmm_copy_queue_write does in the other direction. The
/// bytes are there after gpu_vmm_copy_queue_finish. CUDA: cuMemcpyDtoHAsync; HIP: hipMemcpyAsync.
///
/// Returns the statuses of gpu_vmm_copy_queue_write.
///
/// # Safety
///
/// `queue` is null or a queue, `region` null or a region, `pinned` null or page-locked memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_read(
    queue: *const CopyQueue,
    region: *const Region,
    offset: u64,
    pinned: *const Pinned,
    pinned_offset: u64,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (queue, region, pinned) =
            unsafe { (object("queue", queue)?, object("region", region)?, object("pinned", pinned)?) };
        queue_copy(queue, Direction::ToHost, region, offset, pinned, pinned_offset, size)
    })
}

/// Makes all copies that are queued from now on wait for the work that an event has recorded, such as the work of the caller's stream. The
/// CPU does not wait, except on host memory. CUDA: cuStreamWaitEvent; HIP: hipStreamWaitEvent.
///
/// Returns GPU_VMM_INVALID_ARGUMENT for an event of another backend.
///
/// The event must not record work of a stream that captures: later copies would become part of the graph, and
/// gpu_vmm_copy_queue_finish would not wait for them.
///
/// # Safety
///
/// `queue` is null or a queue, `event` null or an event that no capturing stream has recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_hold(queue: *const CopyQueue, event: *const Event) -> Status {
    status(|| {
        let operation = Operation::StreamWaitEvent;
        // SAFETY: guaranteed by the caller.
        let (queue, event) = unsafe { (object("queue", queue)?, object("event", event)?) };
        check_same(operation, &event.backend, &queue.backend)?;
        let mut state = held(&queue.state, operation)?;
        state.memory.collect(&queue.backend);
        // SAFETY: both are of one backend, as compared above.
        Ok(unsafe { state.stream.hold(&**held(&event.state, operation)?) }?)
    })
}

/// Records the copies that are queued now in an event of the queue's device. With gpu_vmm_event_hold, work on any stream waits for them.
/// CUDA: cuEventRecord; HIP: hipEventRecord.
///
/// Returns GPU_VMM_INVALID_ARGUMENT for an event of another device or backend.
///
/// # Safety
///
/// `queue` is null or a queue, `event` null or an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_record(queue: *const CopyQueue, event: *const Event) -> Status {
    status(|| {
        let operation = Operation::RecordEvent;
        // SAFETY: guaranteed by the caller.
        let (queue, event) = unsafe { (object("queue", queue)?, object("event", event)?) };
        check_same(operation, &event.backend, &queue.backend)?;
        let mut state = held(&queue.state, operation)?;
        state.memory.collect(&queue.backend);
        // SAFETY: both are of one backend, as compared above.
        Ok(unsafe { state.stream.record(&mut **held(&event.state, operation)?) }?)
    })
}

/// Waits until all queued copies are done. Returns the error of one that failed.
///
/// # Safety
///
/// `queue` is null or a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_copy_queue_finish(queue: *const CopyQueue) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let queue = unsafe { object("queue", queue) }?;
        let mut state = held(&queue.state, Operation::FinishCopies)?;
        let finished = state.stream.finish();
        // `finish` returns only after no copy uses the memory any more, also after an error.
        state.memory.clear();
        Ok(finished?)
    })
}

#[cfg(test)]
mod tests;
