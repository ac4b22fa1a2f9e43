//! Accesses that a GPU may not make are counted if the settings say so. The conformance suite shows that they end the process otherwise.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::permission;
use gpu_vmm_hsa_sim::counters::hsa_sim_fault_count;
use support::*;

/// Every kind of fault, each counted once; the memory on the other side does not change.
#[test]
fn faults_are_counted_if_set() {
    let output =
        child("faults_are_counted_if_set", &[("HSA_SIM_ON_FAULT", "skip"), ("HSA_SIM_GPUS", "2")], || {
            let (first, second) = (gpu(), agents()[2]);
            let (at, handle) = mapped(first, 2 * MIB);
            let other = mapped(first, MIB);
            let fault = |to: usize, from: usize, size: usize, by| {
                let before = hsa_sim_fault_count();
                copy_by(by, to, from, size);
                hsa_sim_fault_count() - before
            };
            assert_eq!(fault(at, other.0, MIB, first), 0);
            assert_eq!(fault(at, other.0, MIB, second), 1, "the second GPU has no access");
            set_access(other.0, MIB, &[(second, permission::READ)]).unwrap();
            set_access(at, MIB, &[(second, permission::READ_WRITE)]).unwrap();
            assert_eq!(fault(at, other.0, MIB, second), 0);
            assert_eq!(fault(other.0, at, MIB, second), 1, "it may only read there");
            assert_eq!(fault(at, other.0, MIB + 1, first), 1, "beyond the mapping");
            assert_eq!(fault(at + MIB + PAGE, other.0, MIB, first), 1, "beyond it, from its middle");
            assert_eq!(fault(at + MIB, other.0, MIB, first), 0, "up to its end");
            unmap(at, 2 * MIB).unwrap();
            assert_eq!(fault(at, other.0, 8, first), 1, "reserved, and not mapped");
            assert_eq!(fault(other.0, 0x1000, 8, first), 1, "the program's own memory, not locked");
            release(handle).unwrap();
            free(at, 2 * MIB + PAGE).unwrap();
            unmapped(other, MIB);
        });
    assert!(output.is_none_or(|output| output.status.success()));
}
