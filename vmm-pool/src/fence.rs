//! What says that memory may be used again, where it is no event of a stream.

use gpu_vmm_core::Result;
use std::fmt::Debug;

/// Something that is done at some time: a timeline semaphore, an event of another API, the answer of a network card.
///
/// Both functions are called by whichever thread needs memory, under the pool's lock, and it is dropped there: nothing of
/// that may call the pool or free one of its blocks. The last of a pool and its blocks waits for all fences when it is
/// dropped; where one cannot be waited for, the pool's memory stays until the process ends.
pub trait Fence: Debug + Send {
    /// Whether it is done. Once it is, it stays so.
    ///
    /// # Errors
    ///
    /// What is asked answers; the memory is then taken for still in use.
    fn is_done(&self) -> Result<bool>;

    /// Waits until it is done: the pool does where there is no other memory.
    ///
    /// # Errors
    ///
    /// As for [`is_done`](Fence::is_done). One that cannot wait answers with an error too.
    fn wait(&self) -> Result<()>;
}
