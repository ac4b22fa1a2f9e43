//! Budgets and page sizes of the process's pools, and results of sharing. The first allocation of a process fixes its configuration,
//! so each case runs in a process of its own.
#![allow(clippy::unwrap_used)]

use super::account::{
    TorchUsage, gpu_vmm_torch_collect, gpu_vmm_torch_collect_ended, gpu_vmm_torch_measure,
    gpu_vmm_torch_set_limit,
};
use super::blocks::{
    gpu_vmm_torch_allocate, gpu_vmm_torch_allocate_at_last, gpu_vmm_torch_deallocate, gpu_vmm_torch_find,
    gpu_vmm_torch_record_use,
};
use super::pools::{
    gpu_vmm_torch_checkpoint, gpu_vmm_torch_checkpoint_free, gpu_vmm_torch_pool_acquire,
    gpu_vmm_torch_pool_begin, gpu_vmm_torch_pool_end, gpu_vmm_torch_pool_release,
    gpu_vmm_torch_pool_use_on_oom, gpu_vmm_torch_pool_uses, gpu_vmm_torch_restore,
};
use super::share::{gpu_vmm_torch_export, gpu_vmm_torch_import, gpu_vmm_torch_imported_free};
use crate::handles;
use crate::pool_options::PoolOptions;
use crate::status::{GPU_VMM_INVALID_ARGUMENT, GPU_VMM_NOT_FOUND, GPU_VMM_OK, GPU_VMM_OUT_OF_MEMORY};
use crate::texts::gpu_vmm_string_free;
use crate::torch::graphs::MempoolId;
use crate::torch::hooks::{gpu_vmm_torch_empty_cache, gpu_vmm_torch_record_stream};
use crate::torch::importers::admitted;
use crate::torch::process::{ALIGNMENT, device, gpu_vmm_torch_configure};
use crate::torch::table::TorchBlock;
use gpu_vmm::{Bytes, Stream};
use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::process::Command;
use std::ptr::{null, null_mut, without_provenance_mut};

mod hooks;
mod restored;

/// The page size of a pool without a small budget.
const PAGE: u64 = 16 << 20;

/// The environment variable with the number of the case.
const CASE: &str = "GPU_VMM_TEST_TORCH_CASE";

/// Budgets, configured page sizes, and the page sizes of the pools, where 0 means any that is less than the budget.
const CASES: [(u64, u64, u64); 7] = [
    (0, 0, PAGE),
    (PAGE / 4, 0, 0),
    (PAGE, 0, 0),
    (16 * PAGE - 1, 0, 0),
    (16 * PAGE, 0, PAGE),
    (0, PAGE / 4, PAGE / 4),
    (16 * PAGE, PAGE / 4, PAGE / 4),
];

fn usage() -> TorchUsage {
    let mut usage = MaybeUninit::<TorchUsage>::uninit();
    // SAFETY: the usage is writable.
    assert_eq!(unsafe { gpu_vmm_torch_measure(0, usage.as_mut_ptr()) }, GPU_VMM_OK);
    // SAFETY: the call has written it.
    unsafe { usage.assume_init() }
}

/// Allocates and frees a block, and returns whether it fitted.
fn fits(size: u64) -> bool {
    let mut block = TorchBlock::at(0, 0, 0);
    // SAFETY: the block is valid for the call; null is no private pool, and the default stream.
    let status = unsafe { gpu_vmm_torch_allocate(0, size, null_mut(), null(), &raw mut block) };
    if status == GPU_VMM_OK {
        // SAFETY: the description of the freed block is not wanted.
        assert_eq!(unsafe { gpu_vmm_torch_deallocate(block.address, null_mut()) }, GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect(), GPU_VMM_OK);
    } else {
        assert_eq!(status, GPU_VMM_OUT_OF_MEMORY);
    }
    status == GPU_VMM_OK
}

