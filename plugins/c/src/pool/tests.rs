//! Options, blocks and statistics of pools on host memory.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::handles;
use crate::physical::{gpu_vmm_physical_release, gpu_vmm_physical_size};
use crate::pool::memory::gpu_vmm_pool_memory_at;
use crate::pool_options::GPU_VMM_KEEP_NOTHING;
use crate::sleep::{gpu_vmm_host_memory, gpu_vmm_is_suspended, gpu_vmm_resume, gpu_vmm_suspend};
use crate::status::{
    GPU_VMM_INVALID_ARGUMENT, GPU_VMM_NOT_FOUND, GPU_VMM_OK, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_SUSPENDED,
};
use crate::tests::last_error;
use crate::texts::gpu_vmm_string_free;
use gpu_vmm::host::HostConfig;
use gpu_vmm::{HandleTypes, Vendor};
use std::ffi::CStr;
use std::mem::MaybeUninit;

#[test]
fn pool_records_callers_only_on_request() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    for debug in [false, true] {
        let pool = Pool::new(&host, &PoolOptions { debug, ..PoolOptions::DEFAULT }).unwrap();
        let _block = pool.blocks.alloc(Bytes(512)).unwrap();
        assert_eq!(pool.blocks.unfreed().len(), usize::from(debug));
    }
}

#[test]
fn pinned_size_is_that_of_tag() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let options = PoolOptions { page: Bytes::mib(2).0, ..PoolOptions::DEFAULT };
    let made = Pool::new(&host, &options).unwrap();
    let alloc = |tag, size| made.tagged(tag).unwrap().blocks.alloc(size).unwrap();
    let _blocks = [alloc("weights", Bytes::mib(4)), alloc("cache", Bytes::mib(32))];
    let pool = handles::add(made).unwrap();
    let mut pinned = 0;
    // SAFETY: the pool is freed last, the texts are strings, and the place is writable.
    unsafe {
        let (tag, keep) = (c"weights".as_ptr(), c"pinned".as_ptr());
        assert_eq!(gpu_vmm_suspend(pool, tag, keep, std::ptr::null_mut()), GPU_VMM_OK, "{}", last_error());
        assert_eq!(gpu_vmm_host_memory(pool, &raw mut pinned), GPU_VMM_OK);
        gpu_vmm_pool_free(pool);
    }
    assert_eq!(pinned, Bytes::mib(4).0);
}

/// With more slack, the pool creates memory for a large block instead of taking it from where a block was freed.
#[test]
fn pool_has_slack_of_its_options() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    for (slack, held) in [(0, Bytes::mib(18)), (1000, Bytes::mib(26))] {
        let options = PoolOptions { page: Bytes::mib(2).0, slack, ..PoolOptions::DEFAULT };
        let pool = Pool::new(&host, &options).unwrap();
        let first = pool.blocks.alloc(Bytes::mib(8)).unwrap();
        let _between = pool.blocks.alloc(Bytes::mib(2)).unwrap();
        drop(first);
        let _large = pool.blocks.alloc(Bytes::mib(16)).unwrap();
        assert_eq!(pool.blocks.stats().held, held.0, "{slack} %");
    }
}

#[test]
fn block_belongs_to_its_requests_stream() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let pool = handles::add(Pool::new(&host, &PoolOptions::DEFAULT).unwrap()).unwrap();
    // Only a number: no work is queued on it.
    let stream = std::ptr::without_provenance_mut(4096);
    let (mut address, mut block) = (0, MaybeUninit::<BlockInfo>::uninit());
    // SAFETY: the pool is not freed before the last call, the places are writable, and `find` has written the block.
    unsafe {
        assert_eq!(gpu_vmm_alloc(pool, 512, 0, stream, &raw mut address), GPU_VMM_OK);
        assert_eq!(gpu_vmm_find(pool, address, block.as_mut_ptr()), GPU_VMM_OK);
        assert_eq!(block.assume_init().stream, stream);
        assert_eq!(gpu_vmm_free(pool, address), GPU_VMM_OK);
        gpu_vmm_pool_free(pool);
    }
}

