//! The settings from the environment.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FAKE_HIP_VERSION` | `7.0`, `6.4.1`, or the whole number that `hipRuntimeGetVersion` returns | `7.1` |
//! | `FAKE_HIP_DEVICES` | the number of devices | 2 |
//! | `FAKE_HIP_WITHOUT_VMM` | the number of devices, from the first on, without virtual memory management | 0 |
//! | `FAKE_HIP_SETS_ACCESS_OF` | the number of mappings of which one call sets the access; 0 for all | 0 |
//! | `FAKE_HIP_FAILS` | the functions that return an error after they have done their work, with commas between them | none |
//! | `FAKE_HIP_DOES_NOTHING` | the functions that return success and do nothing, with commas between them | none |
//! | `FAKE_HIP_REFUSES` | calls that do nothing and return an error: `function:N:code` for the Nth call, with commas between them | none |
//! | `FAKE_HIP_NEGATES` | the numbers of the attributes with the value 0 in place of 1, and 1 in place of 0: `number`, or `number@device` | none |
//! | `FAKE_HIP_REPORTS_ACCESS` | the access that each query returns; 0 for the one that was set | 0 |
//! | `FAKE_HIP_TAKES_HINTS` | whether addresses are reserved at their hints: 1 or 0 | 1 |
//! | `FAKE_HIP_SETS_WRITE` | whether read access is set as read and write access: 1 or 0 | 0 |
//! | `FAKE_HIP_LOSES_MEMORY` | whether each answer about free memory is a few KiB lower than the one before: 1 or 0 | 0 |
//! | `FAKE_HIP_HOST_FAULTS` | whether the CPU gets SIGBUS from memory to which it has access: 1 or 0 | 0 |
//! | `FAKE_HIP_GRANULARITY_KB` | the granularity that is returned, in KiB; calls need multiples of 4 KiB | 4 |
//! | `FAKE_HIP_MEMORY_MB` | memory of each in MiB | 512 |

use crate::bucket::Bucket;
use crate::c::stop;
use std::collections::HashSet;
use std::sync::LazyLock;

/// Versions by their short names, each with the build of a release or the last of its kind.
const NAMED: &[(&str, u32)] = &[
    ("6.1", 60_140_093),
    ("6.2", 60_241_134),
    ("6.3", 60_342_134),
    ("6.4.1", 60_443_483),
    ("7.0", 70_051_830),
    ("7.0.2", 70_051_831),
    ("7.1", 70_125_424),
    ("7.2", 70_253_211),
    ("7.12", 71_260_540),
    ("7.14", 71_400_000),
    ("7.15", 71_500_000),
    ("7.16", 71_600_000),
    ("7.17", 71_700_000),
];

pub(crate) struct Settings {
    pub(crate) version: u32,
    bucket: Bucket,
    pub(crate) devices: usize,
    pub(crate) without_vmm: usize,
    /// The number of mappings of which `hipMemSetAccess` sets the access before it returns success.
    pub(crate) sets_access_of: usize,
    /// The names of the functions that fail.
    pub(crate) fails: HashSet<String>,
    /// The names of the functions that return success and do nothing.
    pub(crate) does_nothing: HashSet<String>,
    /// The function, the number of the call from 1 on, and the code that it returns.
    pub(crate) refuses: Vec<(String, u64, i32)>,
    /// The numbers of the attributes with the opposite value.
    pub(crate) negates: HashSet<String>,
    /// The access that each query returns, if it is not the one that was set.
    pub(crate) reports_access: Option<u64>,
    pub(crate) takes_hints: bool,
    pub(crate) sets_write: bool,
    pub(crate) loses_memory: bool,
    pub(crate) host_faults: bool,
    /// The granularity in bytes.
    pub(crate) granularity: u64,
    /// The memory of each device in bytes.
    pub(crate) memory: u64,
}

pub(crate) static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let text = std::env::var("FAKE_HIP_VERSION").unwrap_or_else(|_| "7.1".to_owned());
    let named = NAMED.iter().find(|(name, _)| *name == text).map(|(_, version)| *version);
    let version = named.or_else(|| text.parse().ok().filter(|version| *version >= 50_000_000));
    let version =
        version.unwrap_or_else(|| stop(format_args!("FAKE_HIP_VERSION={text} is not a known version")));
    Settings {
        version,
        bucket: Bucket::of(version),
        devices: number("FAKE_HIP_DEVICES", 2) as usize,
        without_vmm: number("FAKE_HIP_WITHOUT_VMM", 0) as usize,
        sets_access_of: match number("FAKE_HIP_SETS_ACCESS_OF", 0) {
            0 => usize::MAX,
            most => most as usize,
        },
        fails: names("FAKE_HIP_FAILS"),
        does_nothing: names("FAKE_HIP_DOES_NOTHING"),
        refuses: names("FAKE_HIP_REFUSES").iter().filter(|call| !call.is_empty()).map(refused).collect(),
        negates: names("FAKE_HIP_NEGATES"),
        reports_access: Some(number("FAKE_HIP_REPORTS_ACCESS", 0)).filter(|access| *access != 0),
        takes_hints: number("FAKE_HIP_TAKES_HINTS", 1) != 0,
        sets_write: number("FAKE_HIP_SETS_WRITE", 0) != 0,
        loses_memory: number("FAKE_HIP_LOSES_MEMORY", 0) != 0,
        host_faults: number("FAKE_HIP_HOST_FAULTS", 0) != 0,
        granularity: number("FAKE_HIP_GRANULARITY_KB", 4) << 10,
        memory: number("FAKE_HIP_MEMORY_MB", 512) << 20,
    }
});

/// Returns the misbehaviour of the configured version.
pub(crate) fn bucket() -> &'static Bucket {
    &SETTINGS.bucket
}

fn names(variable: &str) -> HashSet<String> {
    std::env::var(variable).unwrap_or_default().split(',').map(str::to_owned).collect()
}

/// Parses `function:N:code`.
fn refused(call: &String) -> (String, u64, i32) {
    let parts: Vec<&str> = call.split(':').collect();
    let parsed = match parts[..] {
        [name, count, code] => count.parse().ok().zip(code.parse().ok()).map(|both| (name, both)),
        _ => None,
    };
    let (name, (count, code)) =
        parsed.unwrap_or_else(|| stop(format_args!("FAKE_HIP_REFUSES={call} is not function:N:code")));
    (name.to_owned(), count, code)
}

fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| stop(format_args!("{name}={text} is not a number")))
}
