//! The fences of a round: what the streams of the recorded program were for its blocks.

use gpu_vmm_core::{Detail, Error, Operation, Result};
use gpu_vmm_pool::Fence;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Done when the trace says so.
pub struct TraceFence {
    flags: Arc<[AtomicBool]>,
    place: usize,
}

impl fmt::Debug for TraceFence {
    /// Without the others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFence").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Fence for TraceFence {
    fn is_done(&self) -> Result<bool> {
        Ok(self.flags[self.place].load(Ordering::Acquire))
    }

    /// It is the thread that waits, or one that waits for it, which would go on with the trace.
    fn wait(&self) -> Result<()> {
        let reason = "it is done when the trace has come so far".to_owned();
        Err(Error::new(Operation::WaitForEvent, Detail::Unsupported { reason }))
    }
}

/// All of one thread in one round, made before anything is timed.
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

    /// The one of that number, for whom it is done to.
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
