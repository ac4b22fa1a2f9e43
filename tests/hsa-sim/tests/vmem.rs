//! The rules of the virtual memory API.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // writes through the CPU's access
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Agent, Pool, Status, VmemHandle, permission};
use gpu_vmm_hsa_sim::counters::hsa_sim_take_freed;
use std::os::fd::AsRawFd;
use support::*;

#[test]
fn addresses_are_given_as_asked_or_elsewhere() {
    let _alone = alone();
    let before = counts();
    let size = 4 * MIB;
    let at = reserve(size, 0, 0).unwrap();
    assert_eq!(at % (2 * MIB), 0, "large ranges are aligned to 2 MiB");
    let hint = 0x6f00_0000_1000;
    assert_eq!(reserve(PAGE, hint, 0), Ok(hint));
    let taken = reserve(PAGE, hint, 0).unwrap();
    assert_ne!(taken, hint, "a hint that is taken is no error");
    let aligned = reserve(PAGE, 0, 1 << 30).unwrap();
    assert_eq!(aligned % (1 << 30), 0);
    assert_eq!(counts()[0], before[0] + 4);
    for (at, size) in [(at, size), (hint, PAGE), (taken, PAGE), (aligned, PAGE)] {
        free(at, size).unwrap();
    }
    assert_eq!(counts(), before);
}

#[test]
fn wrong_reservations_are_refused() {
    let _alone = alone();
    assert_eq!(reserve(0, 0, 0), Err(Status::INVALID_ARGUMENT));
    assert_eq!(reserve(1000, 0, 0), Err(Status::INVALID_ARGUMENT));
    assert_eq!(reserve(PAGE, 0, 3 * PAGE), Err(Status::INVALID_ARGUMENT));
    assert_eq!(reserve(1 << 47, 0, 0), Err(Status::OUT_OF_RESOURCES));
    let at = reserve(2 * PAGE, 0, 0).unwrap();
    assert_eq!(free(at + PAGE, PAGE), Err(Status::INVALID_ALLOCATION));
    assert_eq!(free(at, PAGE), Err(Status::INVALID_ARGUMENT));
    free(at, 2 * PAGE).unwrap();
    assert_eq!(free(at, 2 * PAGE), Err(Status::INVALID_ALLOCATION));
}

#[test]
fn memory_is_created_in_granules() {
    let _alone = alone();
    let memory = memory_of(gpu());
    assert_eq!(create(memory, 0), Err(Status::INVALID_ARGUMENT));
    assert_eq!(create(memory, PAGE + 1), Err(Status::INVALID_ARGUMENT));
    assert_eq!(create(Pool(7), PAGE), Err(Status::INVALID_MEMORY_POOL));
    let group = *pools(gpu()).last().unwrap();
    assert_eq!(create(group, PAGE), Err(Status::INVALID_ALLOCATION));
    let free = free_memory(gpu());
    let handle = create(memory, 3 * MIB).unwrap();
    assert_eq!(free_memory(gpu()), free - 3 * MIB as u64);
    release(handle).unwrap();
    assert_eq!(free_memory(gpu()), free);
    assert_eq!(release(handle), Err(Status::INVALID_ALLOCATION));
    assert_eq!(release(VmemHandle(0)), Err(Status::INVALID_ALLOCATION));
}

#[test]
fn there_is_no_more_memory_than_there_is() {
    let _alone = alone();
    let memory = memory_of(gpu());
    let free = free_memory(gpu()) as usize;
    assert_eq!(create(memory, free + PAGE), Err(Status::OUT_OF_RESOURCES));
    assert_eq!(create(memory, usize::MAX & !(PAGE - 1)), Err(Status::OUT_OF_RESOURCES));
    let all = create(memory, free).unwrap();
    assert_eq!(free_memory(gpu()), 0);
    assert_eq!(create(memory, PAGE), Err(Status::OUT_OF_RESOURCES));
    assert_eq!(allocate(memory, PAGE), Err(Status::OUT_OF_RESOURCES));
    release(all).unwrap();
    assert_eq!(free_memory(gpu()) as usize, free);
}

