//! The functions of an allocator for the whole process, and of a tag.

use super::*;
use crate::pool::{BlockInfo, Pool, gpu_vmm_find, gpu_vmm_pool_free};
use crate::status::{GPU_VMM_BUSY, GPU_VMM_NO_SUCH_DEVICE};
use crate::tests::last_error;
use crate::torch::class::account::{
    gpu_vmm_torch_allow_access, gpu_vmm_torch_reset_accumulated, gpu_vmm_torch_reset_peak,
};
use crate::torch::class::pools::gpu_vmm_torch_pool_tag;
use crate::torch::hooks::{
    gpu_vmm_torch_alloc, gpu_vmm_torch_begin_allocate_to_pool, gpu_vmm_torch_end_allocate_to_pool,
    gpu_vmm_torch_free, gpu_vmm_torch_release_pool,
};
use crate::torch::process::{gpu_vmm_torch_pool, gpu_vmm_torch_set_tag};
use crate::torch::slots::gpu_vmm_torch_functions;
use std::ffi::c_int;

/// Returns the tag of the live block at an address, or `None` if there is none.
fn tag_of(pool: *const Pool, address: usize) -> Option<String> {
    let mut block = MaybeUninit::<BlockInfo>::uninit();
    // SAFETY: the pool is not freed yet, and the place is writable.
    let status = unsafe { gpu_vmm_find(pool, address as u64, block.as_mut_ptr()) };
    if status != GPU_VMM_OK {
        assert_eq!(status, GPU_VMM_NOT_FOUND);
        return None;
    }
    // SAFETY: the call has written the block.
    let tag = unsafe { block.assume_init() }.tag;
    // SAFETY: a tag ends with a zero.
    Some(unsafe { CStr::from_ptr(tag.as_ptr()) }.to_str().unwrap().to_owned())
}

#[test]
fn blocks_have_tag_of_thread_or_functions() {
    const NAME: &str = "torch::class::tests::hooks::blocks_have_tag_of_thread_or_functions";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions::DEFAULT);
    let (mut pool, mut none, mut alloc, mut free) = (null_mut(), null_mut(), null_mut(), null_mut());
    let stream = null_mut();
    // SAFETY: the places are writable, the texts are strings, and the functions have the types of an allocator of PyTorch.
    unsafe {
        assert_eq!(gpu_vmm_torch_pool(0, &raw mut pool), GPU_VMM_OK);
        // The first use of a pool has fixed the configuration.
        assert_eq!(gpu_vmm_torch_configure(c"host".as_ptr(), null()), GPU_VMM_BUSY);
        assert_eq!(gpu_vmm_torch_pool(64, &raw mut none), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "allocate: there is no device 64");
        let tagged = |tag: *const std::ffi::c_char| {
            assert_eq!(gpu_vmm_torch_set_tag(tag), GPU_VMM_OK);
            let block = gpu_vmm_torch_alloc(4096, 0, stream);
            let tag = tag_of(pool, block.addr()).unwrap();
            gpu_vmm_torch_free(block, 4096, 0, stream);
            assert_eq!(tag_of(pool, block.addr()), None, "it is freed");
            tag
        };
        let block = gpu_vmm_torch_alloc(4096, 0, stream);
        assert_eq!(tag_of(pool, block.addr()).as_deref(), Some("torch"), "no thread has set a tag");
        gpu_vmm_torch_free(block, 4096, 0, stream);
        assert_eq!([tagged(c"kv".as_ptr()), tagged(null())], ["kv", "torch"]);
        assert_eq!(gpu_vmm_torch_set_tag(c"kv".as_ptr()), GPU_VMM_OK);
        std::thread::scope(|scope| {
            let pool = pool.addr();
            scope.spawn(move || {
                let block = gpu_vmm_torch_alloc(4096, 0, null_mut());
                let pool = without_provenance_mut(pool);
                assert_eq!(tag_of(pool, block.addr()).as_deref(), Some("torch"), "a thread has its own tag");
                gpu_vmm_torch_free(block, 4096, 0, null_mut());
            });
        });
        assert!(gpu_vmm_torch_alloc(0, 0, stream).is_null());
        gpu_vmm_torch_free(null_mut(), 0, 0, stream);

        let functions = gpu_vmm_torch_functions(c"weights".as_ptr(), &raw mut alloc, null_mut());
        assert_eq!((functions, alloc.is_null()), (GPU_VMM_INVALID_ARGUMENT, true));
        let functions = gpu_vmm_torch_functions(c"weights".as_ptr(), &raw mut alloc, &raw mut free);
        assert_eq!(functions, GPU_VMM_OK);
        type Alloc = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
        type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);
        let (alloc, free) = (
            std::mem::transmute::<*mut c_void, Alloc>(alloc),
            std::mem::transmute::<*mut c_void, Free>(free),
        );
        let block = alloc(4096, 0, stream);
        assert_eq!(tag_of(pool, block.addr()).as_deref(), Some("weights"));
        assert!(block.addr().is_multiple_of(512));
        free(block, 4096, 0, stream);
        assert_eq!(tag_of(pool, block.addr()), None);
        assert!(alloc(-1, 0, stream).is_null());
        assert_eq!(last_error(), "allocate: the size is -1");
        assert!(alloc(4096, 64, stream).is_null() && alloc(0, 0, stream).is_null());
        assert_eq!(last_error(), "allocate: there is no device 64");
        gpu_vmm_pool_free(pool);
    }
}

