//! The storage and the memory management for cubecl 0.11.
#![allow(clippy::single_component_path_imports)] // the cases name both by `super::`

use cubecl_ir;
use cubecl_server;
use gpu_vmm_cubecl::cubecl_0_11 as gpu_vmm_cubecl;
mod cases;
