//! Calls that fail or are delayed by settings, and invalid settings.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // reads counts by name
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Agent, Status, permission};
use gpu_vmm_hsa_sim::counters::{hsa_sim_call_count, hsa_sim_call_name, hsa_sim_fail};
use std::ffi::CStr;
use std::ptr::null;
use std::time::{Duration, Instant};
use support::*;

#[test]
fn set_failures_do_nothing() {
    let settings = [("HSA_SIM_FAIL", "hsa_amd_vmem_map:3:0x1008,hsa_amd_vmem_handle_create:2+:0x1000")];
    let output = child("set_failures_do_nothing", &settings, || {
        let at = reserve(4 * MIB, 0, 0).unwrap();
        let handle = create(memory_of(gpu()), MIB).unwrap();
        let maps: Vec<_> = (0..4).map(|place| map(at + place * MIB, MIB, handle)).collect();
        assert_eq!(maps, [Ok(()), Ok(()), Err(Status::OUT_OF_RESOURCES), Ok(())]);
        assert_eq!(counts()[2], 3);
        for _ in 0..3 {
            assert_eq!(create(memory_of(gpu()), MIB), Err(Status::ERROR));
        }
        // SAFETY: a name that ends with a zero byte.
        let count = |name: &CStr| unsafe { hsa_sim_call_count(name.as_ptr()) };
        assert_eq!(count(c"hsa_amd_vmem_map"), 4);
        assert_eq!(count(c"hsa_amd_vmem_unmap"), 0);
        assert_eq!(count(c"no_such_function"), u64::MAX);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}

/// Plans a failure, or none; returns the result of the call.
fn plan(name: Option<&CStr>, after: u16, status: Status) -> u32 {
    // SAFETY: null, or a name that ends with a zero byte.
    unsafe { hsa_sim_fail(name.map_or(null(), CStr::as_ptr), after, status.0) }
}

#[test]
fn planned_failure_happens_once() {
    const MAP: Option<&CStr> = Some(c"hsa_amd_vmem_map");
    let _alone = alone();
    let at = reserve(4 * MIB, 0, 0).unwrap();
    let handle = create(memory_of(gpu()), MIB).unwrap();
    let maps = || {
        let answers = [0, 1, 2, 3].map(|place| map(at + place * MIB, MIB, handle).err());
        let mapped = answers.iter().filter(|answer| answer.is_none()).count();
        assert_eq!(counts()[2], mapped);
        for (place, _) in answers.iter().enumerate().filter(|(_, answer)| answer.is_none()) {
            unmap(at + place * MIB, MIB).unwrap();
        }
        answers
    };
    for (place, status) in [(0, Status::ERROR), (3, Status::OUT_OF_RESOURCES)] {
        assert_eq!(plan(MAP, place as u16, status), 1);
        let mut expected = [None; 4];
        expected[place] = Some(status);
        assert_eq!((maps(), maps()), (expected, [None; 4]), "once");
        assert_eq!(plan(None, 0, Status::SUCCESS), 0, "it has happened");
    }
    assert_eq!(plan(MAP, 4, Status::ERROR), 1);
    assert_eq!(maps(), [None; 4], "the planned call is not reached yet");
    assert_eq!(plan(None, 0, Status::SUCCESS), 1, "it has not happened");
    for wrong in [(Some(c"no_such_function"), Status::ERROR), (MAP, Status::SUCCESS)] {
        assert_eq!(plan(MAP, 0, Status::ERROR), 1);
        assert_eq!(plan(wrong.0, 0, wrong.1), 0);
        assert_eq!(maps(), [None; 4], "nothing is planned after an invalid plan");
    }
    release(handle).unwrap();
    free(at, 4 * MIB).unwrap();
}

#[test]
fn counted_functions_have_names() {
    let names: Vec<_> =
        (0..).map(|place| hsa_sim_call_name(place)).take_while(|name| !name.is_null()).collect();
    // SAFETY: names that end with a zero byte.
    assert!(names.len() > 50 && names.iter().all(|name| unsafe { hsa_sim_call_count(*name) } < u64::MAX));
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

/// Access that an agent cannot have is refused, for virtual memory as for plain, and nothing changes.
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
fn no_peer_access_reaches_no_peer() {
    let settings = [("HSA_SIM_GPUS", "2"), ("HSA_SIM_P2P", "0")];
    let output = child("no_peer_access_reaches_no_peer", &settings, || {
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
fn small_bar_keeps_the_cpu_out() {
    let settings = [("HSA_SIM_GPUS", "2"), ("HSA_SIM_LARGE_BAR", "0")];
    let output = child("small_bar_keeps_the_cpu_out", &settings, || {
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