fn has_budget(budget: u64, page: u64, expected: u64) {
    let options = PoolOptions { budget, page, ..PoolOptions::DEFAULT };
    // SAFETY: the name is a string, and the options are initialized.
    assert_eq!(unsafe { gpu_vmm_torch_configure(c"host".as_ptr(), &raw const options) }, GPU_VMM_OK);
    assert!(fits(1 << 20));
    match expected {
        0 => assert!(usage().page < budget.min(PAGE), "{}", usage().page),
        expected => assert_eq!(usage().page, expected),
    }
    let limit = |bytes| assert_eq!(gpu_vmm_torch_set_limit(0, bytes), GPU_VMM_OK);
    // Without a budget, the limit alone counts.
    let page = usage().page;
    let most = if budget == 0 { 8 * PAGE } else { budget - budget % page };
    let half = most / page / 2 * page;
    limit(half);
    assert!(fits(half) && !fits(half + page));
    limit(u64::MAX);
    assert!(fits(most));
    assert_eq!(fits(most + page), budget == 0);
}

#[test]
fn limit_fits_budget_and_pages() {
    const NAME: &str = "torch::class::tests::limit_fits_budget_and_pages";
    if let Ok(case) = std::env::var(CASE) {
        let (budget, page, expected) = CASES[case.parse::<usize>().unwrap()];
        return has_budget(budget, page, expected);
    }
    for place in 0..CASES.len() {
        run(NAME, place);
    }
}

/// Slack in percent, and the pages that the pool holds for a need of 63: one percent more or less makes one page.
const SLACKS: [(u32, u64); 4] = [(0, 63), (7, 67), (6, 66), (8, 68)];

/// Without slack of its own, a pool creates memory up to 1 percent above the needed size, before it maps free memory elsewhere.
#[test]
fn a_pool_has_one_percent_of_slack() {
    const NAME: &str = "torch::class::tests::a_pool_has_one_percent_of_slack";
    let Ok(case) = std::env::var(CASE) else { return (0..SLACKS.len()).for_each(|place| run(NAME, place)) };
    let (slack, pages) = SLACKS[case.parse::<usize>().unwrap()];
    configure(&PoolOptions { slack, ..PoolOptions::DEFAULT });
    let allocate = |pages: u64| {
        let mut block = TorchBlock::at(0, 0, 0);
        // SAFETY: the place is writable; null is no private pool, and the default stream.
        let status = unsafe { gpu_vmm_torch_allocate(0, pages * PAGE, null_mut(), null(), &raw mut block) };
        assert_eq!(status, GPU_VMM_OK);
        block.address
    };
    let (first, _between) = (allocate(61), allocate(1));
    // SAFETY: null is no place for the description.
    assert_eq!(unsafe { gpu_vmm_torch_deallocate(first, null_mut()) }, GPU_VMM_OK);
    // It does not fit where the first one was.
    allocate(62);
    assert_eq!(usage().held / PAGE, pages, "{slack} %");
}

/// Runs a case of a test in a process of its own.
fn run(test: &str, case: usize) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--test-threads=1"]).env(CASE, case.to_string());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{test}, case {case}: {text}");
}

