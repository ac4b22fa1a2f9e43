//! Fences: completions of work that no stream event reports.

use gpu_vmm_core::Result;
use std::fmt::Debug;

/// A completion of work outside the pool's streams: a timeline semaphore, an event of another API, a network card's reply.
///
/// The thread that needs memory calls [`is_done`](Fence::is_done) under the pool's lock, and may drop the fence there.
/// Neither may call the pool, free one of its blocks, or wait. Threads call [`wait`](Fence::wait) without any lock, possibly
/// several at once; the thread that completes the fence may use the pool meanwhile.
///
/// Dropping the last of a pool and its blocks waits for all fences. If a fence cannot be waited for, the pool's memory stays
/// allocated until the process ends.
pub trait Fence: Debug + Send + Sync {
    /// Returns whether the work is done. Once it is done, it stays done.
    ///
    /// # Errors
    ///
    /// The errors of the implementation. The memory then counts as still in use.
    fn is_done(&self) -> Result<bool>;

    /// Waits until the work is done. The pool calls this when no other memory is left.
    ///
    /// # Errors
    ///
    /// As for [`is_done`](Fence::is_done). A fence that cannot wait returns an error too.
    fn wait(&self) -> Result<()>;
}
