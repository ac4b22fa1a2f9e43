//! What says that memory may be used again, where it is no event of a stream.

use gpu_vmm_core::Result;
use std::fmt::Debug;

/// Something that is done at some time: a timeline semaphore, an event of another API, the answer of a network card.
///
/// Both functions are called by whichever thread needs memory, under the pool's lock: they must not call the pool.
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