#[test]
fn both_results_need_a_place() {
    const NAME: &str = "torch::class::tests::both_results_need_a_place";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    let options = PoolOptions { shareable: true, ..PoolOptions::DEFAULT };
    let mut block = TorchBlock::at(0, 0, 0);
    let (mut handle, mut offset, mut imported, mut address) = (null_mut(), 1, null_mut(), 1);
    // SAFETY: all pointers are null, which is refused, or valid for the call.
    unsafe {
        assert_eq!(gpu_vmm_torch_configure(c"host".as_ptr(), &raw const options), GPU_VMM_OK);
        // So that the second one does not lie at the beginning of a page.
        for _ in 0..2 {
            assert_eq!(gpu_vmm_torch_allocate(0, 3 << 20, null_mut(), null(), &raw mut block), GPU_VMM_OK);
        }
        let status = gpu_vmm_torch_export(block.address, null_mut(), &raw mut offset);
        assert_eq!((status, offset), (GPU_VMM_INVALID_ARGUMENT, 0));
        assert_eq!(gpu_vmm_torch_export(block.address, &raw mut handle, &raw mut offset), GPU_VMM_OK);
        assert_ne!(offset, 0);
        let status = gpu_vmm_torch_import(handle, null_mut(), &raw mut address);
        assert_eq!((status, address), (GPU_VMM_INVALID_ARGUMENT, 0));
        assert_eq!(gpu_vmm_torch_import(handle, &raw mut imported, &raw mut address), GPU_VMM_OK);
        // Pages keep their alignment, whatever lies between the imports.
        let between = gpu_vmm::AnyBackend::open(gpu_vmm::Vendor::Host).unwrap();
        let between = || gpu_vmm::Region::builder(&between).reserve(Bytes::mib(2)).build().unwrap();
        let more = [(); 4].map(|()| {
            let (mut imported, mut address) = (null_mut(), 1);
            assert_eq!(gpu_vmm_torch_import(handle, &raw mut imported, &raw mut address), GPU_VMM_OK);
            assert!(address.is_multiple_of(PAGE), "{address:#x}");
            (imported, between())
        });
        more.into_iter().for_each(|(imported, _between)| gpu_vmm_torch_imported_free(imported));
        // Addresses of host memory are the process's own.
        let (ours, theirs) = (block.address as *mut u8, (address + offset) as *mut u8);
        ours.write(7);
        theirs.add(block.capacity as usize - 1).write(8);
        assert_eq!((theirs.read(), ours.add(block.capacity as usize - 1).read()), (7, 8));
        // Pages of another size than the handle says would leave holes.
        let mut wrong: serde_json::Value =
            serde_json::from_str(CStr::from_ptr(handle).to_str().unwrap()).unwrap();
        wrong["page"] = (2 * wrong["page"].as_u64().unwrap()).into();
        let wrong = CString::new(wrong.to_string()).unwrap();
        let (mut none, mut nowhere) = (null_mut(), 1);
        let status = gpu_vmm_torch_import(wrong.as_ptr(), &raw mut none, &raw mut nowhere);
        assert_eq!((status, nowhere, none.is_null()), (GPU_VMM_INVALID_ARGUMENT, 0, true));
        let (mut again, mut same) = (null_mut(), 0);
        assert_eq!(gpu_vmm_torch_export(block.address, &raw mut again, &raw mut same), GPU_VMM_OK);
        assert_eq!((CStr::from_ptr(again), same), (CStr::from_ptr(handle), offset), "a block has one handle");
        gpu_vmm_torch_imported_free(imported);
        assert!(handles::find(imported).is_none());
        // A block of several pages is shared to its end.
        let (mut large, first) = (null_mut(), block.address);
        assert_eq!(gpu_vmm_torch_allocate(0, 40 << 20, null_mut(), null(), &raw mut block), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_export(block.address, &raw mut large, &raw mut offset), GPU_VMM_OK);
        let handle_of_large: serde_json::Value =
            serde_json::from_str(CStr::from_ptr(large).to_str().unwrap()).unwrap();
        let pages = handle_of_large["pages"].as_array().unwrap().len() as u64;
        assert_eq!(pages, (offset + block.capacity).div_ceil(PAGE));
        // Others may take descriptors as long as some block is shared.
        for (address, left) in [(first, 1), (block.address, 0)] {
            assert_eq!(admitted(), left + 1);
            assert_eq!(gpu_vmm_torch_deallocate(address, &raw mut block), GPU_VMM_OK);
            assert_eq!(admitted(), left);
        }
        gpu_vmm_string_free(large);
        gpu_vmm_string_free(again);
        gpu_vmm_string_free(handle);
    }
}

const ID: MempoolId = MempoolId { first: 1, second: 2 };

fn configure(options: &PoolOptions) {
    // SAFETY: the name is a string, and the options are initialized.
    assert_eq!(unsafe { gpu_vmm_torch_configure(c"host".as_ptr(), options) }, GPU_VMM_OK);
}

/// Notes the address of a block.
unsafe extern "C" fn note(context: *mut c_void, block: *const TorchBlock) {
    // SAFETY: the context is a vector, and the block is valid for the call.
    unsafe { (*context.cast::<Vec<u64>>()).push((*block).address) }
}

