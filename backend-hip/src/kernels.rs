//! The test kit's kernels, and their launch grids.
#![allow(unsafe_code)] // HIP's handles move between threads

use crate::compiler::Reason;
use crate::ffi::{self, hipFunction_t, hipStream_t};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::Mutex;

const THREADS: u32 = 256;
/// Enough to fill every current GPU several times over; each thread processes as many words as needed.
const MAX_BLOCKS: u64 = 4096;

/// The grid of a launch, and its stream.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) stream: hipStream_t,
}

impl Grid {
    /// The whole device, on its null stream.
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

// SAFETY: HIP's kernel handle belongs to the process and may be launched from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The compiled code by architecture, or why there is none.
#[derive(Default)]
pub(crate) struct Compiled {
    pub(crate) by_architecture: Mutex<BTreeMap<String, Result<Vec<u8>, Reason>>>,
}
