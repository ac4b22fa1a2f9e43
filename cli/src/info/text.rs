//! The report of `info` for people, in at most 100 columns.

use crate::Answer;
use crate::info::{BackendInfo, DeviceReport, Info, QuirkReport};
use crate::output::{Output, about};
use gpu_vmm::Bytes;

pub(crate) fn print(info: &Info, output: &mut Output) -> Answer {
    output.line(format!("gpu-vmm {}", info.version))?;
    if info.backends.is_empty() {
        output.line("built without any backend")?;
    }
    info.backends.iter().try_for_each(|one| backend(one, output))
}

fn backend(info: &BackendInfo, output: &mut Output) -> Answer {
    output.line("")?;
    output.line(format!("{:<6}{}", info.backend, if info.found { "found" } else { "not found" }))?;
    if let Some(error) = &info.error {
        output.paragraph("  ", error)?;
    }
    if let Some(driver) = &info.driver {
        let text = format!("{} (number {}), {}", driver.version, driver.version_number, driver.library);
        output.paragraph("  driver        ", &text)?;
    }
    info.devices.iter().try_for_each(|one| device(one, output))?;
    if info.found {
        quirks(&info.quirks, output)?;
    }
    Ok(())
}

/// What works on a device without virtual memory management. The reason is the note of its capability.
const PLAIN: &str = "regions, vectors and pools use plain allocations, and copy them to grow";

fn device(device: &DeviceReport, output: &mut Output) -> Answer {
    output.paragraph(&format!("  {:<14}", format!("device {}", device.device)), &device.name)?;
    if let Some(reason) = &device.unusable {
        output.paragraph("    unusable              ", reason)?;
    }
    if device.no_virtual_memory.is_some() {
        output.paragraph("    no virtual memory     ", PLAIN)?;
    }
    let total = about(Bytes(device.total_bytes));
    let memory = match device.free_bytes {
        Some(free) => format!("{} free of {total}", about(Bytes(free))),
        None => total,
    };
    output.paragraph("    memory                ", &memory)?;
    output.paragraph("    granularity           ", &Bytes(device.granularity_bytes).to_string())?;
    for capability in &device.capabilities {
        let answer = if capability.available { "yes" } else { "no" };
        let label = format!("    {:<22}{answer:<5}{:<18}", capability.feature, capability.found_by);
        output.paragraph(&label, &capability.note)?;
    }
    device.errors.iter().try_for_each(|error| output.paragraph("    error                 ", error))
}

fn quirks(quirks: &[QuirkReport], output: &mut Output) -> Answer {
    if quirks.is_empty() {
        return output.paragraph("  quirks        ", "none known for this version");
    }
    for quirk in quirks {
        output.paragraph("  quirk         ", quirk.id)?;
        output.paragraph("    effect          ", quirk.effect)?;
        output.paragraph("    workaround      ", quirk.handling)?;
        output.paragraph("    evidence        ", quirk.evidence)?;
    }
    Ok(())
}
