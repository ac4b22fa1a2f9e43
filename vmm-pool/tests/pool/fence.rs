//! A fence for tests.

use gpu_vmm_core::Result;
use gpu_vmm_pool::Fence;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A fence that is done once it was waited for, or when the test says so.
#[derive(Debug, Default)]
pub(crate) struct OnlyWaits(pub(crate) Arc<AtomicBool>);

impl Fence for OnlyWaits {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn wait(&self) -> Result<()> {
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}
