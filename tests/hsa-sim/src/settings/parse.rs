//! Parses the text of a variable into a setting, or reports the fault in it.

use super::{Failure, MAX_GPUS, PREFIX, Settings};
use crate::abi::Status;
use crate::calls;
use gpu_vmm_test_settings::{Times, either, items, number, switch, time, unknown};
use std::time::Duration;

const NAMES: &str = "GPUS, GFX, MEM_MB, GRANULE, REC_GRANULE, P2P, LARGE_BAR, VMM, HOST_ACCESS, \
                     KEEPS_MEMORY, KEEPS_DESCRIPTORS, HOST_FAULTS, UUIDS, ON_FAULT, ON_UNKNOWN_KERNEL, KERNELS, JUNK, FAIL, DELAY, TRACE";

impl Settings {
    /// Sets one setting by its name without the prefix.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "GPUS" => self.gpus = number(value, 0, MAX_GPUS)?,
            "GFX" => self.gfx = instruction_set(value)?,
            "MEM_MB" => self.memory = number::<usize>(value, 1, 1 << 30)? << 20,
            "GRANULE" => self.granule = granule(value)?,
            "REC_GRANULE" => self.recommended_granule = granule(value)?,
            "P2P" => self.p2p = switch(value)?,
            "LARGE_BAR" => self.large_bar = switch(value)?,
            "VMM" => self.vmm = switch(value)?,
            "HOST_ACCESS" => self.host_access = switch(value)?,
            "KEEPS_MEMORY" => self.keeps_memory = switch(value)?,
            "KEEPS_DESCRIPTORS" => self.keeps_descriptors = switch(value)?,
            "HOST_FAULTS" => self.host_faults = switch(value)?,
            "UUIDS" => self.uuids = switch(value)?,
            "ON_FAULT" => self.abort_on_fault = either(value, "abort", "skip")?,
            "ON_UNKNOWN_KERNEL" => self.abort_on_unknown_kernel = either(value, "abort", "skip")?,
            "KERNELS" => self.run_kernels = either(value, "run", "ignore")?,
            "JUNK" => self.junk = switch(value)?,
            "FAIL" => self.failures = items(value).map(failure).collect::<Result<_, _>>()?,
            "DELAY" => self.delays = items(value).map(delay).collect::<Result<_, _>>()?,
            "TRACE" => self.trace = switch(value)?,
            _ => unknown(PREFIX, NAMES)?,
        }
        Ok(())
    }
}

fn granule(value: &str) -> Result<usize, String> {
    let granule = value.parse().ok().filter(|granule: &usize| *granule >= 4096 && granule.is_power_of_two());
    granule.ok_or_else(|| "it must be a power of two from 4096 on".to_owned())
}

fn instruction_set(value: &str) -> Result<String, String> {
    if value.starts_with("gfx") && value.is_ascii() {
        return Ok(value.to_owned());
    }
    Err("it must be the name of an instruction set such as gfx90a:sramecc+:xnack-".to_owned())
}

fn call(name: &str) -> Result<usize, String> {
    let found = calls::NAMES.iter().position(|listed| *listed == name);
    found.ok_or_else(|| format!("there is no function {name:?}"))
}

/// Parses `function:times:status`, such as `hsa_amd_vmem_map:3:0x1008`; times `3+` means the third call and all later ones.
fn failure(item: &str) -> Result<Failure, String> {
    let form = || format!("{item:?} must be FUNCTION:TIMES:STATUS, such as hsa_amd_vmem_map:3:0x1008");
    let [function, times, status] = item.split(':').collect::<Vec<_>>()[..] else { return Err(form()) };
    let times = Times::parse(times).ok_or_else(form)?;
    let status = match status.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => status.parse(),
    };
    let status = Status(status.ok().filter(|status| *status != 0).ok_or_else(form)?);
    Ok(Failure { call: call(function)?, times, status })
}