fn written(pool: &Pool, tag: &str, byte: u8) -> Vec<u8> {
    let block = pool.blocks.tagged(tag).unwrap().alloc(Bytes::mib(2)).unwrap();
    let (mut before, after) = (vec![1; 64], vec![byte; Bytes::mib(2).0 as usize]);
    // SAFETY: the block lives, and no other thread uses it.
    unsafe {
        pool.backend.copy_to_host(pool.device(), &mut before, block.address()).unwrap();
        pool.backend.copy_from_host(pool.device(), block.address(), &after).unwrap();
    }
    before
}

#[test]
fn pool_scrubs_and_shares_on_request() {
    let host = AnyBackend::from(HostConfig::new().devices(2).open().unwrap());
    for wanted in [false, true] {
        let page = Bytes::mib(2).0;
        let options =
            PoolOptions { device: 1, page, scrub: wanted, shareable: wanted, ..PoolOptions::DEFAULT };
        let pool = Pool::new(&host, &options).unwrap();
        written(&pool, "one", 7);
        assert_eq!(written(&pool, "other", 8), [if wanted { 0 } else { 7 }; 64], "{wanted}");
        let block = pool.blocks.alloc(Bytes::mib(2)).unwrap();
        let (memory, _) = pool.blocks.memory_at(block.address(), Bytes::mib(2)).unwrap();
        let properties = memory[0].properties();
        assert_eq!(properties.handle_types.contains(HandleTypes::FILE_DESCRIPTOR), wanted);
        assert_eq!(properties.device, DeviceId(1));
        assert_eq!(BlockInfo::from(pool.blocks.find(block.address()).unwrap()).device, 1);
    }
}

#[test]
fn memory_of_a_block_is_found_piece_by_piece() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let page = Bytes::mib(2).0;
    let options = PoolOptions { page, shareable: true, ..PoolOptions::DEFAULT };
    let made = Pool::new(&host, &options).unwrap();
    let block = made.blocks.request(Bytes::mib(3)).alignment(Bytes(page)).alloc().unwrap();
    let pool = handles::add(made).unwrap();
    let find = |address: u64| {
        let (mut physical, mut offset, mut size) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: the pool is not freed before, and the places are writable.
        let status = unsafe { gpu_vmm_pool_memory_at(pool, address, &raw mut physical, &raw mut offset) };
        // SAFETY: the object was made above, or is null, and is released once.
        unsafe {
            gpu_vmm_physical_size(physical, &raw mut size);
            gpu_vmm_physical_release(physical);
        }
        (status, offset, size)
    };
    let at = block.address().0;
    assert_eq!(find(at + 5), (GPU_VMM_OK, 5, page));
    assert_eq!(find(at + page), (GPU_VMM_OK, 0, page));
    assert_eq!(find(16), (GPU_VMM_NOT_FOUND, 0, 0));
    // SAFETY: the places are null, which is refused.
    let refused = unsafe { gpu_vmm_pool_memory_at(pool, at, std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!(refused, GPU_VMM_INVALID_ARGUMENT);
    drop(block);
    // SAFETY: it is freed once.
    unsafe { gpu_vmm_pool_free(pool) };
}

#[test]
fn long_tag_is_cut_between_characters() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let pool = Pool::new(&host, &PoolOptions::DEFAULT).unwrap();
    // The character of two bytes would end in the place of the terminating zero.
    for (tag, shown) in [("x".repeat(62) + "\u{e9}z", 62), ("x".repeat(64), 63), ("x".repeat(63), 63)] {
        let block = pool.tagged(&tag).unwrap().blocks.alloc(Bytes(512)).unwrap();
        let found = BlockInfo::from(pool.blocks.find(block.address()).unwrap());
        // SAFETY: the text ends with a zero.
        let text = unsafe { CStr::from_ptr(found.tag.as_ptr()) };
        assert_eq!(text.to_str().unwrap(), "x".repeat(shown));
    }
}

/// Returns the JSON that a function writes.
fn json(
    pool: *const Pool,
    write: unsafe extern "C" fn(*const Pool, *mut *mut c_char) -> Status,
) -> serde_json::Value {
    let mut text = std::ptr::null_mut();
    // SAFETY: the pool lives, and the text is freed once.
    unsafe {
        assert_eq!(write(pool, &raw mut text), GPU_VMM_OK);
        let value = serde_json::from_str(CStr::from_ptr(text).to_str().unwrap()).unwrap();
        gpu_vmm_string_free(text);
        value
    }
}

