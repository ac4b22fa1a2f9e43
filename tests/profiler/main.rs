//! The ranges and the memory that profilers and compute-sanitizer receive. A tool in C, which the test builds, takes their place.
//!
//! The tool is loaded once for a process, so each test runs itself again with the environment that a tool sets.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use gpu_vmm::host::HostConfig;
use gpu_vmm::pool::Pool;
use gpu_vmm::{BackingStore, Bytes, Region, WaitFor};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const MIB: u64 = 1 << 20;
/// Set in a process that has the tool.
const LOG: &str = "TOOL_LOG";

/// A test without NVIDIA's driver.
const BEFORE_CUDA: &str = "no_nvtx_tool_is_loaded_before_nvidias_driver";

/// Builds the tool once, and returns the library.
fn tool() -> &'static PathBuf {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("profiler-tool.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/profiler/tool.c");
        let built = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source)
            .status();
        assert!(built.unwrap().success(), "{source} does not compile");
        library
    })
}

/// Runs `inside` in a process of its own with the variables that the tool's owner sets, and returns the lines that the tool has
/// written. Returns `None` in that process.
fn with_tool(test: &str, variables: &[&str], inside: impl FnOnce()) -> Option<Vec<String>> {
    if std::env::var_os(LOG).is_some() {
        if test != BEFORE_CUDA {
            // The CUDA backend calls this when it has started the driver.
            gpu_vmm::extend::allow_nvtx();
        }
        inside();
        return None;
    }
    let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("profiler-{test}.txt"));
    std::fs::write(&log, "").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(LOG, &log);
    command.envs(variables.iter().map(|variable| (variable, tool())));
    let ended = command.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    let lines = std::fs::read_to_string(&log).unwrap();
    Some(lines.lines().map(str::to_owned).collect())
}

fn grow_and_suspend() {
    let backend = HostConfig::new().open().unwrap();
    let mut region = Region::builder(&backend).reserve(Bytes::mib(16)).build().unwrap();
    region.grow_to(Bytes::mib(2)).unwrap();
    region.grow_to(Bytes::mib(2)).unwrap();
    region.suspend(&BackingStore::nothing(), WaitFor::all_devices()).unwrap();
}

#[test]
fn nvtx_receives_the_ranges() {
    let lines = with_tool("nvtx_receives_the_ranges", &["NVTX_INJECTION64_PATH"], grow_and_suspend);
    let Some(lines) = lines else { return };
    let expected = ["domain gpu-vmm", "push grow", "push create memory", "pop", "pop", "push suspend", "pop"];
    assert_eq!(lines, expected);
}

#[test]
fn no_nvtx_tool_is_loaded_before_nvidias_driver() {
    let Some(lines) = with_tool(BEFORE_CUDA, &["NVTX_INJECTION64_PATH"], grow_and_suspend) else { return };
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn roctx_receives_the_ranges() {
    let Some(lines) = with_tool("roctx_receives_the_ranges", &["LD_PRELOAD"], grow_and_suspend) else {
        return;
    };
    let [grow, create, suspend] =
        ["grow", "create memory", "suspend"].map(|name| format!("rocTX push gpu-vmm: {name}"));
    let pop = "rocTX pop".to_owned();
    assert_eq!(lines, [grow, create, pop.clone(), pop.clone(), suspend, pop]);
}

/// The lines about memory, with each address as an offset from the first page.
fn memory(lines: &[String]) -> Vec<String> {
    let mut first = None;
    let mut offset = |word: &str| match word.strip_prefix("0x") {
        None => word.to_owned(),
        Some(hex) => {
            let address = u64::from_str_radix(hex, 16).unwrap();
            format!("+{}", address - *first.get_or_insert(address))
        }
    };
    let of_memory = lines.iter().filter(|line| line.starts_with("heap") || line.starts_with("block"));
    of_memory.map(|line| line.split(' ').map(&mut offset).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn nvtx_receives_the_memory_of_a_pool_of_plain_allocations() {
    let test = "nvtx_receives_the_memory_of_a_pool_of_plain_allocations";
    let lines = with_tool(test, &["NVTX_INJECTION64_PATH"], || {
        let backend = HostConfig::new().without_virtual_memory().open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        drop(pool.alloc(Bytes(3 * MIB + 5)).unwrap());
        // In the same chunk. Only the bytes that were asked for are valid.
        let block = pool.alloc(Bytes(2 * MIB - 1)).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        drop(block);
        pool.trim(Bytes::ZERO).unwrap();
    });
    let Some(lines) = lines else { return };
    assert!(!lines.iter().any(|line| line.starts_with("wrong")), "{lines:#?}");
    let [chunk, large, small] = [4 * MIB, 3 * MIB + 5, 2 * MIB - 1];
    let expected = [
        format!("heap +0 {chunk}"),
        format!("block +0 {large} +0"),
        "block-gone +0".to_owned(),
        format!("block +0 {small} +0"),
        "block-gone +0".to_owned(),
        "heap-gone +0".to_owned(),
    ];
    assert_eq!(memory(&lines), expected);
}

#[test]
fn nvtx_receives_no_memory_that_compute_sanitizer_refuses() {
    let test = "nvtx_receives_no_memory_that_compute_sanitizer_refuses";
    let lines = with_tool(test, &["NVTX_INJECTION64_PATH"], || {
        let backend = HostConfig::new().open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        drop(pool.alloc(Bytes(3 * MIB)).unwrap());
        pool.trim(Bytes::ZERO).unwrap();
    });
    let Some(lines) = lines else { return };
    assert!(lines.iter().any(|line| line.contains("trim")), "{lines:#?}");
    assert!(memory(&lines).is_empty(), "{lines:#?}");
}
