//! The environment of a report, for people.

use crate::CliResult;
use crate::output::{Output, about};
use gpu_vmm::Bytes;
use gpu_vmm_conformance::report::Environment;

/// Prints the driver, the device, the machine and the date.
pub(crate) fn write(environment: &Environment, output: &mut Output) -> CliResult {
    let Environment { target, ran_on, driver, machine, system, gpu_vmm, time, .. } = environment;
    output.line(format!("{target}: {ran_on}"))?;
    let device = environment.chosen().map(|device| {
        let Environment { device: ordinal, devices, granularity_bytes, .. } = environment;
        let (memory, granularity) = (about(Bytes(device.memory_bytes)), Bytes(*granularity_bytes));
        let count = devices.len();
        format!("{ordinal} of {count}: {}, {memory}, granularity {granularity}", device.name)
    });
    for (label, text) in [
        ("driver", driver.to_string()),
        ("device", device.unwrap_or_default()),
        ("machine", machine.to_string()),
        ("system", system.to_string()),
        ("gpu-vmm", format!("{gpu_vmm}, {time}")),
    ] {
        output.paragraph(&format!("  {label:<9}"), &text)?;
    }
    Ok(())
}
