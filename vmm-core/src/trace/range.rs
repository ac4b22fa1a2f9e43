//! A range of the profilers that are attached to the process.

use super::nvtx::{self, Nvtx};
#[cfg(target_os = "linux")]
use super::roctx::{self, Roctx};
use crate::types::Operation;
use std::ffi::CString;
use std::marker::PhantomData;

/// A range in the timeline of NVIDIA's and AMD's profilers that ends when the value is dropped. Without a profiler it is nothing.
#[derive(Debug)]
#[must_use = "the range ends when the value is dropped"]
pub struct Range {
    nvtx: Option<&'static Nvtx>,
    #[cfg(target_os = "linux")]
    roctx: Option<&'static Roctx>,
    /// Each thread has a stack of ranges of its own.
    of_this_thread: PhantomData<*const ()>,
}

impl Range {
    /// Begins a range with the name of an operation.
    pub fn open(operation: Operation) -> Self {
        let range = Self {
            nvtx: nvtx::attached(),
            #[cfg(target_os = "linux")]
            roctx: roctx::attached(),
            of_this_thread: PhantomData,
        };
        if let Some(nvtx) = range.nvtx {
            nvtx.push(&CString::new(operation.name()).unwrap_or_default());
        }
        #[cfg(target_os = "linux")]
        if let Some(roctx) = range.roctx {
            // rocTX has no domains, which would show whose range it is.
            roctx.push(&CString::new(format!("gpu-vmm: {operation}")).unwrap_or_default());
        }
        range
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(roctx) = self.roctx {
            roctx.pop();
        }
        if let Some(nvtx) = self.nvtx {
            nvtx.pop();
        }
    }
}