#[test]
fn mappings_lie_within_reservations_and_beside_each_other() {
    let _alone = alone();
    let before = counts();
    let at = reserve(4 * MIB, 0, 0).unwrap();
    let one = create(memory_of(gpu()), MIB).unwrap();
    let two = create(memory_of(gpu()), 2 * MIB).unwrap();
    let wrong = Err(Status::INVALID_ARGUMENT);
    assert_eq!(map(at, 0, one), wrong);
    assert_eq!(map(at + 100, MIB, one), wrong);
    assert_eq!(map(at, 2 * MIB, one), wrong, "more than the memory");
    assert_eq!(map(at + 3 * MIB, 2 * MIB, two), wrong, "beyond the reservation");
    assert_eq!(map(0x1000, MIB, one), wrong, "not reserved");
    assert_eq!(map(at, MIB, VmemHandle(1)), wrong);
    map(at + MIB, MIB, one).unwrap();
    assert_eq!(map(at + MIB, MIB, two), wrong, "mapped already");
    assert_eq!(map(at, 2 * MIB, two), wrong, "reaches into the next");
    assert_eq!(map(at + MIB + PAGE, PAGE, two), wrong, "in the middle of another");
    map(at + 2 * MIB, MIB, two).unwrap();
    map(at, MIB, one).unwrap();
    assert_eq!(counts(), [before[0] + 1, before[1] + 2, before[2] + 3]);
    assert_eq!(free(at, 4 * MIB), Err(Status::RESOURCE_FREE));

    assert_eq!(unmap(at + PAGE, MIB), Err(Status::INVALID_ALLOCATION), "no mapping begins there");
    assert_eq!(unmap(at, PAGE), wrong, "a part of a mapping");
    assert_eq!(unmap(at, 0), wrong);
    unmap(at, 3 * MIB).unwrap();
    assert_eq!(unmap(at, MIB), Err(Status::INVALID_ALLOCATION));
    release(one).unwrap();
    release(two).unwrap();
    free(at, 4 * MIB).unwrap();
    assert_eq!(counts(), before);
}

#[test]
fn memory_lives_as_long_as_a_handle_or_a_mapping() {
    let _alone = alone();
    let before = counts();
    let free_before = free_memory(gpu());
    let (at, handle) = mapped(gpu(), MIB);
    assert_eq!(retain(at), Ok(handle));
    assert_eq!(retain(at + PAGE), Err(Status::INVALID_ALLOCATION));
    release(handle).unwrap();
    release(handle).unwrap();
    assert_eq!(release(handle), Err(Status::INVALID_ALLOCATION), "no reference is left");
    assert_eq!(counts()[1], before[1] + 1, "the mapping holds it");
    let mut word = 5u64;
    copy_any(at, (&raw const word).expose_provenance(), 8).unwrap();
    word = 0;
    copy_any((&raw mut word).expose_provenance(), at, 8).unwrap();
    assert_eq!(word, 5);
    unmap(at, MIB).unwrap();
    assert_eq!(counts()[1], before[1]);
    assert_eq!(free_memory(gpu()), free_before);
    free(at, MIB + PAGE).unwrap();
}

