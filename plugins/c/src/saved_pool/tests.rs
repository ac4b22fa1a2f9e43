//! Pools in files, and blocks at chosen addresses, on host memory.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::handles;
use crate::pool::{
    gpu_vmm_alloc, gpu_vmm_alloc_at, gpu_vmm_free, gpu_vmm_pool_free, gpu_vmm_pool_new, gpu_vmm_pool_tagged,
    gpu_vmm_read, gpu_vmm_write,
};
use crate::region::{gpu_vmm_region_free, gpu_vmm_region_grow, gpu_vmm_region_new};
use crate::snapshot::gpu_vmm_region_snapshot;
use crate::status::{
    GPU_VMM_ADDRESS_TAKEN, GPU_VMM_FILE, GPU_VMM_INVALID_ARGUMENT, GPU_VMM_NOT_FOUND, GPU_VMM_OK,
    GPU_VMM_OUT_OF_MEMORY, GPU_VMM_UNALIGNED,
};
use crate::tests::last_error;
use gpu_vmm::Bytes;
use gpu_vmm::host::HostConfig;
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

const RESTORABLE: PoolOptions = PoolOptions { restorable: true, ..PoolOptions::DEFAULT };

const NO_BLOCK: RestoredBlock =
    RestoredBlock { address: 1, size: 1, capacity: 1, stream: null_mut(), tag: [1; 64] };

fn open_host(memory: Bytes) -> *mut Backend {
    let host = HostConfig::new().memory(memory).open().unwrap();
    handles::add(Backend(AnyBackend::from(host))).unwrap()
}

fn close(backend: *mut Backend) {
    // SAFETY: it is not used any more.
    unsafe { crate::backend::gpu_vmm_close(backend) };
}

/// Returns a file of this process and test.
fn file(name: &str) -> (PathBuf, CString) {
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-{name}-{}", std::process::id()));
    let path = CString::new(file.to_str().unwrap()).unwrap();
    (file, path)
}

fn new_pool(backend: *const Backend, options: &PoolOptions) -> *mut Pool {
    let mut pool = null_mut();
    // SAFETY: the backend is open, and the place is writable.
    assert_eq!(unsafe { gpu_vmm_pool_new(backend, options, &raw mut pool) }, GPU_VMM_OK, "{}", last_error());
    pool
}

fn tagged(pool: *const Pool, tag: &CStr) -> *mut Pool {
    let mut place = null_mut();
    // SAFETY: the pool lives, and the place is writable.
    assert_eq!(unsafe { gpu_vmm_pool_tagged(pool, tag.as_ptr(), &raw mut place) }, GPU_VMM_OK);
    place
}

/// Allocates a block, and fills it with a byte.
fn filled(pool: *const Pool, size: u64, byte: u8) -> u64 {
    let (mut address, bytes) = (0, vec![byte; size as usize]);
    // SAFETY: the pool and the block live.
    unsafe {
        assert_eq!(gpu_vmm_alloc(pool, size, 0, null_mut(), &raw mut address), GPU_VMM_OK);
        assert_eq!(gpu_vmm_write(pool, address, bytes.as_ptr().cast(), size), GPU_VMM_OK);
    }
    address
}

fn free_pool(pool: *mut Pool) {
    // SAFETY: it is not used any more.
    unsafe { gpu_vmm_pool_free(pool) };
}

fn save(pool: *const Pool, path: &CStr, tags: &[*const c_char]) -> Status {
    let list = if tags.is_empty() { null() } else { tags.as_ptr() };
    // SAFETY: the pool lives, and the path and the tags are strings.
    unsafe { gpu_vmm_pool_save(pool, path.as_ptr(), list, tags.len() as u64, true) }
}

/// Restores a pool with this number of blocks, or returns the status.
fn restore(
    backend: *const Backend,
    path: &CStr,
    options: &PoolOptions,
    count: usize,
) -> Result<(*mut Pool, Vec<RestoredBlock>), Status> {
    let (mut pool, mut blocks) = (std::ptr::dangling_mut(), vec![NO_BLOCK; count]);
    // SAFETY: the backend is open, the path a string, and the places are writable.
    let status = unsafe {
        gpu_vmm_pool_restore(
            backend,
            path.as_ptr(),
            options,
            &raw mut pool,
            blocks.as_mut_ptr(),
            count as u64,
        )
    };
    if status == GPU_VMM_OK {
        return Ok((pool, blocks));
    }
    assert!(pool.is_null());
    assert!(blocks.iter().all(|block| (block.address, block.size, block.tag) == (0, 0, [0; 64])));
    Err(status)
}

