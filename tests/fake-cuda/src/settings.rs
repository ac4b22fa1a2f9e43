//! The settings from the environment, read at the first call. `README.md` explains them.

use crate::code::Code;
use crate::table::FUNCTIONS;
use gpu_vmm_test_settings::{Times, either, items, number, of_process, switch, time, unknown};
use std::sync::LazyLock;
use std::time::Duration;

/// The tables have entries for this number of devices.
pub(crate) const MAX_DEVICES: usize = 16;

/// All variables begin with this.
const PREFIX: &str = "FAKE_CUDA_";
const NAMES: &str = "VERSION, GPUS, MEM_MB, P2P, VMM, COMPUTE_MODE, MULTICAST, COMPRESSION, FABRIC, FAIL, WORK_DELAY, ON_VIOLATION, TRACE";

#[derive(Debug)]
pub(crate) struct Settings {
    /// As `cuDriverGetVersion` returns it.
    pub(crate) version: u32,
    pub(crate) gpus: usize,
    /// The memory size of each GPU in bytes.
    pub(crate) memory: u64,
    /// Which GPUs can access each other's memory.
    pub(crate) p2p: Reach,
    /// Whether the devices report support for virtual memory.
    pub(crate) vmm: bool,
    /// Whether processes may create contexts on the devices, as the devices report it.
    pub(crate) compute_mode: ComputeMode,
    /// Whether the devices report support for multicast.
    pub(crate) multicast: bool,
    /// What the devices report of compression, and whether they compress memory.
    pub(crate) compression: Compression,
    /// Whether fabric handles are permitted.
    pub(crate) fabric: bool,
    pub(crate) failures: Vec<Failure>,
    /// The additional time of each task on a stream.
    pub(crate) work_delay: Duration,
    pub(crate) abort_on_violation: bool,
    pub(crate) trace: bool,
}

/// Which GPUs can access each other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    None,
    All,
    /// Each GPU can access the memory of those with a higher number.
    Higher,
}

impl Reach {
    /// Returns whether a device can access another's memory.
    pub(crate) const fn allows(self, device: usize, owner: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Higher => device < owner,
        }
    }

    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "0" => Ok(Self::None),
            "1" => Ok(Self::All),
            "higher" => Ok(Self::Higher),
            _ => Err("it must be 0, 1 or higher".to_owned()),
        }
    }
}

/// Whether processes may create contexts on the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ComputeMode {
    Default,
    /// No process may.
    Prohibited,
    /// One process may, and another one has.
    Exclusive,
}

impl ComputeMode {
    /// Returns the value of the attribute.
    pub(crate) const fn number(self) -> i32 {
        match self {
            Self::Default => 0,
            Self::Prohibited => 2,
            Self::Exclusive => 3,
        }
    }

    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "default" => Ok(Self::Default),
            "prohibited" => Ok(Self::Prohibited),
            "exclusive" => Ok(Self::Exclusive),
            _ => Err("it must be default, prohibited or exclusive".to_owned()),
        }
    }
}

/// What the devices report of compression, and whether they compress memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compression {
    /// The devices report no support.
    None,
    /// The devices report support, but create memory that is not compressible.
    Reported,
    /// The devices report support, and compress memory for which it is requested.
    All,
}

impl Compression {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "0" => Ok(Self::None),
            "1" => Ok(Self::All),
            "reported" => Ok(Self::Reported),
            _ => Err("it must be 0, 1 or reported".to_owned()),
        }
    }
}

/// A call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The function's index in the table.
    pub(crate) call: usize,
    pub(crate) times: Times,
    pub(crate) code: Code,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: 13_000,
            gpus: 1,
            memory: 4096 << 20,
            p2p: Reach::All,
            vmm: true,
            compute_mode: ComputeMode::Default,
            multicast: true,
            compression: Compression::All,
            fabric: false,
            failures: Vec::new(),
            work_delay: Duration::ZERO,
            abort_on_violation: false,
            trace: false,
        }
    }
}

/// Returns the process's settings.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| of_process("fake-cuda", PREFIX, Settings::set));
    &SETTINGS
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "VERSION" => self.version = version(value)?,
            "GPUS" => self.gpus = number(value, 0, MAX_DEVICES)?,
            "MEM_MB" => self.memory = number::<u64>(value, 1, 1 << 30)? << 20,
            "P2P" => self.p2p = Reach::parse(value)?,
            "VMM" => self.vmm = switch(value)?,
            "COMPUTE_MODE" => self.compute_mode = ComputeMode::parse(value)?,
            "MULTICAST" => self.multicast = switch(value)?,
            "COMPRESSION" => self.compression = Compression::parse(value)?,
            "FABRIC" => self.fabric = switch(value)?,
            "FAIL" => self.failures = items(value).map(failure).collect::<Result<_, _>>()?,
            "WORK_DELAY" => self.work_delay = time(value)?,
            "ON_VIOLATION" => self.abort_on_violation = either(value, "abort", "count")?,
            "TRACE" => self.trace = switch(value)?,
            _ => unknown(PREFIX, NAMES)?,
        }
        Ok(())
    }
}

