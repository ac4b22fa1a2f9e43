//! The report of `info` for people, in at most 100 columns.

use crate::CliResult;
use crate::info::{BackendInfo, DeviceReport, Info, QuirkReport};
use crate::output::{Output, about};
use gpu_vmm::Bytes;

pub(crate) fn print(info: &Info, output: &mut Output) -> CliResult {
    output.line(format!("gpu-vmm {}", info.version))?;
    if info.backends.is_empty() {
        output.line("built without any backend")?;
    }
    info.backends.iter().try_for_each(|one| backend(one, output))
}

fn backend(info: &BackendInfo, output: &mut Output) -> CliResult {
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

fn device(device: &DeviceReport, output: &mut Output) -> CliResult {
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
    if let Some(mode) = device.compute_mode {
        output.paragraph("    compute mode          ", mode)?;
    }
    for capability in &device.capabilities {
        let answer = if capability.available { "yes" } else { "no" };
        let label = format!("    {:<22}{answer:<5}{:<18}", capability.feature, capability.found_by);
        output.paragraph(&label, &capability.note)?;
    }
    device.errors.iter().try_for_each(|error| output.paragraph("    error                 ", error))
}

fn quirks(quirks: &[QuirkReport], output: &mut Output) -> CliResult {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::{CapabilityReport, DriverReport};
    use crate::output::{WIDTH, lines_of};

    #[test]
    fn report_parts_are_in_their_places() {
        let capability = |available, feature: &str, note: &str| CapabilityReport {
            feature: feature.to_owned(),
            available,
            found_by: "attribute".to_owned(),
            note: note.to_owned(),
        };
        let device = DeviceReport {
            device: 3,
            name: "a GPU".to_owned(),
            unusable: Some("it is broken".to_owned()),
            no_virtual_memory: Some("an attribute says so".to_owned()),
            compute_mode: Some("prohibited"),
            total_bytes: 8 << 30,
            free_bytes: Some(3 << 30),
            granularity_bytes: 2 << 20,
            capabilities: vec![capability(true, "one", ""), capability(false, "other", "not here")],
            errors: vec!["a call failed".to_owned()],
        };
        let untold = DeviceReport {
            device: 4,
            name: "another".to_owned(),
            unusable: None,
            no_virtual_memory: None,
            compute_mode: None,
            free_bytes: None,
            capabilities: Vec::new(),
            errors: Vec::new(),
            ..device
        };
        let quirk = QuirkReport { id: "odd", effect: "is odd", handling: "is even", evidence: "was seen" };
        let driver =
            DriverReport { version: "1.2".to_owned(), version_number: 12, library: "lib.so".to_owned() };
        let found = BackendInfo {
            backend: "cuda",
            found: true,
            error: None,
            driver: Some(driver),
            devices: vec![device, untold],
            quirks: vec![quirk],
        };
        let missing = BackendInfo {
            backend: "hip",
            found: false,
            error: Some("no library".to_owned()),
            driver: None,
            devices: Vec::new(),
            quirks: Vec::new(),
        };
        let info = Info { version: "9.8.7", backends: vec![found, missing] };
        let expected = [
            "gpu-vmm 9.8.7",
            "",
            "cuda  found",
            "  driver        1.2 (number 12), lib.so",
            "  device 3      a GPU",
            "    unusable              it is broken",
            "    no virtual memory     regions, vectors and pools use plain allocations, and copy them to grow",
            "    memory                3 GiB free of 8 GiB",
            "    granularity           2 MiB",
            "    compute mode          prohibited",
            "    one                   yes  attribute",
            "    other                 no   attribute         not here",
            "    error                 a call failed",
            "  device 4      another",
            "    memory                8 GiB",
            "    granularity           2 MiB",
            "  quirk         odd",
            "    effect          is odd",
            "    workaround      is even",
            "    evidence        was seen",
            "",
            "hip   not found",
            "  no library",
        ];
        assert_eq!(lines_of(WIDTH, |output| print(&info, output)), expected);
        let lines = lines_of(WIDTH, |output| quirks(&[], output));
        assert_eq!(lines, ["  quirks        none known for this version"]);
        let none = Info { version: "9.8.7", backends: Vec::new() };
        assert_eq!(
            lines_of(WIDTH, |output| print(&none, output)),
            ["gpu-vmm 9.8.7", "built without any backend"]
        );
    }
}