#[test]
fn last_try_takes_spare_private_memory() {
    const NAME: &str = "torch::class::tests::last_try_takes_spare_private_memory";
    const SIZE: u64 = 20 << 20;
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions { budget: 32 << 20, ..PoolOptions::DEFAULT });
    let (mut block, mut found, mut uses, stream) =
        (TorchBlock::at(0, 0, 0), TorchBlock::at(0, 0, 0), 0, null_mut());
    // SAFETY: the places are writable, and null is no private pool and the default stream.
    unsafe {
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_allocate(0, SIZE, stream, &ID, &raw mut block), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_deallocate(block.address, &raw mut found), GPU_VMM_OK);
        assert_eq!((found.address, found.size, found.pool), (block.address, SIZE, ID));
        let at_last = |place| gpu_vmm_torch_allocate_at_last(0, SIZE, stream, place);
        assert_eq!(at_last(&raw mut found), GPU_VMM_OUT_OF_MEMORY);
        assert_eq!(gpu_vmm_torch_pool_use_on_oom(0, ID, true), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_pool_use_on_oom(0, ID, false), GPU_VMM_OK);
        assert_eq!(at_last(&raw mut found), GPU_VMM_OUT_OF_MEMORY, "it is no longer allowed");
        assert_eq!(gpu_vmm_torch_pool_use_on_oom(0, ID, true), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_allocate(0, SIZE, stream, null(), &raw mut found), GPU_VMM_OUT_OF_MEMORY);
        let nothing = gpu_vmm_torch_allocate_at_last(0, 0, stream, &raw mut found);
        assert_eq!(nothing, GPU_VMM_INVALID_ARGUMENT, "spare memory is for requests without memory alone");
        assert_eq!(at_last(&raw mut found), GPU_VMM_OK);
        assert_eq!((found.address, found.pool, found.used_elsewhere), (block.address, ID, false));
        // Use on its own stream is none on another.
        for (other, expected) in [(stream, false), (without_provenance_mut(4096), true)] {
            assert_eq!(gpu_vmm_torch_record_use(block.address, other), GPU_VMM_OK);
            assert_eq!(gpu_vmm_torch_find(block.address + 4096, &raw mut found), GPU_VMM_OK);
            assert_eq!((found.address, found.used_elsewhere), (block.address, expected));
        }
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_pool_uses(0, ID, &raw mut uses), GPU_VMM_OK);
        assert_eq!(uses, 2);
        assert_eq!(gpu_vmm_torch_pool_release(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_pool_uses(0, ID, &raw mut uses), GPU_VMM_OK);
        assert_eq!(uses, 1);
        // A block of a pool that has ended returns before other memory is looked for.
        assert_eq!(gpu_vmm_torch_pool_begin(0, ID, stream), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_pool_release(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_deallocate(block.address, null_mut()), GPU_VMM_OK);
        assert_eq!(at_last(&raw mut found), GPU_VMM_OUT_OF_MEMORY, "requests are diverted");
        assert_eq!(gpu_vmm_torch_pool_end(0, ID), GPU_VMM_OK);
        assert_eq!(at_last(&raw mut found), GPU_VMM_OK);
        assert_eq!(found.pool, MempoolId::default());
        assert_eq!(gpu_vmm_torch_deallocate(found.address, null_mut()), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_deallocate(found.address, &raw mut block), GPU_VMM_NOT_FOUND);
        assert_eq!((block.address, block.capacity), (0, 0), "no block is described");
    }
}

#[test]
fn only_ended_pools_return_their_pages() {
    const NAME: &str = "torch::class::tests::only_ended_pools_return_their_pages";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions { page: 2 << 20, ..PoolOptions::DEFAULT });
    let (mut kept, mut first, mut last) =
        (TorchBlock::at(0, 0, 0), TorchBlock::at(0, 0, 0), TorchBlock::at(0, 0, 0));
    // SAFETY: the places are writable, and null is no private pool and the default stream.
    unsafe {
        assert_eq!(gpu_vmm_torch_allocate(0, 6 << 20, null_mut(), null(), &raw mut kept), GPU_VMM_OK);
        let held = usage().held;
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_allocate(0, 10 << 20, null_mut(), &ID, &raw mut first), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_allocate(0, 4 << 20, null_mut(), &ID, &raw mut last), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_deallocate(first.address, null_mut()), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_deallocate(kept.address, null_mut()), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect_ended(), GPU_VMM_OK);
        assert_eq!(usage().held, held + (14 << 20), "no pool has ended");
        assert_eq!(gpu_vmm_torch_pool_release(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect_ended(), GPU_VMM_OK);
        assert_eq!(usage().held, held + (4 << 20), "the last block is in use");
        assert_eq!(gpu_vmm_torch_deallocate(last.address, null_mut()), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect_ended(), GPU_VMM_OK);
        assert_eq!(usage().held, held, "a block outlived its pool");
        assert_eq!(gpu_vmm_torch_collect_ended(), GPU_VMM_OK);
        assert_eq!(usage().held, held, "nothing is returned for a pool twice");
        // Small blocks lie in a thread's cache, which the collection empties. They count once.
        let mut small = [TorchBlock::at(0, 0, 0); 4];
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        for block in &mut small {
            assert_eq!(gpu_vmm_torch_allocate(0, 1 << 20, null_mut(), &ID, block), GPU_VMM_OK);
        }
        let held = usage().held;
        for block in &small {
            assert_eq!(gpu_vmm_torch_deallocate(block.address, null_mut()), GPU_VMM_OK);
        }
        assert_eq!(gpu_vmm_torch_pool_release(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect_ended(), GPU_VMM_OK);
        assert_eq!(usage().held, held - (4 << 20), "two pages go, and the others stay");
        // Less than a page is returned for no pool.
        assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_allocate(0, 1 << 20, null_mut(), &ID, &raw mut first), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_deallocate(first.address, null_mut()), GPU_VMM_OK);
        let held = usage().held;
        assert_eq!(gpu_vmm_torch_pool_release(0, ID), GPU_VMM_OK);
        assert_eq!(gpu_vmm_torch_collect_ended(), GPU_VMM_OK);
        assert_eq!(usage().held, held);
        assert_eq!(gpu_vmm_torch_collect(), GPU_VMM_OK);
        assert_eq!(usage().held, 0);
    }
}

