//! The pool of a device that is restored from a file.

use super::*;
use crate::pool::{Pool, gpu_vmm_pool_free};
use crate::saved_pool::{RestoredBlock, gpu_vmm_pool_save};
use crate::status::{GPU_VMM_BUSY, GPU_VMM_FILE, Status};
use crate::tests::last_error;
use crate::torch::hooks::{gpu_vmm_torch_alloc, gpu_vmm_torch_free};
use crate::torch::restored::{gpu_vmm_torch_claim, gpu_vmm_torch_end_restore, gpu_vmm_torch_restore_pool};
use crate::torch::table;
use gpu_vmm::{Address, AnyBackend, CopyCalls as _, Vendor};

/// Writes blocks of these tags and sizes to a file, each full of its number, and returns their addresses.
fn save(path: &CStr, rows: &[(&str, u64)]) -> Vec<u64> {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let options = PoolOptions { restorable: true, page: 2 << 20, ..PoolOptions::DEFAULT };
    let pool = Pool::new(&host, &options).unwrap();
    let blocks: Vec<_> = rows
        .iter()
        .zip(1..)
        .map(|((tag, size), number)| {
            let mut block = pool.tagged(tag).unwrap().blocks.alloc(Bytes(*size)).unwrap();
            block.write(Bytes::ZERO, &vec![number; *size as usize]).unwrap();
            block
        })
        .collect();
    let pool = handles::add(pool).unwrap();
    // SAFETY: the pool lives until it is freed, and the path is a string.
    unsafe {
        assert_eq!(gpu_vmm_pool_save(pool, path.as_ptr(), null(), 0, false), GPU_VMM_OK);
        gpu_vmm_pool_free(pool);
    }
    blocks.iter().map(|block| block.address().0).collect()
}

fn restore(path: &CStr, tag: &CStr, count: usize) -> Result<Vec<RestoredBlock>, Status> {
    let none = RestoredBlock { address: 0, size: 0, capacity: 0, stream: null_mut(), tag: [0; 64] };
    let mut blocks = vec![none; count];
    // SAFETY: the path and the tag are strings, and the places are writable.
    let status = unsafe {
        gpu_vmm_torch_restore_pool(0, path.as_ptr(), tag.as_ptr(), blocks.as_mut_ptr(), count as u64)
    };
    if status == GPU_VMM_OK { Ok(blocks) } else { Err(status) }
}

/// Allocates as PyTorch's allocator class does, and returns the address.
fn allocate(size: u64, stream: *mut c_void, pool: Option<MempoolId>) -> u64 {
    let (mut block, id) = (TorchBlock::at(0, 0, 0), pool.as_ref().map_or(null(), std::ptr::from_ref));
    // SAFETY: the place is writable, and the identifier null or valid for the call.
    let status = unsafe { gpu_vmm_torch_allocate(0, size, stream, id, &raw mut block) };
    assert_eq!(status, GPU_VMM_OK, "{}", last_error());
    assert_eq!(block.size, size);
    block.address
}

fn bytes_at(address: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    let pool = &device(0).unwrap().pool;
    // SAFETY: the block lives, and no other thread uses it.
    unsafe { pool.backend.copy_to_host(pool.device(), &mut bytes, Address(address)) }.unwrap();
    bytes
}

fn live() -> u64 {
    device(0).unwrap().pool.blocks.stats().live_blocks
}

#[test]
fn claimed_blocks_are_blocks_of_pytorch() {
    const NAME: &str = "torch::class::tests::restored::claimed_blocks_are_blocks_of_pytorch";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions::DEFAULT);
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-torch-{}", std::process::id()));
    let path = CString::new(file.to_str().unwrap()).unwrap();
    const SIZES: [(&str, u64); 5] =
        [("torch", 3 << 20), ("weights", 700), ("weights", 1 << 20), ("torch", 512), ("torch", 512)];
    let [large, small, other, left, unclaimed] = save(&path, &SIZES).try_into().unwrap();
    assert_eq!(restore(&path, c"none", 5).err(), Some(GPU_VMM_FILE));
    assert!(last_error().ends_with("has no block tagged \"none\""), "{}", last_error());
    assert_eq!(restore(&path, c"torch", 4).err(), Some(GPU_VMM_INVALID_ARGUMENT));
    assert_eq!(gpu_vmm_torch_claim(0, large), GPU_VMM_NOT_FOUND);
    let blocks = restore(&path, c"weights", 5).unwrap();
    assert!(blocks.iter().any(|block| (block.address, block.size) == (large, 3 << 20)));
    assert_eq!(restore(&path, c"torch", 5).err(), Some(GPU_VMM_BUSY));
    std::fs::remove_file(file).unwrap();
    assert_eq!(live(), 5);

    assert_eq!(gpu_vmm_torch_claim(0, large + 512), GPU_VMM_NOT_FOUND);
    assert_eq!(gpu_vmm_torch_claim(0, large), GPU_VMM_OK);
    let id = MempoolId { first: 0, second: 9 };
    assert_eq!(gpu_vmm_torch_pool_acquire(0, id), GPU_VMM_OK);
    let private = allocate(1 << 20, null_mut(), Some(id));
    assert!(!blocks.iter().any(|block| block.address == private));
    // The claim is still there, and for one request.
    assert_eq!(allocate(3 << 20, null_mut(), None), large);
    assert_eq!(bytes_at(large, 3 << 20), vec![1; 3 << 20]);
    assert_eq!(gpu_vmm_torch_claim(0, large), GPU_VMM_NOT_FOUND);
    assert_ne!(allocate(512, null_mut(), None), large);
    // A request that is too large for the block gets another one.
    assert_eq!(gpu_vmm_torch_claim(0, small), GPU_VMM_OK);
    assert_ne!(allocate(1 << 20, null_mut(), None), small);
    assert_ne!(allocate(700, null_mut(), None), small);
    assert_eq!(gpu_vmm_torch_claim(0, small), GPU_VMM_OK);
    // The functions of the hook.
    // SAFETY: null is the default stream.
    let hooked = unsafe { gpu_vmm_torch_alloc(700, 0, null_mut()) };
    assert_eq!(hooked.addr() as u64, small);
    assert_eq!(bytes_at(small, 700), [2; 700]);
    let before = live();
    gpu_vmm_torch_free(hooked, 700, 0, null_mut());
    assert_eq!(live(), before - 1);
    // A claimed block waits for the stream of its request as well.
    let stream = without_provenance_mut(8);
    for (address, size, stream, is_used) in [(other, 1 << 20, stream, true), (left, 512, null_mut(), false)] {
        assert_eq!(gpu_vmm_torch_claim(0, address), GPU_VMM_OK);
        assert_eq!(allocate(size, stream, None), address);
        let used = table::with(Address(address), |entry| entry.block.is_used_elsewhere());
        assert_eq!(used, Some(is_used));
    }
    let before = live();
    // SAFETY: null is no place for the description.
    assert_eq!(unsafe { gpu_vmm_torch_deallocate(large, null_mut()) }, GPU_VMM_OK);
    assert_eq!(live(), before - 1);
    // The last block is claimed, and no request takes it.
    assert_eq!(gpu_vmm_torch_claim(0, unclaimed), GPU_VMM_OK);
    assert_eq!(gpu_vmm_torch_end_restore(0), GPU_VMM_OK);
    assert_eq!(live(), before - 2);
    let before = live();
    allocate(512, null_mut(), None);
    assert_eq!(live(), before + 1);
    assert_eq!(gpu_vmm_torch_end_restore(7), GPU_VMM_OK);
}
