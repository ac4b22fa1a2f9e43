//! What the environment asks for, read at the first call. A setting that is unknown or ill-formed ends the process: a
//! test with a misspelt one would pass and mean nothing. `README.md` has them in words.
#![allow(unsafe_code)] // leaves without exit handlers

use crate::c::MOST_DEVICES;
use crate::code::Code;
use crate::table::FUNCTIONS;
use crate::violation::say;
use std::sync::LazyLock;
use std::time::Duration;

/// All variables begin with this.
const PREFIX: &str = "CUDA_STANDIN_";
const NAMES: &str = "VERSION, GPUS, MEM_MB, P2P, VMM, FAIL, WORK_DELAY, ON_VIOLATION, TRACE";

#[derive(Debug)]
pub(crate) struct Settings {
    /// As `cuDriverGetVersion` answers it.
    pub(crate) version: u32,
    pub(crate) gpus: usize,
    /// Bytes of each GPU's memory.
    pub(crate) memory: u64,
    /// Whether a GPU can have access to another's memory.
    pub(crate) p2p: bool,
    /// Whether virtual memory is said to be supported.
    pub(crate) vmm: bool,
    pub(crate) failures: Vec<Failure>,
    /// How much longer everything takes that is queued on a stream.
    pub(crate) work_delay: Duration,
    pub(crate) abort_on_violation: bool,
    pub(crate) trace: bool,
}

/// A call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The function's place in the table.
    pub(crate) call: usize,
    pub(crate) times: Times,
    pub(crate) code: Code,
}

/// Which calls of a function, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Times {
    Once(u64),
    From(u64),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: 13_000,
            gpus: 1,
            memory: 4096 << 20,
            p2p: true,
            vmm: true,
            failures: Vec::new(),
            work_delay: Duration::ZERO,
            abort_on_violation: false,
            trace: false,
        }
    }
}

/// The process's settings.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            name.starts_with(PREFIX).then(|| (name, value.to_string_lossy().into_owned()))
        });
        Settings::from_variables(environment).unwrap_or_else(|wrong| {
            say(format_args!("{wrong}"));
            // SAFETY: it takes a number and does not return; exit handlers could call back here.
            unsafe { libc::_exit(2) }
        })
    });
    &SETTINGS
}

impl Settings {
    fn from_variables(variables: impl Iterator<Item = (String, String)>) -> Result<Self, String> {
        let mut settings = Self::default();
        for (name, value) in variables {
            let short = name.strip_prefix(PREFIX).unwrap_or(&name);
            settings.set(short, value.trim()).map_err(|wrong| format!("{name}={value}: {wrong}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "VERSION" => self.version = version(value)?,
            "GPUS" => self.gpus = number(value, 0, MOST_DEVICES as u64)? as usize,
            "MEM_MB" => self.memory = number(value, 1, 1 << 30)? << 20,
            "P2P" => self.p2p = switch(value)?,
            "VMM" => self.vmm = switch(value)?,
            "FAIL" => self.failures = items(value).map(failure).collect::<Result<_, _>>()?,
            "WORK_DELAY" => self.work_delay = time(value)?,
            "ON_VIOLATION" => self.abort_on_violation = aborts(value)?,
            "TRACE" => self.trace = switch(value)?,
            _ => return Err(format!("there is no such setting; there are {PREFIX}...: {NAMES}")),
        }
        Ok(())
    }
}

/// `12.3`, or the number that is answered, `12030`.
pub(crate) fn version(value: &str) -> Result<u32, String> {
    let parts = value.split_once('.').and_then(|(major, minor)| {
        Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok().filter(|minor| *minor < 100)? * 10)
    });
    let number = parts.or_else(|| value.parse().ok()).filter(|number| (1_000..100_000).contains(number));
    number.ok_or_else(|| "it must be a version such as 12.3 or 12030".to_owned())
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn number(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("it must be a number from {least} to {most}"))
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("it must be 0 or 1".to_owned()),
    }
}

fn aborts(value: &str) -> Result<bool, String> {
    match value {
        "abort" => Ok(true),
        "count" => Ok(false),
        _ => Err("it must be abort or count".to_owned()),
    }
}

/// `500us`.
fn time(value: &str) -> Result<Duration, String> {
    let form = || format!("{value:?} must be a time with us, ms or s, such as 500us");
    let (count, unit) = value.split_at(value.find(|sign: char| !sign.is_ascii_digit()).ok_or_else(form)?);
    let count = count.parse().map_err(|_| form())?;
    match unit {
        "us" => Ok(Duration::from_micros(count)),
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        _ => Err(form()),
    }
}

/// `FUNCTION:TIMES:CODE`; times `3+` is the third and all that follow.
fn failure(item: &str) -> Result<Failure, String> {
    let form = || format!("{item:?} must be FUNCTION:TIMES:CODE, such as cuMemMap:3:2");
    let [function, times, code] = item.split(':').collect::<Vec<_>>()[..] else { return Err(form()) };
    let (digits, open) = times.strip_suffix('+').map_or((times, false), |digits| (digits, true));
    let first = digits.parse().ok().filter(|first| *first > 0).ok_or_else(form)?;
    let code = Code(code.parse().ok().filter(|code| *code != 0).ok_or_else(form)?);
    let call = FUNCTIONS.iter().position(|known| known.name == function);
    let call = call.ok_or_else(|| format!("no function {function:?} can be named here"))?;
    Ok(Failure { call, times: if open { Times::From(first) } else { Times::Once(first) }, code })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    fn parsed(name: &str, value: &str) -> Result<Settings, String> {
        Settings::from_variables([(format!("{PREFIX}{name}"), value.to_owned())].into_iter())
    }

    #[test]
    fn every_setting_is_taken() {
        assert_eq!(parsed("VERSION", "11.4").unwrap().version, 11_040);
        assert_eq!(parsed("VERSION", "12030").unwrap().version, 12_030);
        assert_eq!(parsed("GPUS", "2").unwrap().gpus, 2);
        assert_eq!(parsed("MEM_MB", "512").unwrap().memory, 512 << 20);
        assert!(!parsed("P2P", "0").unwrap().p2p && !parsed("VMM", "0").unwrap().vmm);
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
            ("GPUS", "9"),
            ("GPUS", "two"),
            ("MEM_MB", "0"),
            ("VERSION", "newest"),
            ("VERSION", "13"),
            ("P2P", "yes"),
            ("WORK_DELAY", "20"),
            ("ON_VIOLATION", "ignore"),
            ("FAIL", "cuMemMapp:3:2"),
            ("FAIL", "cuMemMap:0:2"),
            ("FAIL", "cuMemMap:3"),
            ("FAIL", "cuMemMap:3:0"),
        ] {
            let wrong = parsed(name, value).unwrap_err();
            assert!(wrong.starts_with(&format!("{PREFIX}{name}={value}: ")), "{wrong}");
        }
    }
}