fn count(path: &CStr) -> Result<u64, Status> {
    let mut count = 7;
    // SAFETY: the path is a string, and the place is writable.
    let status = unsafe { gpu_vmm_saved_pool_count(path.as_ptr(), &raw mut count) };
    if status == GPU_VMM_OK { Ok(count) } else { Err(status) }
}

#[test]
fn restored_blocks_have_their_contents() {
    let backend = open_host(Bytes::mib(256));
    let (on_disk, path) = file("pool");
    let pool = new_pool(backend, &RESTORABLE);
    let long = CString::new("x".repeat(62) + "\u{e9}").unwrap();
    let rows =
        [(c"weights", 700, 1), (c"weights", 3 << 20, 2), (c"cache", 5 << 20, 3), (long.as_c_str(), 512, 4)];
    let pools = rows.map(|(tag, _, _)| tagged(pool, tag));
    let mut saved: Vec<_> = rows
        .into_iter()
        .zip(pools)
        .map(|((tag, size, byte), pool)| (filled(pool, size, byte), size, tag, byte))
        .collect();
    saved.sort_unstable();
    assert_eq!(save(pool, &path, &[]), GPU_VMM_OK, "{}", last_error());
    assert_eq!(count(&path), Ok(4));
    // The addresses are in use until the pool ends.
    assert_eq!(restore(backend, &path, &RESTORABLE, 4).err(), Some(GPU_VMM_ADDRESS_TAKEN));
    let text = last_error();
    assert!(["was at 0x", "which", "uses now"].iter().all(|word| text.contains(word)), "{text}");
    pools.into_iter().chain([pool]).for_each(free_pool);
    for wrong in [0, 3, 5] {
        let status = restore(backend, &path, &RESTORABLE, wrong).err();
        assert_eq!(status, Some(GPU_VMM_INVALID_ARGUMENT), "{wrong}");
        assert!(last_error().ends_with(&format!("has 4 blocks; expected {wrong}")), "{}", last_error());
    }
    let (pool, blocks) = restore(backend, &path, &RESTORABLE, 4).unwrap();
    for (block, (address, size, tag, byte)) in blocks.iter().zip(saved) {
        // SAFETY: the field ends with a zero.
        let shown = unsafe { CStr::from_ptr(block.tag.as_ptr()) };
        let whole = tag.to_bytes();
        assert_eq!(shown.to_bytes(), &whole[..whole.len().min(62)]);
        assert_eq!((block.address, block.size, block.stream), (address, size, null_mut()));
        assert!(block.capacity >= size);
        let mut bytes = vec![0; size as usize];
        // SAFETY: the pool and the block live, until it is freed.
        unsafe {
            assert_eq!(gpu_vmm_read(pool, address, bytes.as_mut_ptr().cast(), size), GPU_VMM_OK);
            assert!(bytes.iter().all(|found| *found == byte));
            assert_eq!(gpu_vmm_free(pool, address), GPU_VMM_OK);
            assert_eq!(gpu_vmm_free(pool, address), GPU_VMM_NOT_FOUND);
        }
    }
    // It is restorable, as the saved pool was, although the options do not say so.
    filled(pool, 512, 5);
    assert_eq!(save(pool, &path, &[c"".as_ptr()]), GPU_VMM_OK);
    free_pool(pool);
    let mut pool = null_mut();
    // SAFETY: the backend is open, the path a string, and the place is writable.
    let status =
        unsafe { gpu_vmm_pool_restore(backend, path.as_ptr(), null(), &raw mut pool, null_mut(), 0) };
    assert_eq!(status, GPU_VMM_OK, "{}", last_error());
    free_pool(pool);
    std::fs::remove_file(on_disk).unwrap();
    close(backend);
}