#[test]
fn access_is_of_whole_mappings_and_each_agent() {
    let _alone = alone();
    let at = reserve(4 * MIB, 0, 0).unwrap();
    let handle = create(memory_of(gpu()), MIB).unwrap();
    let full = [(gpu(), permission::READ_WRITE)];
    assert_eq!(set_access(at, MIB, &full), Err(Status::INVALID_ALLOCATION), "nothing is mapped");
    assert_eq!(get_access(at, gpu()), Err(Status::INVALID_ALLOCATION));
    map(at, MIB, handle).unwrap();
    map(at + 2 * MIB, MIB, handle).unwrap();
    assert_eq!(get_access(at, gpu()), Ok(permission::NONE));
    assert_eq!(set_access(at, 3 * MIB, &full), Err(Status::INVALID_ALLOCATION), "a hole");
    assert_eq!(get_access(at, gpu()), Ok(permission::NONE), "nothing was changed");
    assert_eq!(set_access(at + PAGE, MIB - PAGE, &full), Err(Status::INVALID_ALLOCATION), "begins inside");
    assert_eq!(set_access(at, 8 * MIB, &full), Err(Status::INVALID_ARGUMENT), "beyond the reservation");
    assert_eq!(set_access(at, MIB, &[(Agent(1), permission::READ)]), Err(Status::INVALID_AGENT));
    assert_eq!(get_access(at, Agent(1)), Err(Status::INVALID_AGENT));
    set_access(at, PAGE, &full).unwrap();
    assert_eq!(get_access(at + MIB - 1, gpu()), Ok(permission::READ_WRITE), "the whole mapping");
    assert_eq!(get_access(at + 2 * MIB, gpu()), Ok(permission::NONE), "and no other");
    set_access(at, MIB, &[(gpu(), permission::READ)]).unwrap();
    assert_eq!(get_access(at, gpu()), Ok(permission::READ));
    map(at + MIB, MIB, handle).unwrap();
    allow(&[gpu()], at).unwrap();
    assert_eq!(get_access(at + 2 * MIB, gpu()), Ok(permission::READ_WRITE), "as far as mappings follow");
    unmap(at, 3 * MIB).unwrap();
    release(handle).unwrap();
    free(at, 4 * MIB).unwrap();
}

#[test]
fn the_cpu_sees_what_it_was_given() {
    let _alone = alone();
    let (at, handle) = mapped(gpu(), MIB);
    set_access(at, MIB, &[(cpu(), permission::READ_WRITE)]).unwrap();
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the CPU was given access.
    unsafe { word.write_volatile(77) };
    let mut back = 0u64;
    copy_any((&raw mut back).expose_provenance(), at, 8).unwrap();
    assert_eq!(back, 77);
    unmapped((at, handle), MIB);
}

#[test]
fn descriptors_are_the_same_memory() {
    let _alone = alone();
    let before = counts();
    let (at, handle) = mapped(gpu(), MIB);
    let word = 0x1234_5678_9abc_def0_u64;
    copy_any(at, (&raw const word).expose_provenance(), 8).unwrap();
    let file = export(handle).unwrap();
    let again = export(handle).unwrap();
    assert_ne!(file, again, "a new one each time");
    let free_before = free_memory(gpu());
    let other = import(file).unwrap();
    assert_ne!(other, handle);
    assert_eq!(free_memory(gpu()), free_before, "an import takes no memory");
    let there = reserve(MIB + PAGE, 0, 0).unwrap();
    map(there, MIB, other).unwrap();
    set_access(there, MIB, &[(gpu(), permission::READ)]).unwrap();
    let mut back = 0u64;
    copy_any((&raw mut back).expose_provenance(), there, 8).unwrap();
    assert_eq!(back, word);
    // SAFETY: this process's own descriptors.
    unsafe { (libc::close(file), libc::close(again)) };
    assert_eq!(import(file), Err(Status::INCOMPATIBLE_ARGUMENTS), "closed");
    assert_eq!(import(0), Err(Status::INCOMPATIBLE_ARGUMENTS), "the standard input");
    assert_eq!(export(VmemHandle(1)), Err(Status::INVALID_ALLOCATION));
    unmapped((there, other), MIB);
    assert_eq!(free_memory(gpu()), free_before, "the memory is still there");
    unmapped((at, handle), MIB);
    assert_eq!(counts(), before);
}