#[test]
fn blocks_are_aligned_and_trimmed() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let options = PoolOptions { page: Bytes::mib(2).0, ..PoolOptions::DEFAULT };
    let pool = handles::add(Pool::new(&host, &options).unwrap()).unwrap();
    let stream = std::ptr::null_mut();
    let (mut blocks, mut given_back) = ([0; 4], 1);
    // SAFETY: the pool is not freed before the last call, and the places are writable.
    unsafe {
        for block in &mut blocks {
            assert_eq!(gpu_vmm_alloc(pool, 512, Bytes::mib(1).0, stream, block), GPU_VMM_OK);
            assert!(block.is_multiple_of(Bytes::mib(1).0), "{block:#x}");
        }
        assert_eq!(gpu_vmm_record_use(pool, blocks[0] + 1, stream), GPU_VMM_NOT_FOUND);
        for block in blocks {
            assert_eq!(gpu_vmm_free(pool, block), GPU_VMM_OK);
        }
        for block in &mut blocks {
            assert_eq!(gpu_vmm_alloc(pool, Bytes::mib(2).0, 0, stream, block), GPU_VMM_OK);
        }
        for block in blocks {
            assert_eq!(gpu_vmm_free(pool, block), GPU_VMM_OK);
        }
        let held = json(pool, gpu_vmm_pool_stats)["held"].as_u64().unwrap();
        assert!(held >= Bytes::mib(8).0);
        assert_eq!(gpu_vmm_trim(pool, Bytes::mib(2).0, &raw mut given_back), GPU_VMM_OK);
        let kept = json(pool, gpu_vmm_pool_snapshot)["stats"]["held"].as_u64();
        assert_eq!((given_back, kept), (held - Bytes::mib(2).0, Some(Bytes::mib(2).0)));
        assert_eq!(gpu_vmm_set_budget(pool, 0), GPU_VMM_OK);
        assert_eq!(json(pool, gpu_vmm_pool_stats)["held"], 0);
        assert_eq!(gpu_vmm_alloc(pool, 1, 0, stream, &raw mut blocks[0]), GPU_VMM_OUT_OF_MEMORY);
        assert_eq!(gpu_vmm_set_budget(pool, u64::MAX), GPU_VMM_OK);
        assert_eq!(gpu_vmm_alloc(pool, 1, 0, stream, &raw mut blocks[0]), GPU_VMM_OK);
        gpu_vmm_pool_free(pool);
    }
}

#[test]
fn tag_is_suspended_until_resume() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let made = Pool::new(&host, &PoolOptions::DEFAULT).unwrap();
    let _block = made.tagged("weights").unwrap().blocks.alloc(Bytes::mib(2)).unwrap();
    let pool = handles::add(made).unwrap();
    let (tag, nowhere) = (c"weights".as_ptr(), std::ptr::null());
    let (mut bytes, mut suspended) = ([0; 2], [false; 3]);
    // SAFETY: the pool is not freed before the last call, the tag is a string, and the places are writable.
    unsafe {
        assert_eq!(gpu_vmm_is_suspended(pool, tag, &raw mut suspended[0]), GPU_VMM_OK);
        assert_eq!(gpu_vmm_suspend(pool, tag, nowhere, &raw mut bytes[0]), GPU_VMM_OK);
        assert_eq!(gpu_vmm_is_suspended(pool, tag, &raw mut suspended[1]), GPU_VMM_OK);
        assert_eq!(gpu_vmm_resume(pool, tag, &raw mut bytes[1]), GPU_VMM_OK);
        assert_eq!(gpu_vmm_is_suspended(pool, tag, &raw mut suspended[2]), GPU_VMM_OK);
        gpu_vmm_pool_free(pool);
    }
    assert_eq!(suspended, [false, true, false]);
    assert!(bytes[0] >= Bytes::mib(2).0 && bytes[0] == bytes[1], "{bytes:?}");
}

