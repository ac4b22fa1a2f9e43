//! The storage and the memory management for cubecl 0.12.

use cubecl_ir_0_12 as cubecl_ir;
use cubecl_server_0_12 as cubecl_server;
use gpu_vmm_cubecl::cubecl_0_12 as gpu_vmm_cubecl;
mod cases;
