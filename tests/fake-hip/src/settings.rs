//! What the environment says.
//!
//! | variable | what | if not set |
//! |---|---|---|
//! | `FAKE_HIP_VERSION` | `7.0`, `6.4.1`, or the whole number that `hipRuntimeGetVersion` answers | `7.1` |
//! | `FAKE_HIP_DEVICES` | how many devices | 2 |
//! | `FAKE_HIP_WITHOUT_VMM` | the number of devices, from the first on, without virtual memory management | 0 |
//! | `FAKE_HIP_MEMORY_MB` | memory of each in MiB | 512 |
//! | `FAKE_HIP_IMPORT` | `pointer` or `value`: how descriptors are taken, against what the version says | by version |

use crate::bucket::Bucket;
use crate::c::stop;

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
];

pub(crate) struct Settings {
    pub(crate) version: u32,
    pub(crate) bucket: Bucket,
    pub(crate) devices: usize,
    /// The number of devices, from the first on, without virtual memory management.
    pub(crate) without_vmm: usize,
    /// Bytes of each device.
    pub(crate) memory: u64,
}

impl Settings {
    pub(crate) fn read() -> Self {
        let version = match variable("FAKE_HIP_VERSION") {
            None => 70_125_424,
            Some(text) => {
                version(&text).unwrap_or_else(|| stop(format_args!("FAKE_HIP_VERSION={text} is no version")))
            }
        };
        let mut bucket = Bucket::of(version);
        match variable("FAKE_HIP_IMPORT").as_deref() {
            None => {}
            Some("pointer") => bucket.import_by_pointer = true,
            Some("value") => bucket.import_by_pointer = false,
            Some(other) => stop(format_args!("FAKE_HIP_IMPORT={other} is neither pointer nor value")),
        }
        Self {
            version,
            bucket,
            devices: number("FAKE_HIP_DEVICES", 2) as usize,
            without_vmm: number("FAKE_HIP_WITHOUT_VMM", 0) as usize,
            memory: number("FAKE_HIP_MEMORY_MB", 512) << 20,
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| stop(format_args!("{name}={text} is no number")))
    })
}

fn version(text: &str) -> Option<u32> {
    let named = NAMED.iter().find(|(name, _)| *name == text);
    named.map(|(_, version)| *version).or_else(|| text.parse().ok().filter(|version| *version >= 50_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_names_or_numbers() {
        assert_eq!(version("7.0"), Some(70_051_830));
        assert_eq!(version("71260540"), Some(71_260_540));
        assert_eq!((version("7"), version("newest")), (None, None));
    }
}