#[test]
fn restore_rejects_files_and_devices() {
    let backend = open_host(Bytes::mib(64));
    let (on_disk, path) = file("rejected");
    let pool = new_pool(backend, &PoolOptions { device: 0, ..RESTORABLE });
    let weights = tagged(pool, c"weights");
    let address = filled(weights, 12 << 20, 9);
    assert_eq!(save(pool, &path, &[c"weights".as_ptr(), c"none".as_ptr()]), GPU_VMM_NOT_FOUND);
    assert_eq!(save(pool, &path, &[null()]), GPU_VMM_INVALID_ARGUMENT);
    // SAFETY: the pool lives, and the path is a string.
    let status = unsafe { gpu_vmm_pool_save(pool, path.as_ptr(), null(), 1, false) };
    assert_eq!(status, GPU_VMM_INVALID_ARGUMENT);
    assert!(!on_disk.exists());
    assert_eq!(save(pool, &path, &[c"weights".as_ptr()]), GPU_VMM_OK);
    free_pool(weights);
    free_pool(pool);
    for (options, memory, status) in [
        (PoolOptions { budget: 8 << 20, ..RESTORABLE }, Bytes::mib(64), GPU_VMM_OUT_OF_MEMORY),
        (RESTORABLE, Bytes::mib(8), GPU_VMM_OUT_OF_MEMORY),
        (PoolOptions { reserved: [0, 0, 0, 1], ..RESTORABLE }, Bytes::mib(64), GPU_VMM_INVALID_ARGUMENT),
    ] {
        let other = open_host(memory);
        assert_eq!(restore(other, &path, &options, 1).err(), Some(status), "{}", last_error());
        close(other);
    }
    let whole = std::fs::read(&on_disk).unwrap();
    for at in [0, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xFF;
        std::fs::write(&on_disk, damaged).unwrap();
        assert_eq!(
            restore(backend, &path, &RESTORABLE, 1).err(),
            Some(GPU_VMM_FILE),
            "{at}: {}",
            last_error()
        );
    }
    std::fs::write(&on_disk, &whole[..whole.len() - 100]).unwrap();
    assert_eq!(count(&path), Err(GPU_VMM_FILE));
    std::fs::write(&on_disk, whole).unwrap();
    let (pool, blocks) = restore(backend, &path, &RESTORABLE, 1).unwrap();
    assert_eq!((blocks[0].address, blocks[0].size), (address, 12 << 20));
    free_pool(pool);
    let mut region = null_mut();
    // SAFETY: the objects live until they are freed, the path is a string, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_region_new(backend, 0, 4 << 20, &raw mut region), GPU_VMM_OK);
        assert_eq!(gpu_vmm_region_grow(region, 2 << 20), GPU_VMM_OK);
        assert_eq!(gpu_vmm_region_snapshot(region, path.as_ptr(), false), GPU_VMM_OK);
        gpu_vmm_region_free(region);
    }
    assert_eq!(count(&path), Err(GPU_VMM_FILE));
    assert_eq!(restore(backend, &path, &RESTORABLE, 1).err(), Some(GPU_VMM_FILE));
    assert!(last_error().contains("of regions and not of a pool"), "{}", last_error());
    std::fs::remove_file(on_disk).unwrap();
    assert_eq!(restore(backend, &path, &RESTORABLE, 1).err(), Some(GPU_VMM_FILE));
    close(backend);
}

#[test]
fn blocks_lie_at_requested_addresses() {
    let backend = open_host(Bytes::mib(64));
    let pool = new_pool(backend, &RESTORABLE);
    let free = filled(pool, 2 << 20, 1);
    // SAFETY: the pool lives.
    let at = |address, size| unsafe { gpu_vmm_alloc_at(pool, address, size, null_mut()) };
    assert_eq!(at(free, 512), GPU_VMM_ADDRESS_TAKEN);
    assert!(last_error().contains("the block at 0x"), "{}", last_error());
    assert_eq!(at(free + 256, 512), GPU_VMM_UNALIGNED);
    assert_eq!(at(free, 0), GPU_VMM_INVALID_ARGUMENT);
    assert_eq!(at(0, 512), GPU_VMM_ADDRESS_TAKEN);
    // SAFETY: the pool lives, and the block is not used.
    unsafe {
        assert_eq!(gpu_vmm_free(pool, free), GPU_VMM_OK);
        assert_eq!(at(free, 2 << 20), GPU_VMM_OK, "{}", last_error());
        assert_eq!(gpu_vmm_free(pool, free), GPU_VMM_OK);
    }
    free_pool(pool);
    close(backend);
}
