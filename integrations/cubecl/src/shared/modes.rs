//! The modes of allocation, which cubecl opens and closes as windows.

use super::cubecl_server::config::memory::PersistentMemory;
use super::cubecl_server::config::{CubeClRuntimeConfig, RuntimeConfig as _};
use super::cubecl_server::memory_management::MemoryAllocationMode;

/// The open windows of one memory management.
#[derive(Debug)]
pub(super) struct Modes {
    base: MemoryAllocationMode,
    /// False if the configuration makes a persistent window no difference.
    persistent: bool,
    windows: Vec<MemoryAllocationMode>,
}

impl Modes {
    /// Reads the configuration of cubecl.
    pub(super) fn new() -> Self {
        let config = CubeClRuntimeConfig::get().memory.persistent_memory.clone();
        let base = match config {
            PersistentMemory::Enforced => MemoryAllocationMode::Persistent,
            _ => MemoryAllocationMode::Auto,
        };
        let persistent = matches!(config, PersistentMemory::Enabled | PersistentMemory::SizeMatch);
        Self { base, persistent, windows: Vec::new() }
    }

    /// Returns the mode of the innermost window.
    pub(super) fn current(&self) -> MemoryAllocationMode {
        self.windows.last().copied().unwrap_or(self.base)
    }

    /// Opens a window, or closes the innermost one for `Auto`.
    pub(super) fn set(&mut self, mode: MemoryAllocationMode) {
        match mode {
            MemoryAllocationMode::Auto => drop(self.windows.pop()),
            MemoryAllocationMode::Persistent if !self.persistent => self.windows.push(self.base),
            _ => self.windows.push(mode),
        }
    }
}
