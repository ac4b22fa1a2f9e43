//! The ranges and the memory that profilers and compute-sanitizer receive. A tool in C, which the test builds, takes their place.
//!
//! The tool is loaded once for a process, so each test runs itself again with the environment that a tool sets.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use gpu_vmm::host::HostConfig;
use gpu_vmm::pool::Pool;
use gpu_vmm::{BackingStore, Bytes, Region, WaitFor};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const MIB: u64 = 1 << 20;
/// Set in a process that has the tool.
const LOG: &str = "TOOL_LOG";

/// The folders in which the loader looks for libraries.
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// A test without NVIDIA's driver.
const BEFORE_CUDA: &str = "nvtx_tool_waits_for_nvidias_driver";

/// Builds the tool once, and returns the library. It has the name of AMD's library, in a folder of its own.
fn tool() -> &'static PathBuf {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("profiler-tool");
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("librocprofiler-sdk-roctx.so.1");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/profiler/tool.c");
        // Another run of this program may have the library loaded.
        let new = folder.join(format!("{}.so", std::process::id()));
        let built = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&new)
            .arg(source)
            .status();
        assert!(built.unwrap().success(), "{source} does not compile");
        std::fs::rename(&new, &library).unwrap();
        library
    })
}

/// Runs `inside` in a process of its own with the variables that the tool's owner sets to the library, or to its folder if that is
/// what the variable names. Returns the lines that the tool has written, and `None` in that process.
fn with_tool(test: &str, variables: &[&str], inside: impl FnOnce()) -> Option<Vec<String>> {
    with_tool_without("", test, variables, inside)
}

/// The same, with a tool that lacks a part.
fn with_tool_without(
    part: &str,
    test: &str,
    variables: &[&str],
    inside: impl FnOnce(),
) -> Option<Vec<String>> {
    if std::env::var_os(LOG).is_some() {
        if test != BEFORE_CUDA {
            // The CUDA backend calls this when it has started the driver.
            gpu_vmm::extend::allow_nvtx();
        }
        inside();
        return None;
    }
    let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("profiler-{test}{part}-{}.txt", std::process::id()));
    std::fs::write(&log, "").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(LOG, &log).env("TOOL_REFUSES", part);
    for variable in variables {
        let value = if *variable == SEARCH_PATH { with_the_tools_folder() } else { tool().into() };
        command.env(variable, value);
    }
    let ended = command.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    let lines = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    Some(lines.lines().map(str::to_owned).collect())
}

/// The process's search path, with the tool's folder before the others.
fn with_the_tools_folder() -> OsString {
    let others = std::env::var_os(SEARCH_PATH).filter(|paths| !paths.is_empty());
    let others = others.iter().flat_map(std::env::split_paths);
    let folder = tool().parent().unwrap().to_owned();
    std::env::join_paths(std::iter::once(folder).chain(others)).unwrap()
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
fn nvtx_tool_waits_for_nvidias_driver() {
    let Some(lines) = with_tool(BEFORE_CUDA, &["NVTX_INJECTION64_PATH"], grow_and_suspend) else { return };
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn roctx_receives_the_ranges() {
    roctx_has_the_ranges("roctx_receives_the_ranges", "LD_PRELOAD");
}

/// Nothing but gpu-vmm has loaded the library then.
#[test]
fn roctx_in_search_path_receives_ranges() {
    roctx_has_the_ranges("roctx_in_search_path_receives_ranges", SEARCH_PATH);
}

fn roctx_has_the_ranges(test: &str, variable: &str) {
    let Some(lines) = with_tool(test, &[variable], grow_and_suspend) else { return };
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
fn nvtx_receives_plain_pools_memory() {
    let test = "nvtx_receives_plain_pools_memory";
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
fn nvtx_receives_no_memory_compute_sanitizer_refuses() {
    let test = "nvtx_receives_no_memory_compute_sanitizer_refuses";
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

/// Allocates and frees one block of a pool of plain allocations, and drops the pool.
fn allocate_plain() {
    let backend = HostConfig::new().without_virtual_memory().open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    drop(pool.alloc(Bytes(3 * MIB)).unwrap());
}

#[test]
fn nvtx_receives_blocks_with_their_chunks() {
    let test = "nvtx_receives_blocks_with_their_chunks";
    let lines = with_tool(test, &["NVTX_INJECTION64_PATH"], || {
        let backend = HostConfig::new().without_virtual_memory().open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        // The second time, all chunks are there before the first block.
        for _ in 0..2 {
            drop([3, 5, 7].map(|size| pool.alloc(Bytes(size * MIB)).unwrap()));
        }
    });
    let Some(lines) = lines else { return };
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    let of = |kind: &str, word: usize| -> Vec<&str> {
        let of_kind = words.iter().filter(|words| words[0] == kind);
        of_kind.map(|words| words[word]).collect()
    };
    // Each chunk is as large as its block needs, so each block begins a chunk of its own.
    assert_eq!(of("heap", 2), [4, 6, 8].map(|size| (size * MIB).to_string()));
    assert_eq!(of("block", 2), [3, 5, 7, 3, 5, 7].map(|size| (size * MIB).to_string()));
    let chunks = of("heap", 1);
    let twice = [chunks.clone(), chunks.clone()].concat();
    assert_eq!((of("block", 1), of("block", 3)), (twice.clone(), twice.clone()));
    assert_eq!(of("block-gone", 1), twice);
    assert_eq!(of("heap-gone", 1), chunks);
}

#[test]
fn a_tool_that_refuses_nvtx_receives_nothing() {
    let test = "a_tool_that_refuses_nvtx_receives_nothing";
    let lines = with_tool_without("nvtx", test, &["NVTX_INJECTION64_PATH"], || {
        grow_and_suspend();
        allocate_plain();
    });
    let Some(lines) = lines else { return };
    assert_eq!(lines, ["refused"]);
}

#[test]
fn tool_without_memory_functions_receives_ranges() {
    let test = "tool_without_memory_functions_receives_ranges";
    for part in ["memory", "regions"] {
        let lines = with_tool_without(part, test, &["NVTX_INJECTION64_PATH"], allocate_plain);
        let Some(lines) = lines else { return };
        assert_eq!(lines, ["domain gpu-vmm", "push grow", "pop"], "{part}");
    }
}

#[test]
fn tool_refusing_a_chunk_receives_no_block() {
    let test = "tool_refusing_a_chunk_receives_no_block";
    let lines = with_tool_without("heaps", test, &["NVTX_INJECTION64_PATH"], allocate_plain);
    let Some(lines) = lines else { return };
    assert_eq!(memory(&lines), [format!("heap +0 {}", 4 * MIB)]);
}