#[test]
fn restore_names_blocks_before_and_after() {
    const NAME: &str = "torch::class::tests::restore_names_blocks_before_and_after";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions::DEFAULT);
    assert_eq!(gpu_vmm_torch_pool_acquire(0, ID), GPU_VMM_OK);
    let allocate = || {
        let mut block = TorchBlock::at(0, 0, 0);
        // SAFETY: the place is writable, and null is the default stream.
        let status = unsafe { gpu_vmm_torch_allocate(0, 5000, null_mut(), &ID, &raw mut block) };
        assert_eq!(status, GPU_VMM_OK);
        block.address
    };
    let (first, mut named, mut checkpoint) = (allocate(), Vec::<u64>::new(), null_mut());
    let context = (&raw mut named).cast();
    // SAFETY: the function accepts the context, and the checkpoint is freed after its last use.
    unsafe {
        let status = gpu_vmm_torch_checkpoint(0, ID, Some(note), context, &raw mut checkpoint);
        assert_eq!((status, std::mem::take(&mut *context.cast::<Vec<u64>>())), (GPU_VMM_OK, vec![first]));
        let second = allocate();
        assert_eq!(gpu_vmm_torch_deallocate(first, null_mut()), GPU_VMM_OK);
        for (freed, allocated, expected) in [(true, false, second), (false, true, first)] {
            let [freed, allocated] = [freed, allocated].map(|wanted| wanted.then_some(note as _));
            assert_eq!(gpu_vmm_torch_restore(0, checkpoint, freed, allocated, context), GPU_VMM_OK);
            assert_eq!(std::mem::take(&mut *context.cast::<Vec<u64>>()), [expected]);
        }
        gpu_vmm_torch_checkpoint_free(checkpoint);
        assert!(handles::find(checkpoint).is_none());
    }
}

#[test]
fn emptying_cache_returns_released_graph_memory() {
    const NAME: &str = "torch::class::tests::emptying_cache_returns_released_graph_memory";
    if std::env::var_os(CASE).is_none() {
        return run(NAME, 0);
    }
    configure(&PoolOptions::DEFAULT);
    let other = MempoolId { first: 3, second: 4 };
    let graphs = &device(0).unwrap().graphs;
    graphs.begin(ID);
    let block = graphs.alloc(Bytes::mib(3), ALIGNMENT, Stream::DEFAULT).unwrap().unwrap();
    assert!(graphs.free(block).unwrap());
    graphs.end(ID);
    // A capture that goes on: the device is not waited for.
    graphs.begin(other);
    graphs.release(ID).unwrap();
    graphs.end(other);
    assert_ne!(usage().held, 0);
    gpu_vmm_torch_empty_cache();
    assert_eq!(usage().held, 0);
    // An address that is no block's is an error, and changes nothing.
    // SAFETY: the host never dereferences a stream.
    unsafe { gpu_vmm_torch_record_stream(without_provenance_mut(512), null_mut()) };
    // SAFETY: a string that lives until the thread's next error.
    let text = unsafe { CStr::from_ptr(crate::status::gpu_vmm_last_error()) };
    assert!(text.to_str().unwrap().contains("is not the address of a block"), "{text:?}");
}