#[test]
fn capture_hooks_reach_their_devices_graphs() {
    const NAME: &str = "torch::class::tests::hooks::capture_hooks_reach_their_devices_graphs";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions::DEFAULT);
    let graphs = &device(0).unwrap().graphs;
    gpu_vmm_torch_begin_allocate_to_pool(0, ID, null());
    assert!(graphs.is_begun());
    let block = graphs.alloc(Bytes::mib(3), ALIGNMENT, Stream::DEFAULT).unwrap().unwrap();
    let mut pool = null_mut();
    // SAFETY: the place is writable, and the pool is freed last.
    unsafe {
        assert_eq!(gpu_vmm_torch_pool(0, &raw mut pool), GPU_VMM_OK);
        assert_eq!(tag_of(pool, block.0 as usize).as_deref(), Some("torch graphs"));
        let named = without_provenance_mut(block.0 as usize);
        gpu_vmm_torch_record_stream(named, without_provenance_mut(4096));
        gpu_vmm_torch_free(named, 0, 0, null_mut());
        assert!(tag_of(pool, block.0 as usize).is_some(), "the graph may use it");
        let next = graphs.alloc(Bytes::mib(3), ALIGNMENT, Stream::DEFAULT).unwrap().unwrap();
        assert_ne!(next, block, "the other stream may use it");
        assert!(graphs.free(next).unwrap());
        gpu_vmm_torch_end_allocate_to_pool(0, ID);
        assert!(!graphs.is_begun());
        gpu_vmm_torch_release_pool(0, ID);
        assert!(tag_of(pool, block.0 as usize).is_none(), "the graph is gone");
        gpu_vmm_pool_free(pool);
    }
}

#[test]
fn unknown_backend_and_later_options_refused() {
    const NAME: &str = "torch::class::tests::hooks::unknown_backend_and_later_options_refused";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    let later = PoolOptions { reserved: [0, 0, 0, 1], ..PoolOptions::DEFAULT };
    // SAFETY: the names are strings, and the options are initialized or null.
    let refused = unsafe {
        [
            gpu_vmm_torch_configure(c"vulkan".as_ptr(), null()),
            gpu_vmm_torch_configure(c"host".as_ptr(), &raw const later),
        ]
    };
    assert_eq!(refused, [GPU_VMM_INVALID_ARGUMENT; 2]);
}

#[test]
fn missing_devices_and_private_pools_refused() {
    const NAME: &str = "torch::class::tests::hooks::missing_devices_and_private_pools_refused";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions::DEFAULT);
    let mut usage = MaybeUninit::<TorchUsage>::uninit();
    // SAFETY: the places are writable, and the texts are strings.
    unsafe {
        for number in [-1, 64] {
            assert_eq!(gpu_vmm_torch_measure(number, usage.as_mut_ptr()), GPU_VMM_INVALID_ARGUMENT);
            assert_eq!(last_error(), format!("query: there is no device {number}"));
            let others = [gpu_vmm_torch_reset_peak(number), gpu_vmm_torch_reset_accumulated(number)];
            assert_eq!(others, [GPU_VMM_INVALID_ARGUMENT; 2]);
        }
        assert_eq!(gpu_vmm_torch_measure(63, usage.as_mut_ptr()), GPU_VMM_OK);
        assert_eq!(usage.assume_init().page, 0, "nothing was allocated there");
        assert_eq!(gpu_vmm_torch_measure(0, null_mut()), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(gpu_vmm_torch_allow_access(0, -1), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "allow access: there is no device -1");
        assert_eq!(gpu_vmm_torch_allow_access(0, 1), GPU_VMM_NO_SUCH_DEVICE);
        let tag = c"weights".as_ptr();
        assert_eq!(gpu_vmm_torch_pool_tag(0, ID, tag), GPU_VMM_NOT_FOUND);
        assert!(
            last_error().starts_with("private pool: there is none with the identifier"),
            "{}",
            last_error()
        );
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_pool_tag(0, ID, null()), GPU_VMM_INVALID_ARGUMENT);
        let (mut block, mut pool) = (TorchBlock::at(0, 0, 0), null_mut());
        assert_eq!(gpu_vmm_torch_pool(0, &raw mut pool), GPU_VMM_OK);
        for expected in ["torch graphs", "weights"] {
            assert_eq!(gpu_vmm_torch_allocate(0, 5000, null_mut(), &ID, &raw mut block), GPU_VMM_OK);
            assert_eq!(tag_of(pool, block.address as usize).as_deref(), Some(expected));
            assert_eq!(gpu_vmm_torch_pool_tag(0, ID, tag), GPU_VMM_OK);
        }
        assert_eq!(gpu_vmm_torch_record_use(512, null_mut()), GPU_VMM_NOT_FOUND);
        assert_eq!(last_error(), "record use: no live block of PyTorch begins at 0x200");
        assert_eq!(gpu_vmm_torch_find(512, &raw mut block), GPU_VMM_NOT_FOUND);
        assert_eq!((block.address, block.size), (0, 0), "no block is described");
        let (mut handle, mut offset) = (null_mut(), 1);
        assert_eq!(gpu_vmm_torch_export(512, &raw mut handle, &raw mut offset), GPU_VMM_NOT_FOUND);
        assert_eq!((handle.is_null(), offset), (true, 0));
        let (mut imported, mut at) = (null_mut(), 1);
        for (handle, begin) in [
            (c"no handle", "import: the handle is none of gpu-vmm: "),
            (c"{\"offset\": 0, \"page\": 4096, \"pages\": []}", "import: 0 pages of 4096 bytes"),
        ] {
            let status = gpu_vmm_torch_import(handle.as_ptr(), &raw mut imported, &raw mut at);
            assert_eq!((status, imported.is_null(), at), (GPU_VMM_INVALID_ARGUMENT, true, 0));
            assert!(last_error().starts_with(begin), "{}", last_error());
        }
        gpu_vmm_pool_free(pool);
    }
}
