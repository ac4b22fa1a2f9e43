//! The replays of cubecl 0.11.
#![allow(clippy::single_component_path_imports)] // the replays name them by `super::`

use cubecl_ir;
use cubecl_server;
use gpu_vmm_cubecl::cubecl_0_11 as gpu_vmm_cubecl;
// One source for both versions.
#[allow(clippy::duplicate_mod)]
#[path = "managed.rs"]
pub(crate) mod managed;
