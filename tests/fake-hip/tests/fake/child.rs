//! Running a case in a process of its own.

use crate::failures;
use crate::rig::Rig;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const CASE: &str = "FAKE_HIP_CASE";
const FAILED: &str = "FAILED: ";
/// The case in which the first of the two devices has no virtual memory management.
pub(crate) const BESIDE: &str = "beside_a_device_without_virtual_memory";
/// The case on a machine with one device.
pub(crate) const ALONE: &str = "a_device_alone";
/// The case on a machine without a device.
pub(crate) const NO_DEVICE: &str = "no_device";
/// The case on a machine with more devices than gpu-vmm can name.
pub(crate) const MANY: &str = "many_devices";
/// The case on a machine with a granularity that is no power of two.
pub(crate) const ODD: &str = "odd_granularity";
/// The case in which the access of only the first mapping of a call is set.
pub(crate) const FIRST_ONLY: &str = "access_of_the_first_mapping_only";

/// The case in which memory is released with an error.
pub(crate) const RELEASE_FAILS: &str = "a_failed_release_is_recorded";
/// The case in which access is set with an error.
pub(crate) const ACCESS_FAILS: &str = "a_device_that_gives_no_access_has_no_virtual_memory";
/// The case in which addresses are freed with an error.
pub(crate) const FREE_FAILS: &str = "each_range_is_freed_although_a_free_fails";
/// The case in which ROCr does not tell the agent of a device.
pub(crate) const NO_AGENT: &str = "nothing_is_left_where_no_agent_is_told";
/// The case in which no call waits for a device.
pub(crate) const WAITS_FAIL: &str = "a_failed_wait_is_told";
/// The case in which no hint is taken.
pub(crate) const NO_HINTS: &str = "hints_that_are_not_taken";
/// The case in which read access is set as read and write access.
pub(crate) const SETS_WRITE: &str = "read_access_that_is_write_access";
/// The case in which the CPU's use of its memory raises SIGBUS.
pub(crate) const HOST_FAULTS: &str = "host::unusable";
/// The case in which something else takes a few KiB between two questions for free memory.
pub(crate) const LOSES_MEMORY: &str = "a_little_memory_that_others_take_is_no_leak";
/// The case in which a device does not tell its granularity.
pub(crate) const NO_GRANULARITY: &str = "a_device_whose_granularity_is_unknown_is_not_used";
/// The case in which page-locked memory is freed with an error, and a stream destroyed.
pub(crate) const ENDS_FAIL: &str = "failed_ends_are_recorded";

/// The case in which `hipMemGetInfo` fails.
pub(crate) const NO_NUMBERS: &str = "short_memory_whose_numbers_are_not_told";
/// The case in which `hipDeviceGetUuid` fails.
pub(crate) const NO_UUID: &str = "a_device_whose_uuid_is_not_told_has_none";
/// The case in which `hipDeviceGetAttribute` fails.
pub(crate) const NO_ATTRIBUTES: &str = "a_device_whose_attributes_are_unknown_is_not_used";
/// The case in which `hipDeviceCanAccessPeer` fails.
pub(crate) const NO_PEERS: &str = "a_peer_that_cannot_be_asked_for_is_an_error";
/// The case in which addresses are reserved at null.
pub(crate) const NO_ADDRESSES: &str = "null_is_no_reservation";
/// The case in which page-locked memory is allocated at null.
pub(crate) const NO_PAGES: &str = "null_is_no_page_locked_memory";
/// The case in which no descriptor is written.
pub(crate) const NO_DESCRIPTORS: &str = "a_negative_descriptor_is_an_error";
/// The case in which ROCr tells no owner of an allocation.
pub(crate) const NO_OWNER: &str = "an_allocation_without_an_owner_has_no_agent";
/// The case in which no access is set.
pub(crate) const SETS_NOTHING: &str = "access_that_was_not_set_is_an_error";
/// The case in which the access of every mapping is a number that HIP does not define.
pub(crate) const UNKNOWN_ACCESS: &str = "an_unknown_access_is_an_error";
/// The case in which all attributes but virtual memory management have the opposite value.
pub(crate) const NEGATED: &str = "each_missing_feature_has_its_reason";
/// The case in which two attributes of device 1 have the opposite value.
pub(crate) const NEGATED_ON_ONE: &str = "a_feature_of_one_device_is_none_of_the_other";

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Rig),
}

/// Returns the name of the case that this process must run, if it is a child.
pub(crate) fn asked_for() -> Option<String> {
    std::env::var(CASE).ok()
}

