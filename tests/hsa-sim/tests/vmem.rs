//! What ROCr of some versions does, if the settings say so. The conformance suite, on HIP over the simulator, shows the rules.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // writes through the CPU's access
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Status, permission};
use gpu_vmm_hsa_sim::counters::hsa_sim_take_freed;
use std::os::fd::AsRawFd;
use support::*;

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
fn memory_stays_until_addresses_are_reused() {
    let output = child("memory_stays_until_addresses_are_reused", &[("HSA_SIM_KEEPS_MEMORY", "1")], || {
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
