//! Calls that are made to fail and to wait, and settings that are no settings.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // asks for counts by name
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::Status;
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
