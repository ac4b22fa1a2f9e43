//! The replays of cubecl 0.12.
#![allow(clippy::single_component_path_imports)] // the replays name them by `super::`

use cubecl_ir_0_12 as cubecl_ir;
use cubecl_server_0_12 as cubecl_server;
use gpu_vmm_cubecl::cubecl_0_12 as gpu_vmm_cubecl;
// One source for both versions.
#[allow(clippy::duplicate_mod)]
#[path = "managed.rs"]
pub(crate) mod managed;
