//! Agents and their attributes, and ordinary memory.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // reads memory by address
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Agent, Pool, Status, pointer_type};
use gpu_vmm_hsa_sim::memory::dmabuf::{hsa_amd_portable_close_dmabuf, hsa_amd_portable_export_dmabuf};
use std::mem::MaybeUninit;
use support::*;

#[test]
fn the_machine_says_what_it_has() {
    assert_eq!(agents().len(), 2, "the CPU and one GPU");
    assert_eq!(agent_info::<u32>(cpu(), 17), Ok(0));
    assert_eq!(agent_info::<u32>(gpu(), 17), Ok(1));
    assert_eq!(agent_info::<u32>(Agent(5), 17), Err(Status::INVALID_AGENT));
    assert_eq!(agent_info::<u32>(gpu(), 0xFFFF), Err(Status::INVALID_ARGUMENT));
    let name: [u8; 64] = agent_info(gpu(), 0).unwrap();
    assert!(name.starts_with(b"gfx90a\0"));
    assert_eq!(system_info::<bool>(0x205), Ok(true), "virtual memory is supported");
    assert_eq!(pool_info::<usize>(memory_of(gpu()), 2), Ok(4096 * MIB));
    assert_eq!(pool_info::<usize>(memory_of(gpu()), 6), Ok(PAGE), "the granule");
    assert_eq!(pool_info::<usize>(memory_of(gpu()), 18), Ok(2 * MIB), "the recommended granule");
    assert_eq!(pool_info::<usize>(Pool(3), 2), Err(Status::INVALID_MEMORY_POOL));
}

#[test]
fn an_allocation_is_counted_and_known() {
    let _alone = alone();
    let free_before = free_memory(gpu());
    let at = allocate(memory_of(gpu()), MIB + 1).unwrap();
    assert_eq!(free_memory(gpu()), free_before - (MIB + PAGE) as u64, "whole pages");
    assert_eq!(kind(at + MIB), (pointer_type::HSA, at));
    deallocate(at).unwrap();
    assert_eq!(free_memory(gpu()), free_before);
    assert_eq!(deallocate(at), Err(Status::INVALID_ALLOCATION));
    assert_eq!(kind(at), (pointer_type::UNKNOWN, 0));
    assert_eq!(allocate(memory_of(gpu()), 0), Err(Status::INVALID_ARGUMENT));
    assert_eq!(allow(&[gpu()], at), Err(Status::INVALID_ALLOCATION));
}

#[test]
fn addresses_tell_what_they_are() {
    let _alone = alone();
    let (at, handle) = mapped(gpu(), MIB);
    let reserved = reserve(MIB, 0, 0).unwrap();
    assert_eq!(kind(at + PAGE), (pointer_type::VMEM, at));
    assert_eq!(kind(reserved + PAGE), (pointer_type::RESERVED, reserved));
    free(reserved, MIB).unwrap();
    unmapped((at, handle), MIB);
}

fn dmabuf(at: usize, size: usize) -> Result<(i32, u64), Status> {
    let (mut file, mut offset) = (MaybeUninit::new(-1), MaybeUninit::new(0));
    // SAFETY: valid pointers to initialized values.
    unsafe {
        match hsa_amd_portable_export_dmabuf(at, size, Some(&mut file), Some(&mut offset)) {
            Status::SUCCESS => Ok((file.assume_init(), offset.assume_init())),
            status => Err(status),
        }
    }
}

#[test]
fn an_allocation_as_a_descriptor_is_the_same_memory() {
    let _alone = alone();
    let at = allocate(memory_of(gpu()), MIB).unwrap();
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(at + PAGE);
    // SAFETY: memory of a GPU with a large BAR.
    unsafe { word.write_volatile(1) };
    let (file, offset) = dmabuf(at + PAGE, PAGE).unwrap();
    assert_eq!(offset, PAGE as u64);
    // SAFETY: as above: it still has its address and content.
    assert_eq!(unsafe { word.read_volatile() }, 1);
    let handle = import(file).unwrap();
    let there = reserve(MIB + PAGE, 0, 0).unwrap();
    map(there, MIB, handle).unwrap();
    set_access(there, MIB, &[(gpu(), 3)]).unwrap();
    // SAFETY: as above.
    unsafe { word.write_volatile(2) };
    let mut back = 0u64;
    copy_any((&raw mut back).expose_provenance(), there + PAGE, 8).unwrap();
    assert_eq!(back, 2, "written after the export");
    // SAFETY: this process's own descriptor.
    assert_eq!(unsafe { hsa_amd_portable_close_dmabuf(file) }, Status::SUCCESS);
    unmapped((there, handle), MIB);

    assert_eq!(dmabuf(at, 2 * MIB), Err(Status::INVALID_ALLOCATION), "beyond the allocation");
    assert_eq!(dmabuf(at, 0), Err(Status::INVALID_ARGUMENT));
    deallocate(at).unwrap();
    assert_eq!(dmabuf(at, PAGE), Err(Status::INVALID_ALLOCATION), "freed");
    let host = allocate(pools(cpu())[0], PAGE).unwrap();
    assert_eq!(dmabuf(host, PAGE), Err(Status::INVALID_AGENT), "the host's memory");
    deallocate(host).unwrap();
}
