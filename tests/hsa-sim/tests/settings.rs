//! Calls that are made to fail and to wait, and settings that are no settings.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // asks for counts by name
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Agent, Status, permission};
use gpu_vmm_hsa_sim::counters::hsa_sim_call_count;
use std::time::{Duration, Instant};
use support::*;

#[test]
fn the_third_map_fails_as_told_and_does_nothing() {
    let settings = [("HSA_SIM_FAIL", "hsa_amd_vmem_map:3:0x1008,hsa_amd_vmem_handle_create:2+:0x1000")];
    let output = child("the_third_map_fails_as_told_and_does_nothing", &settings, || {
        let at = reserve(4 * MIB, 0, 0).unwrap();
        let handle = create(memory_of(gpu()), MIB).unwrap();
        let maps: Vec<_> = (0..4).map(|place| map(at + place * MIB, MIB, handle)).collect();
        assert_eq!(maps, [Ok(()), Ok(()), Err(Status::OUT_OF_RESOURCES), Ok(())]);
        assert_eq!(counts()[2], 3);
        for _ in 0..3 {
            assert_eq!(create(memory_of(gpu()), MIB), Err(Status::ERROR));
        }
        // SAFETY: a name that ends with a zero byte.
        let count = |name: &std::ffi::CStr| unsafe { hsa_sim_call_count(name.as_ptr()) };
        assert_eq!(count(c"hsa_amd_vmem_map"), 4);
        assert_eq!(count(c"hsa_amd_vmem_unmap"), 0);
        assert_eq!(count(c"no_such_function"), u64::MAX);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn a_call_takes_longer_as_told() {
    let settings = [("HSA_SIM_DELAY", "hsa_amd_vmem_address_reserve_align:50ms")];
    let output = child("a_call_takes_longer_as_told", &settings, || {
        let start = Instant::now();
        let at = reserve(MIB, 0, 0).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(50));
        free(at, MIB).unwrap();
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn a_misspelt_setting_ends_the_process() {
    for setting in [("HSA_SIM_GPU", "2"), ("HSA_SIM_ON_FAULT", "Skip"), ("HSA_SIM_FAIL", "hsa_vmem_map:1:1")]
    {
        let output = child("a_misspelt_setting_ends_the_process", &[setting], || drop(agents()));
        let Some(output) = output else { return };
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        let line = format!("hsa-sim: {}={}: ", setting.0, setting.1);
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
}

/// What an agent can have no access to is refused, for virtual memory as for plain, and nothing has changed.
fn cannot_reach(other: Agent) {
    let at = reserve(2 * MIB, 0, 0).unwrap();
    let handle = create(memory_of(gpu()), MIB).unwrap();
    map(at, MIB, handle).unwrap();
    let both = [(gpu(), permission::READ_WRITE), (other, permission::READ)];
    assert_eq!(set_access(at, MIB, &both), Err(Status::INVALID_ARGUMENT));
    assert_eq!(get_access(at, gpu()), Ok(permission::NONE), "nothing was changed");
    assert_eq!(allow(&[other], at), Err(Status::INVALID_ARGUMENT));
    assert_eq!(get_access(at, other), Ok(permission::NONE));
    set_access(at, MIB, &[(gpu(), permission::READ_WRITE), (other, permission::NONE)]).unwrap();
    assert_eq!(get_access(at, gpu()), Ok(permission::READ_WRITE));
}

#[test]
fn without_peer_access_no_gpu_reaches_anothers_memory() {
    let settings = [("HSA_SIM_GPUS", "2"), ("HSA_SIM_P2P", "0")];
    let output = child("without_peer_access_no_gpu_reaches_anothers_memory", &settings, || {
        let agents = agents();
        cannot_reach(agents[2]);
        // The CPU is no peer.
        let (at, handle) = mapped(gpu(), MIB);
        set_access(at, MIB, &[(cpu(), permission::READ)]).unwrap();
        unmapped((at, handle), MIB);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn with_a_small_bar_the_cpu_reaches_no_gpus_memory() {
    let settings = [("HSA_SIM_GPUS", "2"), ("HSA_SIM_LARGE_BAR", "0")];
    let output = child("with_a_small_bar_the_cpu_reaches_no_gpus_memory", &settings, || {
        cannot_reach(cpu());
        let (at, handle) = mapped(gpu(), MIB);
        set_access(at, MIB, &[(agents()[2], permission::READ)]).unwrap();
        unmapped((at, handle), MIB);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn new_memory_is_junk_as_told() {
    let output = child("new_memory_is_junk_as_told", &[("HSA_SIM_JUNK", "1")], || {
        let (at, handle) = mapped(gpu(), MIB);
        set_access(at, MIB, &[(cpu(), permission::READ)]).unwrap();
        let plain = allocate(memory_of(gpu()), PAGE).unwrap();
        for (at, size) in [(at, MIB), (plain, PAGE)] {
            assert!(read(at, size / 8).iter().all(|word| *word != 0), "every word is junk");
        }
        let hosts = allocate(memory_of(cpu()), PAGE).unwrap();
        assert_eq!(read(hosts, 1), [0], "the host's memory is the kernel's");
        unmapped((at, handle), MIB);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}