/// As in ROCr of 7.14, if the settings say so.
#[test]
fn memory_keeps_its_descriptor_if_set() {
    let settings = [("HSA_SIM_KEEPS_DESCRIPTORS", "1"), ("HSA_SIM_GPUS", "2")];
    let output = child("memory_keeps_its_descriptor_if_set", &settings, || {
        let (reads, _writes) = std::io::pipe().unwrap();
        let peer = [(agents()[2], permission::READ_WRITE)];
        let (at, handle) = mapped(gpu(), MIB);
        let file = export(handle).unwrap();
        assert_eq!(export(handle), Ok(file), "the same each time");
        let imported = import(file).unwrap();
        assert_eq!(export(imported), Err(Status::INVALID_ARGUMENT), "an import has no descriptor");
        release(imported).unwrap();
        set_access(at, MIB, &peer).unwrap();
        // SAFETY: a number of this process.
        unsafe { libc::close(file) };
        assert_eq!(export(handle), Ok(file), "a number that is closed");
        assert_eq!(import(file), Err(Status::INCOMPATIBLE_ARGUMENTS));
        assert_eq!(set_access(at, MIB, &peer), Err(Status::ERROR), "the peer imports the descriptor");
        // SAFETY: a number that is not in use.
        assert_eq!(unsafe { libc::dup2(reads.as_raw_fd(), file) }, file);
        unmapped((at, handle), MIB);
        // SAFETY: the kernel refuses a number that is not open.
        assert_eq!(unsafe { libc::fcntl(file, libc::F_GETFD) }, -1, "the number is closed with the memory");
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

/// As in ROCr of 7.1 and 7.2, if the settings say so.
#[test]
fn memory_stays_at_its_addresses_until_they_are_used_for_something_else() {
    let name = "memory_stays_at_its_addresses_until_they_are_used_for_something_else";
    let output = child(name, &[("HSA_SIM_KEEPS_MEMORY", "1")], || {
        let (before, free_before) = (counts(), free_memory(gpu()));
        let taken = || (free_before - free_memory(gpu())) / MIB as u64;
        let memory = |size| create(memory_of(gpu()), size).unwrap();
        let at = reserve(4 * MIB, 0, 0).unwrap();
        let large = memory(3 * MIB);
        map(at, 3 * MIB, large).unwrap();
        release(large).unwrap();
        unmap(at, 3 * MIB).unwrap();
        assert_eq!(
            (taken(), counts()[2]),
            (3, before[2]),
            "nothing is mapped, and the memory is still taken"
        );
        let small = memory(MIB);
        map(at + MIB, MIB, small).unwrap();
        assert_eq!(taken(), 4, "the parts before and after still keep it");
        unmap(at + MIB, MIB).unwrap();
        for (place, left) in [(0, 4), (2 * MIB, 1)] {
            map(at + place, MIB, small).unwrap();
            assert_eq!(taken(), left);
            unmap(at + place, MIB).unwrap();
        }
        release(small).unwrap();
        assert_eq!(taken(), 1);
        free(at, 4 * MIB).unwrap();
        assert_eq!((taken(), counts()), (0, before));
        let shown = mapped(gpu(), MIB);
        set_access(shown.0, MIB, &[(cpu(), permission::READ)]).unwrap();
        release(shown.1).unwrap();
        unmap(shown.0, MIB).unwrap();
        assert_eq!(taken(), 0, "pages with access for the CPU are removed");
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn freed_range_is_taken_by_another_reservation() {
    let _alone = alone();
    let at = reserve(4 * MIB, 0, 0).unwrap();
    hsa_sim_take_freed(1);
    free(at, 4 * MIB).unwrap();
    let other = reserve(4 * MIB, at, 0).unwrap();
    assert_ne!(other, at);
    free(other, 4 * MIB).unwrap();
    assert_eq!(reserve(2 * MIB, other, 0), Ok(other), "once");
    free(other, 2 * MIB).unwrap();
    hsa_sim_take_freed(0);
    assert_eq!(reserve(4 * MIB, at, 0), Ok(at));
    free(at, 4 * MIB).unwrap();
}
