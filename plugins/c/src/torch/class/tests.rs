//! Budgets and page sizes of the process's pools, and results of sharing. The first allocation of a process fixes its configuration,
//! so each case runs in a process of its own.
#![allow(clippy::unwrap_used)]

use super::account::{TorchUsage, gpu_vmm_torch_collect, gpu_vmm_torch_measure, gpu_vmm_torch_set_limit};
use super::blocks::{gpu_vmm_torch_allocate, gpu_vmm_torch_deallocate};
use super::share::{gpu_vmm_torch_export, gpu_vmm_torch_import, gpu_vmm_torch_imported_free};
use crate::pool::PoolOptions;
use crate::status::{GPU_VMM_INVALID_ARGUMENT, GPU_VMM_OK, GPU_VMM_OUT_OF_MEMORY};
use crate::texts::gpu_vmm_string_free;
use crate::torch::process::gpu_vmm_torch_configure;
use crate::torch::table::TorchBlock;
use std::mem::MaybeUninit;
use std::process::Command;
use std::ptr::{null, null_mut};

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
fn a_limit_lies_within_the_budget_and_pages_fit_into_it() {
    const NAME: &str = "torch::class::tests::a_limit_lies_within_the_budget_and_pages_fit_into_it";
    if let Ok(case) = std::env::var(CASE) {
        let (budget, page, expected) = CASES[case.parse::<usize>().unwrap()];
        return has_budget(budget, page, expected);
    }
    for place in 0..CASES.len() {
        run(NAME, place);
    }
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
fn without_a_place_for_both_results_neither_is_given() {
    const NAME: &str = "torch::class::tests::without_a_place_for_both_results_neither_is_given";
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
        assert_ne!(address, 0);
        gpu_vmm_torch_imported_free(imported);
        gpu_vmm_string_free(handle);
    }
}