/// Parses `12.3`, or the number that the driver returns, `12030`.
pub(crate) fn version(value: &str) -> Result<u32, String> {
    let parts = value.split_once('.').and_then(|(major, minor)| {
        Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok().filter(|minor| *minor < 100)? * 10)
    });
    let number = parts.or_else(|| value.parse().ok()).filter(|number| (1_000..100_000).contains(number));
    number.ok_or_else(|| "it must be a version such as 12.3 or 12030".to_owned())
}

/// Parses `FUNCTION:TIMES:CODE`; times `3+` means the third call and all later ones.
fn failure(item: &str) -> Result<Failure, String> {
    let form = || format!("{item:?} must be FUNCTION:TIMES:CODE, such as cuMemMap:3:2");
    let [function, times, code] = item.split(':').collect::<Vec<_>>()[..] else { return Err(form()) };
    let times = Times::parse(times).ok_or_else(form)?;
    let code = Code(code.parse().ok().ok_or_else(form)?);
    let call = FUNCTIONS.iter().position(|known| known.name == function);
    let call = call.ok_or_else(|| format!("there is no function {function:?}"))?;
    Ok(Failure { call, times, code })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;
    use gpu_vmm_test_settings::from_variables;

    fn parsed(name: &str, value: &str) -> Result<Settings, String> {
        let variable = (format!("{PREFIX}{name}"), value.to_owned());
        from_variables(PREFIX, [variable].into_iter(), Settings::set)
    }

    #[test]
    fn every_setting_is_taken() {
        assert_eq!(parsed("VERSION", "11.4").unwrap().version, 11_040);
        assert_eq!(parsed("VERSION", "12030").unwrap().version, 12_030);
        assert_eq!(parsed("GPUS", "2").unwrap().gpus, 2);
        assert_eq!(parsed("MEM_MB", "512").unwrap().memory, 512 << 20);
        let reach = |value| {
            let p2p = parsed("P2P", value).unwrap().p2p;
            [p2p.allows(0, 1), p2p.allows(1, 0)]
        };
        assert_eq!(["0", "1", "higher"].map(reach), [[false; 2], [true; 2], [true, false]]);
        assert!(!parsed("VMM", "0").unwrap().vmm);
        let mode = |value| parsed("COMPUTE_MODE", value).unwrap().compute_mode.number();
        assert_eq!(["default", "prohibited", "exclusive"].map(mode), [0, 2, 3]);
        let compression = |value| parsed("COMPRESSION", value).unwrap().compression;
        assert_eq!(
            ["0", "1", "reported"].map(compression),
            [Compression::None, Compression::All, Compression::Reported]
        );
        assert!(!parsed("MULTICAST", "0").unwrap().multicast);
        assert!(parsed("FABRIC", "1").unwrap().fabric && !Settings::default().fabric);
        assert_eq!(parsed("WORK_DELAY", "20ms").unwrap().work_delay, Duration::from_millis(20));
        assert!(parsed("ON_VIOLATION", "abort").unwrap().abort_on_violation);
        assert!(parsed("TRACE", "1").unwrap().trace);
        let failures = parsed("FAIL", "cuMemMap:3:2, cuInit:2+:802").unwrap().failures;
        let map =
            Failure { call: table::index("cuMemMap"), times: Times::Once(3), code: Code::OUT_OF_MEMORY };
        assert_eq!((failures[0], failures[1].times, failures.len()), (map, Times::From(2), 2));
    }

    #[test]
    fn what_is_misspelt_is_refused() {
        for (name, value) in [
            ("GPU", "2"),
            ("GPUS", "17"),
            ("GPUS", "two"),
            ("MEM_MB", "0"),
            ("VERSION", "newest"),
            ("VERSION", "13"),
            ("P2P", "yes"),
            ("COMPUTE_MODE", "0"),
            ("COMPRESSION", "some"),
            ("WORK_DELAY", "20"),
            ("ON_VIOLATION", "ignore"),
            ("FAIL", "cuMemMapp:3:2"),
            ("FAIL", "cuMemMap:0:2"),
            ("FAIL", "cuMemMap:3"),
            ("FAIL", "cuMemMap:3:none"),
        ] {
            let wrong = parsed(name, value).unwrap_err();
            assert!(wrong.starts_with(&format!("{PREFIX}{name}={value}: ")), "{wrong}");
        }
    }
}
