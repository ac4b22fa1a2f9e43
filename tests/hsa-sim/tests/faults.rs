//! Accesses that a GPU may not make: they end the process, or are counted if the settings say so.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::permission;
use gpu_vmm_hsa_sim::counters::hsa_sim_fault_count;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use support::*;

const SKIP: (&str, &str) = ("HSA_SIM_ON_FAULT", "skip");

fn died_of_a_fault(output: &Output) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
    assert!(told.contains("Memory access fault by GPU node-1 on address 0x"), "{told}");
}

fn went_on(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_copy_without_access_ends_the_process() {
    let output = child("a_copy_without_access_ends_the_process", &[], || {
        let at = reserve(MIB, 0, 0).unwrap();
        map(at, MIB, create(memory_of(gpu()), MIB).unwrap()).unwrap();
        let mut word = 0u64;
        copy_by(gpu(), (&raw mut word).expose_provenance(), at, 8);
    });
    output.iter().for_each(died_of_a_fault);
}

#[test]
fn a_write_to_what_may_be_read_ends_the_process() {
    let output = child("a_write_to_what_may_be_read_ends_the_process", &[], || {
        let (at, _) = mapped(gpu(), MIB);
        set_access(at, MIB, &[(gpu(), permission::READ)]).unwrap();
        copy_by(gpu(), at, at, 8);
    });
    output.iter().for_each(died_of_a_fault);
}

/// Every kind of fault, each counted once; the memory on the other side does not change.
#[test]
fn faults_are_counted_where_that_is_asked_for() {
    let output = child("faults_are_counted_where_that_is_asked_for", &[SKIP, ("HSA_SIM_GPUS", "2")], || {
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
    output.iter().for_each(went_on);
}

#[test]
fn plain_allocations_are_for_those_who_were_allowed() {
    let settings = [SKIP, ("HSA_SIM_GPUS", "2")];
    let output = child("plain_allocations_are_for_those_who_were_allowed", &settings, || {
        let (first, second) = (gpu(), agents()[2]);
        let at = allocate(memory_of(first), MIB).unwrap();
        copy_by(first, at, at, 8);
        assert_eq!(hsa_sim_fault_count(), 0);
        copy_by(second, at, at, 8);
        assert_eq!(hsa_sim_fault_count(), 1);
        allow(&[first, second], at).unwrap();
        copy_by(second, at, at, 8);
        assert_eq!(hsa_sim_fault_count(), 1);
    });
    output.iter().for_each(went_on);
}

#[test]
fn without_peer_access_no_device_is_allowed() {
    let settings = [("HSA_SIM_GPUS", "2"), ("HSA_SIM_P2P", "0")];
    let output = child("without_peer_access_no_device_is_allowed", &settings, || {
        let at = allocate(memory_of(gpu()), MIB).unwrap();
        assert!(allow(&[agents()[2]], at).is_err());
    });
    output.iter().for_each(went_on);
}
