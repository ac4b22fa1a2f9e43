//! What a pool and its blocks have in common.

use crate::core::Core;
use crate::tracking::Tracking;
use gpu_vmm_core::{Backend, Process};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lives as long as the pool or one of its blocks does.
#[derive(Debug)]
pub(crate) struct Inner<B: Backend> {
    pub(crate) backend: B,
    pub(crate) process: Process,
    core: Mutex<Core<B>>,
    pub(crate) tracking: Tracking,
}

impl<B: Backend> Inner<B> {
    pub(crate) fn new(core: Core<B>) -> Self {
        let backend = core.backend.clone();
        let tracking = Tracking::new(core.settings.debug);
        Self { backend, process: Process::current(), core: Mutex::new(core), tracking }
    }

    /// Waits for whoever has the books.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core<B>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
