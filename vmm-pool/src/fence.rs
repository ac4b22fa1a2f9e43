//! What says that memory may be used again, if that is no event of a stream.

use gpu_vmm_core::Result;
use std::fmt::Debug;

/// Something that is done at some time: a timeline semaphore, an event of another API, the answer of a network card.
///
/// [`is_done`](Fence::is_done) is called by whichever thread needs memory, under the pool's lock, and the fence may be
/// dropped there: neither may call the pool, free one of its blocks, or wait. [`wait`](Fence::wait) is called without any
/// lock, by several threads perhaps: the thread that completes the fence may use the pool meanwhile.
///
/// Dropping the last of a pool and its blocks waits for all fences. If one cannot be waited for, the pool's memory stays
/// until the process ends.
pub trait Fence: Debug + Send + Sync {
    /// Whether it is done. Once it is, it stays so.
    ///
    /// # Errors
    ///
    /// What the implementation reports; the memory then counts as still in use.
    fn is_done(&self) -> Result<bool>;

    /// Waits until it is done: the pool does so when there is no other memory.
    ///
    /// # Errors
    ///
    /// As for [`is_done`](Fence::is_done). A fence that cannot wait returns an error too.
    fn wait(&self) -> Result<()>;
}
