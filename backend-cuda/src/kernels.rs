//! The kernels loaded into a context.

use crate::ffi::{CuFunction, CuModule};

/// The kernels of one context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    pub(crate) module: CuModule,
    pub(crate) write_pattern: CuFunction,
    pub(crate) count_wrong: CuFunction,
    pub(crate) walk_list: CuFunction,
}
