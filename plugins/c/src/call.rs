//! What every function does around its work: a failure becomes a status, and a panic ends here.

use crate::status::{Answer, Failure, GPU_VMM_INTERNAL, GPU_VMM_OK, Status, keep};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a function's work.
pub(crate) fn status(work: impl FnOnce() -> Answer) -> Status {
    match run(work) {
        Ok(()) => GPU_VMM_OK,
        Err(failure) => keep(failure),
    }
}

/// Runs work that is not to panic across the border. What it has changed by then stays: all that is behind it is whole at
/// every moment, or says that it is not.
pub(crate) fn run<T>(work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(stopped(&*panic)))
}

/// Runs work that tells nobody how it went, such as freeing an object.
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
