//! The wrapper of every exported function: a failure becomes a status, and a panic is caught.

use crate::callback::is_running;
use crate::status::{CallResult, Failure, GPU_VMM_BUSY, GPU_VMM_INTERNAL, GPU_VMM_OK, Status, keep};
use gpu_vmm::Operation;
use gpu_vmm::extend::Lock;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;

/// Runs the body of an exported function and returns its status.
pub(crate) fn status(work: impl FnOnce() -> CallResult) -> Status {
    match run(work) {
        Ok(()) => GPU_VMM_OK,
        Err(failure) => keep(failure),
    }
}

/// Runs the body of an exported function and catches a panic, which must not unwind into C.
///
/// Changes made before the panic stay. That is sound: the objects behind the interface are consistent at every point that
/// can panic, or report themselves as poisoned.
pub(crate) fn run<T>(work: impl FnOnce() -> CallResult<T>) -> CallResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(stopped(&*panic)))
}

/// Locks an object for one call. In a callback of an observer it does not wait: this thread may hold the lock, or its owner may wait
/// for a lock that this thread holds.
pub(crate) fn held<T>(lock: &Lock<T>, operation: Operation) -> CallResult<MutexGuard<'_, T>> {
    if !is_running() {
        return Ok(lock.lock(operation)?);
    }
    let text =
        || format!("{operation}: the object is in use by another call, for which a callback does not wait");
    lock.try_lock(operation)?.ok_or_else(|| Failure::new(GPU_VMM_BUSY, text()))
}

/// Runs the body of a function that returns no status, such as freeing an object.
pub(crate) fn quietly(work: impl FnOnce()) {
    let _ = status(|| {
        work();
        Ok(())
    });
}

fn stopped(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    Failure::new(GPU_VMM_INTERNAL, format!("a defect of gpu-vmm, please report it: {text}"))
}