impl Case {
    /// Runs the case in this process, on the fake driver, and checks that nothing is left.
    pub(crate) fn run_here(&self) {
        std::panic::set_hook(Box::new(|info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            let line = info.location().map_or(0, std::panic::Location::line);
            eprintln!("{FAILED}{} (line {line})", text.replace('\n', " "));
        }));
        let mut rig = Rig::open();
        (self.run)(&mut rig);
        rig.check_what_is_left();
    }
}

/// Returns the fake driver's library, which Cargo puts next to the tests of its package.
fn library() -> PathBuf {
    let mut path = std::env::current_exe().expect("this program's path");
    path.set_file_name("libgpu_vmm_fake_hip.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// Runs a case in a child, on a version, without the workaround for a quirk. Returns its output, or its own words about why
/// it failed.
pub(crate) fn run(case: &Case, version: &str, without: &str) -> Result<String, String> {
    let fails = match case.name {
        RELEASE_FAILS => "hipMemRelease",
        ACCESS_FAILS => "hipMemSetAccess",
        FREE_FAILS => "hipMemAddressFree",
        NO_AGENT => "hsa_amd_pointer_info",
        WAITS_FAIL => "hipFree,hipDeviceSynchronize",
        NO_GRANULARITY => "hipMemGetAllocationGranularity",
        ENDS_FAIL => "hipHostFree,hipStreamDestroy",
        NO_NUMBERS => "hipMemGetInfo",
        NO_UUID => "hipDeviceGetUuid",
        NO_ATTRIBUTES => "hipDeviceGetAttribute",
        NO_PEERS => "hipDeviceCanAccessPeer",
        name if name.starts_with("hip") => name,
        _ => "",
    };
    let does_nothing = match case.name {
        NO_ADDRESSES => "hipMemAddressReserve",
        NO_PAGES => "hipHostMalloc",
        NO_DESCRIPTORS => "hipMemExportToShareableHandle,hsa_amd_vmem_export_shareable_handle",
        NO_OWNER => "hsa_amd_pointer_info",
        SETS_NOTHING => "hipMemSetAccess",
        _ => "",
    };
    let negates = match case.name {
        NEGATED => "94,95,10011",
        NEGATED_ON_ONE => "94@1,10011@1",
        _ => "",
    };
    let devices = match case.name {
        NO_DEVICE => "0",
        ALONE => "1",
        MANY => "130",
        _ => "2",
    };
    let output = Command::new(std::env::current_exe().expect("this program's path"))
        .env(CASE, case.name)
        .env("FAKE_HIP_VERSION", version)
        .env("FAKE_HIP_DEVICES", devices)
        .env("FAKE_HIP_WITHOUT_VMM", if case.name == BESIDE { "1" } else { "0" })
        .env("FAKE_HIP_SETS_ACCESS_OF", if case.name == FIRST_ONLY { "1" } else { "0" })
        .env("FAKE_HIP_FAILS", fails)
        .env("FAKE_HIP_REFUSES", failures::refused_in(case.name))
        .env("FAKE_HIP_DOES_NOTHING", does_nothing)
        .env("FAKE_HIP_NEGATES", negates)
        .env("FAKE_HIP_GRANULARITY_KB", if case.name == ODD { "3072" } else { "4" })
        .env("FAKE_HIP_REPORTS_ACCESS", if case.name == UNKNOWN_ACCESS { "2" } else { "0" })
        .env("FAKE_HIP_TAKES_HINTS", if case.name == NO_HINTS { "0" } else { "1" })
        .env("FAKE_HIP_SETS_WRITE", if case.name == SETS_WRITE { "1" } else { "0" })
        .env("FAKE_HIP_LOSES_MEMORY", if case.name == LOSES_MEMORY { "1" } else { "0" })
        .env("FAKE_HIP_HOST_FAULTS", if case.name == HOST_FAULTS { "1" } else { "0" })
        .env("FAKE_HIP_MEMORY_MB", "512")
        .env("GPU_VMM_HIP_LIBRARY", library())
        .env("GPU_VMM_HIP_WITHOUT_QUIRK", without)
        .stdin(Stdio::null())
        .output()
        .expect("a child");
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let told =
        errors.lines().find_map(|line| line.strip_prefix(FAILED).or_else(|| line.strip_prefix("fake-hip: ")));
    let why = told.unwrap_or_else(|| errors.trim());
    Err(if why.is_empty() { output.status.to_string() } else { why.to_owned() })
}
