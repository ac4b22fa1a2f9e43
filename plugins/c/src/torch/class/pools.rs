//! Private pools and their checkpoints.

use crate::call::status;
use crate::status::{CallResult, Status};
use crate::texts::{clear, give, give_box, object, required, take_box};
use crate::torch::graphs::MempoolId;
use crate::torch::private::{Checkpoint, PrivatePools};
use crate::torch::process::device;
use crate::torch::table::TorchBlock;
use gpu_vmm::{Address, Stream};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

/// A function that receives blocks one by one, with the context of its caller; null for none.
pub type TorchVisit = Option<unsafe extern "C" fn(*mut c_void, *const TorchBlock)>;

fn of_device(number: c_int, work: impl FnOnce(&'static PrivatePools) -> CallResult) -> Status {
    status(|| work(&device(number)?.private))
}

/// Creates a private pool, or adds a user to it: a graph, a `torch.cuda.MemPool`, or code that allocates from one.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_pool_acquire(number: c_int, id: MempoolId) -> Status {
    of_device(number, |pools| pools.acquire(id))
}

/// Removes a user of a private pool. With the last one, the pool's free blocks return to the general pool; those that graphs may
/// use do so in gpu_vmm_torch_collect or when memory is short.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_pool_release(number: c_int, id: MempoolId) -> Status {
    of_device(number, |pools| pools.release(id))
}

/// Notes that the caller diverts requests to a private pool from now on. Until the end the pool's memory that graphs may use stays in it.
/// `stream` is the one that may capture a graph meanwhile: while it does, the library waits for no device. Null is none.
///
/// # Safety
///
/// `stream` is null or a stream of PyTorch's vendor that is live until gpu_vmm_torch_pool_end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_pool_begin(
    number: c_int,
    id: MempoolId,
    stream: *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    of_device(number, |pools| pools.begin(id, unsafe { Stream::from_raw(stream) }))
}

/// Notes that the caller no longer diverts requests to a private pool. If it captured a graph, the capture has ended.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_pool_end(number: c_int, id: MempoolId) -> Status {
    of_device(number, |pools| pools.end(id))
}

/// Returns the number of a private pool's users; 0 if there is no such pool.
///
/// # Safety
///
/// `uses` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_pool_uses(number: c_int, id: MempoolId, uses: *mut u64) -> Status {
    // SAFETY: null or writable, as the caller guarantees.
    unsafe { clear(uses) };
    of_device(number, |pools| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("uses", uses, pools.uses(id)? as u64) }
    })
}

/// Sets whether the free blocks of a private pool may serve other requests when memory is short.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_pool_use_on_oom(number: c_int, id: MempoolId, use_on_oom: bool) -> Status {
    of_device(number, |pools| pools.set_on_oom(id, use_on_oom))
}

/// Gives the memory that a private pool allocates from now on a tag of its own, to suspend and resume it by gpu_vmm_suspend and
/// gpu_vmm_resume. Call it before the pool's first allocation: other memory of private pools has the tag "torch graphs".
///
/// # Safety
///
/// `tag` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_pool_tag(number: c_int, id: MempoolId, tag: *const c_char) -> Status {
    of_device(number, |pools| {
        // SAFETY: guaranteed by the caller.
        pools.set_tag(id, unsafe { required("tag", tag) }?)
    })
}

/// Records which blocks of a private pool are live, and calls `visit` for each of them, by address. Free the
/// checkpoint with gpu_vmm_torch_checkpoint_free.
///
/// # Safety
///
/// `checkpoint` is null or points to a writable pointer. `visit` is null or a function that accepts `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_checkpoint(
    number: c_int,
    id: MempoolId,
    visit: TorchVisit,
    context: *mut c_void,
    checkpoint: *mut *mut Checkpoint,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(checkpoint) };
    of_device(number, |pools| {
        let make = || {
            let made = pools.checkpoint(id)?;
            // SAFETY: guaranteed by the caller.
            unsafe { visit_all(&made.blocks, visit, context) };
            Ok(made)
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give_box("checkpoint", checkpoint, make) }
    })
}

/// Restores a checkpoint of a private pool: exactly its blocks are live then. Calls `freed` for each block that was live before,
/// and then `allocated` for each block of the checkpoint; a block that is in both is passed to both. Free blocks of the pool stay
/// in it, so that the caller may restore any checkpoint that is not older than the pool. Returns GPU_VMM_NOT_FOUND if a block of
/// the checkpoint is gone; nothing has changed then.
///
/// # Safety
///
/// `checkpoint` is null or a checkpoint. The functions accept `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_restore(
    number: c_int,
    checkpoint: *const Checkpoint,
    freed: TorchVisit,
    allocated: TorchVisit,
    context: *mut c_void,
) -> Status {
    of_device(number, |pools| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let checkpoint = object("checkpoint", checkpoint)?;
            let before = pools.restore(checkpoint)?;
            visit_all(&before, freed, context);
            visit_all(&checkpoint.blocks, allocated, context);
        }
        Ok(())
    })
}

/// Frees a checkpoint. Null does nothing. The pool does not change.
///
/// # Safety
///
/// `checkpoint` is null or comes from gpu_vmm_torch_checkpoint, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_checkpoint_free(checkpoint: *mut Checkpoint) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(checkpoint) }
}

/// Calls a visitor for blocks of a pool.
///
/// # Safety
///
/// `visit` accepts `context`.
unsafe fn visit_all(blocks: &BTreeMap<Address, TorchBlock>, visit: TorchVisit, context: *mut c_void) {
    let Some(visit) = visit else { return };
    for block in blocks.values() {
        // SAFETY: guaranteed by the caller.
        unsafe { visit(context, block) };
    }
}
