//! The test kit's kernels, and how they are spread over a device.
#![allow(unsafe_code)] // names of HIP's go from thread to thread

use crate::compiler::Reason;
use crate::ffi::{self, hipFunction_t, hipStream_t};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::Mutex;

const THREADS: u32 = 256;
/// Enough to fill every GPU there is several times over; each thread takes as many words as are needed.
const MAX_BLOCKS: u64 = 4096;

/// How a kernel is spread over a device, and on which stream.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) stream: hipStream_t,
}

impl Grid {
    /// The whole device, in its null stream.
    pub(crate) fn wide(words: u64) -> Self {
        let blocks = words.div_ceil(u64::from(THREADS)).clamp(1, MAX_BLOCKS) as u32;
        Self { blocks, threads: THREADS, stream: null_mut() }
    }

    /// One wavefront, slow on purpose.
    pub(crate) const fn slow(stream: hipStream_t) -> Self {
        Self { blocks: 1, threads: 64, stream }
    }
}

/// The kernels on one device.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) launch: ffi::hipModuleLaunchKernel,
    pub(crate) write_pattern: Function,
    pub(crate) count_wrong: Function,
    pub(crate) walk_list: Function,
}

/// A kernel of a module that is never unloaded.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub(crate) hipFunction_t);

// SAFETY: HIP's handle of a kernel belongs to the process and may be launched from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// What was compiled: the code, or why there is none, by architecture.
#[derive(Default)]
pub(crate) struct Compiled {
    pub(crate) by_architecture: Mutex<BTreeMap<String, Result<Vec<u8>, Reason>>>,
}
