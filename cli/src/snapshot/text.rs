//! The report of `snapshot` for people. A file's texts are untrusted and are shown without control characters, which a
//! terminal would obey.

use crate::CliResult;
use crate::output::{Output, about, counted, shown};
use crate::snapshot::{DeviceReport, FileReport, PartReport, RegionReport, Report};
use gpu_vmm::Bytes;

/// Prints everything that is known without reading the contents.
pub(crate) fn opening(report: &Report, output: &mut Output) -> CliResult {
    let Report { id, version, backend, driver, .. } = report;
    output.paragraph("snapshot ", id)?;
    let by = format!("{} by gpu-vmm {version}, {backend} with driver {driver}", time(report.created));
    output.paragraph("  written       ", &shown(&by))?;
    if let Some(since) = &report.since {
        output.paragraph("  since         ", &file(since))?;
    }
    for needed in &report.needs {
        output.paragraph("  needs         ", &file(needed))?;
    }
    report.devices.iter().try_for_each(|one| device(one, output))?;
    report.regions.iter().try_for_each(|one| region(one, output))?;
    output.line("")?;
    let blocks = &report.blocks;
    let left_out = format!(
        "{} {} zeros, {} unchanged since earlier",
        blocks.zero,
        if blocks.zero == 1 { "is" } else { "are" },
        blocks.unchanged
    );
    let stored = format!("{} stored, {} of them compressed", blocks.stored, blocks.compressed);
    let size = about(Bytes(report.block_bytes));
    output.paragraph(
        &format!("{} of {size}: ", counted(blocks.all, "block")),
        &format!("{left_out}, {stored}"),
    )?;
    let [contents, file] = [report.content_bytes, report.file_bytes].map(|bytes| about(Bytes(bytes)));
    output.paragraph("", &format!("{contents} of memory in a file of {file}"))
}

/// Prints the result of the verification.
pub(crate) fn verdict(report: &Report, output: &mut Output) -> CliResult {
    if report.verified { output.paragraph("checked: ", "every block matches its checksum") } else { Ok(()) }
}

fn file(file: &FileReport) -> String {
    shown(&format!("{} in {}", file.id, file.file))
}

fn device(device: &DeviceReport, output: &mut Output) -> CliResult {
    let DeviceReport { name, uuid, .. } = device;
    let uuid = uuid.as_ref().map(|uuid| format!(", {uuid}")).unwrap_or_default();
    let text = format!("{name}, {}{uuid}", about(Bytes(device.total_bytes)));
    output.paragraph(&format!("  {:<14}", format!("device {}", device.device)), &shown(&text))
}

fn region(region: &RegionReport, output: &mut Output) -> CliResult {
    let tag = if region.tag.is_empty() { "without a tag".to_owned() } else { shown(&region.tag) };
    let [mapped, reserved, guard] =
        [region.mapped_bytes, region.reserved_bytes, region.guard_bytes].map(|bytes| about(Bytes(bytes)));
    let guard = if region.guard_bytes == 0 { String::new() } else { format!(", a guard of {guard}") };
    output.line("")?;
    output.paragraph(&format!("region {} ", region.address), &tag)?;
    let portable = if region.portable { ", portable" } else { "" };
    let below = region.below.as_ref().map(|limit| format!(", below {limit}")).unwrap_or_default();
    output.paragraph("  ", &format!("{mapped} mapped of {reserved} of addresses{guard}{portable}{below}"))?;
    region.parts.iter().try_for_each(|one| part(one, output))
}

fn part(part: &PartReport, output: &mut Output) -> CliResult {
    let access: Vec<String> =
        part.access.iter().map(|one| format!("{}: {}", one.device, one.access)).collect();
    let access = if access.is_empty() { "no access".to_owned() } else { access.join(", ") };
    let count = if part.mappings == 1 { String::new() } else { format!(" in {} mappings", part.mappings) };
    let label =
        format!("  at {:<12}{:>10}{count}  ", Bytes(part.offset).to_string(), about(Bytes(part.bytes)));
    output.paragraph(&label, &format!("{}; {access}", part.memory))
}

/// Formats seconds since the beginning of 1970 as a date and a time of day.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is a year's last day. 400 years have 146097 days.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let [hour, minute, second] = [second / 3600, second / 60 % 60, second % 60];
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{WIDTH, lines_of};
    use crate::snapshot::Blocks;

    #[test]
    fn parts_that_few_snapshots_have_are_named() {
        let part = PartReport {
            offset: 2 << 20,
            bytes: 3 << 20,
            mappings: 1,
            memory: "host memory".to_owned(),
            access: Vec::new(),
        };
        let region = RegionReport {
            tag: "kv".to_owned(),
            address: "0x7000".to_owned(),
            reserved_bytes: 8 << 20,
            mapped_bytes: 3 << 20,
            guard_bytes: 2 << 20,
            portable: true,
            below: Some("0x10000000000".to_owned()),
            parts: vec![part],
        };
        let lines = lines_of(WIDTH, |output| super::region(&region, output));
        let expected = [
            "",
            "region 0x7000 kv",
            "  3 MiB mapped of 8 MiB of addresses, a guard of 2 MiB, portable, below 0x10000000000",
            "  at 2 MiB            3 MiB  host memory; no access",
        ];
        assert_eq!(lines, expected);
        let device = DeviceReport {
            device: 1,
            name: "a GPU".to_owned(),
            uuid: None,
            granularity_bytes: 1,
            total_bytes: 3 << 30,
        };
        assert_eq!(
            lines_of(WIDTH, |output| super::device(&device, output)),
            ["  device 1      a GPU, 3 GiB"]
        );
    }

    #[test]
    fn file_text_loses_control_characters() {
        let odd = |name: &str| format!("{name}\u{1b}[2J");
        let file = |name: &str| FileReport { file: odd(name), id: "1f1f".to_owned() };
        let device = DeviceReport {
            device: 1,
            name: odd("name"),
            uuid: Some("abab".to_owned()),
            granularity_bytes: 1,
            total_bytes: 1,
        };
        let region = RegionReport {
            tag: odd("tag"),
            address: "0x7000".to_owned(),
            reserved_bytes: 1,
            mapped_bytes: 0,
            guard_bytes: 0,
            portable: false,
            below: None,
            parts: Vec::new(),
        };
        let report = Report {
            file: String::new(),
            id: "1f1f".to_owned(),
            created: 0,
            version: odd("version"),
            backend: odd("backend"),
            driver: odd("driver"),
            since: Some(file("since")),
            needs: vec![file("needed")],
            devices: vec![device],
            regions: vec![region],
            content_bytes: 1,
            file_bytes: 1,
            block_bytes: 1,
            blocks: Blocks { all: 0, zero: 0, unchanged: 0, stored: 0, compressed: 0 },
            verified: true,
            error: None,
        };
        let text = lines_of(WIDTH, |output| opening(&report, output)).join("\n");
        for name in ["version", "backend", "driver", "since", "needed", "name", "tag"] {
            assert!(text.contains(&format!("{name}[2J")), "{name} is not in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
        ] {
            assert_eq!(time(seconds), text);
        }
        // Any number in a file is formatted.
        assert!(time(u64::MAX).ends_with("UTC"));
    }
}
