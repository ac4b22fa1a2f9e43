//! The fences of a round. They replace the streams that used the recorded program's blocks.

use gpu_vmm_core::{Detail, Error, Operation, Result};
use gpu_vmm_pool::Fence;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A fence that completes when the trace says so.
pub struct TraceFence {
    flags: Arc<[AtomicBool]>,
    place: usize,
}

impl fmt::Debug for TraceFence {
    /// Leaves out the other fences.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFence").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Fence for TraceFence {
    fn is_done(&self) -> Result<bool> {
        Ok(self.flags[self.place].load(Ordering::Acquire))
    }

    /// Fails: the waiting thread itself, or one that waits for it, would have to continue the trace.
    fn wait(&self) -> Result<()> {
        let reason = "the fence only completes as the trace goes on".to_owned();
        Err(Error::new(Operation::WaitForEvent, Detail::Unsupported { reason }))
    }
}

/// All fences of one thread in one round, created before the timing starts.
#[derive(Debug)]
pub(crate) struct Fences {
    flags: Arc<[AtomicBool]>,
    boxes: Vec<Option<Arc<TraceFence>>>,
}

impl Fences {
    pub(crate) fn new(count: u32) -> Self {
        let flags: Arc<[AtomicBool]> = (0..count).map(|_| AtomicBool::new(false)).collect();
        let fence = |place| Some(Arc::new(TraceFence { flags: Arc::clone(&flags), place }));
        let boxes = (0..count as usize).map(fence).collect();
        Self { flags, boxes }
    }

    /// Returns the fence with this number, for the call that frees the block.
    pub(crate) fn take(&mut self, fence: u32) -> Option<Arc<TraceFence>> {
        self.boxes[fence as usize].take()
    }

    pub(crate) fn done(&self, fence: u32) {
        self.flags[fence as usize].store(true, Ordering::Release);
    }

    pub(crate) fn all_done(&self) {
        self.flags.iter().for_each(|flag| flag.store(true, Ordering::Release));
    }
}