#[test]
fn copies_stop_at_the_blocks_end() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let pool = handles::add(Pool::new(&host, &PoolOptions::DEFAULT).unwrap()).unwrap();
    let (mut tagged, mut address, mut block) = (std::ptr::null_mut(), 0, MaybeUninit::<BlockInfo>::uninit());
    // SAFETY: the pools are freed last, the texts are strings, the places are writable, and `find` has written the block.
    unsafe {
        assert_eq!(gpu_vmm_pool_tagged(pool, c"weights".as_ptr(), &raw mut tagged), GPU_VMM_OK);
        assert_eq!(gpu_vmm_alloc(tagged, 1000, 0, std::ptr::null_mut(), &raw mut address), GPU_VMM_OK);
        assert_eq!(gpu_vmm_find(pool, address + 9, block.as_mut_ptr()), GPU_VMM_OK);
        let block = block.assume_init();
        assert_eq!((block.base, block.offset), (address, 9));
        assert_eq!(CStr::from_ptr(block.tag.as_ptr()), c"weights");
        let end = address + block.capacity;
        let write = |at| gpu_vmm_write(pool, at, b"bytes".as_ptr().cast(), 5);
        let mut found = [0; 5];
        let mut read = |at, size| gpu_vmm_read(pool, at, found.as_mut_ptr().cast(), size);
        assert_eq!((write(end - 5), read(end - 5, 5)), (GPU_VMM_OK, GPU_VMM_OK));
        let beyond = [write(end - 4), read(end - 4, 5), read(address, u64::MAX)];
        assert_eq!(beyond, [GPU_VMM_OUT_OF_RANGE; 3]);
        assert_eq!(read(end - 4, 5), GPU_VMM_OUT_OF_RANGE);
        let (at, base) = (Address(end - 4), Address(address));
        assert_eq!(
            last_error(),
            format!("read: 5 B at {at} exceed the block at {base}, which ends 4 B after that address")
        );
        assert_eq!([read(1 << 20, 1), write(1 << 20)], [GPU_VMM_NOT_FOUND; 2]);
        let mut none = MaybeUninit::<BlockInfo>::uninit();
        assert_eq!(gpu_vmm_find(pool, 1 << 20, none.as_mut_ptr()), GPU_VMM_NOT_FOUND);
        assert_eq!(none.assume_init().base, 0, "no block is described");
        assert_eq!(gpu_vmm_read(pool, address, std::ptr::null_mut(), 1), GPU_VMM_INVALID_ARGUMENT);
        let (tag, nowhere) = (c"weights".as_ptr(), std::ptr::null());
        assert_eq!(gpu_vmm_suspend(pool, tag, nowhere, std::ptr::null_mut()), GPU_VMM_OK);
        assert_eq!([read(address, 1), write(address)], [GPU_VMM_SUSPENDED; 2]);
        assert_eq!(found, *b"bytes");
        gpu_vmm_pool_free(tagged);
        gpu_vmm_pool_free(pool);
    }
}

#[test]
fn pool_keeps_amounts_of_its_options() {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let page = Bytes::mib(2).0;
    for (keep, kept) in [(0, 4 * page), (GPU_VMM_KEEP_NOTHING, 0), (2 * page, 2 * page)] {
        let pool = Pool::new(&host, &PoolOptions { page, keep, ..PoolOptions::DEFAULT }).unwrap();
        let blocks: Vec<_> = (0..4).map(|_| pool.blocks.alloc(Bytes(page)).unwrap()).collect();
        assert_eq!(pool.blocks.stats().held, 4 * page);
        drop(blocks);
        assert_eq!(pool.blocks.stats().held, kept, "{keep}");
    }
    let pool = Pool::new(&host, &PoolOptions { page, budget: 2 * page, ..PoolOptions::DEFAULT }).unwrap();
    let pool = handles::add(pool).unwrap();
    let (mut address, stream) = (1, std::ptr::null_mut());
    // SAFETY: the pool is freed last, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_alloc(pool, 3 * page, 0, stream, &raw mut address), GPU_VMM_OUT_OF_MEMORY);
        assert_eq!(address, 0, "there is no block");
        assert_eq!(gpu_vmm_alloc(pool, 2 * page, 0, stream, &raw mut address), GPU_VMM_OK);
        gpu_vmm_pool_free(pool);
    }
    let later = PoolOptions { reserved: [0, 0, 0, 1], ..PoolOptions::DEFAULT };
    let failure = Pool::new(&host, &later).map(drop).unwrap_err();
    assert_eq!(failure.status, GPU_VMM_INVALID_ARGUMENT);
    assert!(
        failure.text.starts_with("make a pool: options.reserved is not zero; set the whole"),
        "{failure:?}"
    );
}