/// Parses `function:time`, such as `hsa_amd_vmem_map:500us`.
fn delay(item: &str) -> Result<(usize, Duration), String> {
    let form = || format!("{item:?} must be FUNCTION:TIME, such as hsa_amd_vmem_map:500us");
    let (function, duration) = item.split_once(':').ok_or_else(form)?;
    Ok((call(function)?, time(duration)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_test_settings::from_variables;

    fn parsed(name: &str, value: &str) -> Result<Settings, String> {
        let variable = (format!("{PREFIX}{name}"), value.to_owned());
        from_variables(PREFIX, [variable].into_iter(), Settings::set)
    }

    #[test]
    fn every_setting_is_taken() {
        assert_eq!(parsed("GPUS", "2").unwrap().gpus, 2);
        assert_eq!(parsed("GPUS", "0").unwrap().gpus, 0);
        assert_eq!(parsed("MEM_MB", "512").unwrap().memory, 512 << 20);
        assert_eq!(parsed("GFX", "gfx942").unwrap().gfx, "gfx942");
        assert_eq!(parsed("GRANULE", "65536").unwrap().granule, 65536);
        assert_eq!(parsed("REC_GRANULE", "4194304").unwrap().recommended_granule, 4 << 20);
        assert!(!parsed("P2P", "0").unwrap().p2p && !parsed("LARGE_BAR", "0").unwrap().large_bar);
        assert!(!parsed("VMM", "0").unwrap().vmm && parsed("HOST_ACCESS", "1").unwrap().host_access);
        assert!(!parsed("ON_FAULT", "skip").unwrap().abort_on_fault);
        assert!(!parsed("ON_UNKNOWN_KERNEL", "skip").unwrap().abort_on_unknown_kernel);
        assert!(!parsed("KERNELS", "ignore").unwrap().run_kernels && parsed("JUNK", "1").unwrap().junk);
        assert!(parsed("KEEPS_MEMORY", "1").unwrap().keeps_memory);
        assert!(parsed("KEEPS_DESCRIPTORS", "1").unwrap().keeps_descriptors);
        assert!(parsed("TRACE", "1").unwrap().trace && !parsed("UUIDS", "0").unwrap().uuids);
    }

    #[test]
    fn calls_fail_and_wait_as_told() {
        let map = calls::index("hsa_amd_vmem_map");
        let settings = parsed("FAIL", "hsa_amd_vmem_map:3:0x1008, hsa_init:2+:4096").unwrap();
        let third = Failure { call: map, times: Times::Once(3), status: Status::OUT_OF_RESOURCES };
        let init = Failure { call: calls::index("hsa_init"), times: Times::From(2), status: Status::ERROR };
        assert_eq!(settings.failures, [third, init]);
        let settings = parsed("DELAY", "hsa_amd_vmem_map:500us,hsa_init:2ms").unwrap();
        assert_eq!(settings.delays[&map], Duration::from_micros(500));
        assert_eq!(settings.delays.len(), 2);
    }

    #[test]
    fn what_is_misspelt_is_refused() {
        for (name, value) in [
            ("GPU", "2"),
            ("GPUS", "9"),
            ("GPUS", "two"),
            ("MEM_MB", "0"),
            ("GRANULE", "5000"),
            ("P2P", "yes"),
            ("ON_FAULT", "ignore"),
            ("KERNELS", "skip"),
            ("JUNK", "some"),
            ("FAIL", "hsa_amd_vmem_mapp:3:0x1008"),
            ("FAIL", "hsa_amd_vmem_map:0:0x1008"),
            ("FAIL", "hsa_amd_vmem_map:3"),
            ("FAIL", "hsa_amd_vmem_map:3:0"),
            ("DELAY", "hsa_amd_vmem_map:500"),
            ("DELAY", "hsa_amd_vmem_map:5 min"),
        ] {
            let wrong = parsed(name, value).unwrap_err();
            assert!(wrong.starts_with(&format!("{PREFIX}{name}={value}: ")), "{wrong}");
        }
    }
}
