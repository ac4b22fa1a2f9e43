//! gpu-vmm-cuda and NVIDIA's tools, which receive ranges by NVTX. The tool in C of `tests/profiler` takes their place.

use crate::rig::Cuda;
use gpu_vmm_core::{Backend, Bytes, Region};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use std::path::Path;
use std::process::Command;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../profiler/tool.c");

cases! {
    a_tool_receives_ranges;
}

fn grow<B: Backend>(backend: &B) {
    let mut region = Region::builder(backend).reserve(Bytes::mib(32)).build().unwrap();
    region.grow_to(Bytes::mib(2)).unwrap();
}

fn a_tool_receives_ranges(_: &Cuda) {
    let file = |ending| Path::new(TEMPORARY).join(format!("nvtx-tool-{}.{ending}", std::process::id()));
    let (tool, log) = (file("so"), file("txt"));
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&tool)
        .arg(SOURCE);
    assert!(compiler.status().unwrap().success(), "{SOURCE} does not compile");
    std::fs::write(&log, "").unwrap();
    // SAFETY: the case's only thread sets them, and nothing reads the environment meanwhile.
    unsafe {
        std::env::set_var("NVTX_INJECTION64_PATH", &tool);
        std::env::set_var("TOOL_LOG", &log);
    }
    let received = || std::fs::read_to_string(&log).unwrap();
    grow(&gpu_vmm::host::HostBackend::open().unwrap());
    assert_eq!(received(), "", "a tool may not be loaded before NVIDIA's driver");
    grow(&CudaBackend::open().unwrap());
    let received = received();
    assert!(received.starts_with("domain gpu-vmm\npush grow\n"), "{received}");
    for file in [tool, log] {
        std::fs::remove_file(file).unwrap();
    }
}
