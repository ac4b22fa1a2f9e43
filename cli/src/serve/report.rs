//! The status of a server, for people and for programs. Names come from other users, and are shown without control characters.

use crate::CliResult;
use crate::output::{Output, about, counted, shown};
use gpu_vmm::serve::{ClientInfo, DeviceInfo, ProgramInfo, RegionInfo, ServerInfo, Status};
use gpu_vmm::{Bytes, DeviceUuid};
use serde::Serialize;

/// Prints everything as a text.
pub(super) fn text(status: &Status, output: &mut Output) -> CliResult {
    let Status { server, regions, clients, programs, devices } = status;
    let size = |bytes| about(Bytes(bytes));
    let budget = server.budget.map(|budget| format!(" of {}", size(budget))).unwrap_or_default();
    let old = match server.old {
        0 => String::new(),
        old => format!(", {} of it no longer in a region and in use", size(old)),
    };
    let ServerInfo { process, vendor, version, .. } = server;
    let text =
        format!("process {process}, {vendor}, gpu-vmm {version}: {}{budget} held{old}", size(server.held));
    output.paragraph("server   ", &shown(&text))?;
    if !regions.is_empty() {
        let rows = regions.iter().map(region_row);
        let titles = ["region", "size", "address", "epoch", "user", "mode", "leases"];
        table(titles.map(str::to_owned), rows, output)?;
    }
    if !clients.is_empty() {
        let titles = ["process", "user", "lease", "region", "epoch", "memory", ""];
        table(titles.map(str::to_owned), clients.iter().map(client_row), output)?;
    }
    if !programs.is_empty() {
        let titles = ["device", "budget", "free", "of programs"];
        table(titles.map(str::to_owned), devices.iter().map(device_row), output)?;
        let titles =
            ["process", "user", "program", "priority", "granted", "live", "can give", "asleep", "waits for"];
        table(
            titles.map(str::to_owned),
            programs.iter().map(|program| program_row(program, devices)),
            output,
        )?;
    }
    Ok(())
}

fn device_row(device: &DeviceInfo) -> [String; 4] {
    let free = device.budget.saturating_sub(device.held);
    let [budget, free, granted] = [device.budget, free, device.granted].map(|bytes| about(Bytes(bytes)));
    [shown(&device.name), budget, free, granted]
}

/// Returns what a program can give back: what it has been granted and does not use, and what can sleep.
fn can_give(program: &ProgramInfo) -> u64 {
    let report = &program.report;
    let given = program.granted.saturating_sub(report.live.max(report.reserved));
    given.saturating_add(report.can_sleep).min(program.granted.saturating_sub(report.reserved))
}

fn program_row(program: &ProgramInfo, devices: &[DeviceInfo]) -> [String; 9] {
    let place = devices.iter().position(|device| device.device == program.device);
    let of_several =
        place.filter(|_| devices.len() > 1).map(|place| format!(", device {place}")).unwrap_or_default();
    let waits = match (program.wants, program.answers, program.lingers) {
        (_, _, true) => "has ended its connection, not itself".to_owned(),
        (0, false, _) => "has not answered".to_owned(),
        (0, ..) => String::new(),
        (wants, ..) => {
            let seconds = program.waited_ms / 1000;
            format!("{} for {seconds} s: {}", about(Bytes(wants)), shown(&program.waits_for))
        }
    };
    let report = &program.report;
    let sizes = [program.granted, report.live, can_give(program), report.asleep];
    let [granted, live, gives, asleep] = sizes.map(|bytes| about(Bytes(bytes)));
    [
        program.process.to_string(),
        program.user.to_string(),
        format!("{}{of_several}", shown(&program.name)),
        program.priority.to_string(),
        granted,
        live,
        gives,
        asleep,
        waits,
    ]
}

fn region_row(region: &RegionInfo) -> [String; 7] {
    let mut leases = Vec::new();
    if region.has_writer {
        leases.push("a writer".to_owned());
    }
    if region.readers > 0 {
        leases.push(counted(region.readers, "reader"));
    }
    if region.waiting > 0 {
        leases.push(format!("{} waiting", region.waiting));
    }
    let epoch = if region.epoch == 0 { "being created".to_owned() } else { region.epoch.to_string() };
    [
        shown(&region.name),
        about(Bytes(region.size)),
        format!("{:#x}", region.address),
        epoch,
        region.user.to_string(),
        region.mode.to_string(),
        leases.join(", "),
    ]
}

fn client_row(client: &ClientInfo) -> [String; 7] {
    let state = match (client.waits, client.lingers) {
        (true, _) => "waits",
        (_, true) => "has ended its connection, not itself",
        _ => "",
    };
    [
        client.process.to_string(),
        client.user.to_string(),
        client.lease.name().to_owned(),
        shown(&client.region),
        client.epoch.to_string(),
        about(Bytes(client.bytes)),
        state.to_owned(),
    ]
}

/// Prints columns that are as wide as their texts.
fn table<const N: usize>(
    titles: [String; N],
    rows: impl Iterator<Item = [String; N]>,
    output: &mut Output,
) -> CliResult {
    let rows: Vec<[String; N]> = [titles].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    output.line("")?;
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        output.line(cells.collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}

/// A region as programs read it: the device and the mode as texts.
#[derive(Serialize)]
struct JsonRegion<'a> {
    #[serde(flatten)]
    region: &'a RegionInfo,
    address: String,
    device: String,
    mode: String,
}

/// Prints everything as one JSON object.
pub(super) fn json(status: &Status, output: &mut Output) -> CliResult {
    let Status { server, regions, clients, programs, devices } = status;
    let mut texts = Vec::with_capacity(regions.len());
    for region in regions {
        let RegionInfo { address, device, mode, .. } = region;
        let (address, device, mode) = (format!("{address:#x}"), device.to_string(), mode.to_string());
        // Later members replace earlier ones of the same name.
        texts.push(serde_json::to_value(JsonRegion { region, address, device, mode })?);
    }
    let programs: Vec<_> =
        programs.iter().map(|program| named(program, program.device)).collect::<Result<_, _>>()?;
    let devices: Vec<_> =
        devices.iter().map(|device| named(device, device.device)).collect::<Result<_, _>>()?;
    let (server, regions) = (serde_json::to_value(server)?, texts);
    let all = serde_json::json!({
        "server": server, "regions": regions, "clients": clients, "programs": programs, "devices": devices
    });
    output.json(&all)
}

/// Returns a value with its device as a text.
fn named(value: &impl Serialize, device: DeviceUuid) -> Result<serde_json::Value, serde_json::Error> {
    let mut value = serde_json::to_value(value)?;
    value["device"] = device.to_string().into();
    Ok(value)
}

/// Prints metrics.
pub(super) fn prometheus(status: &Status, output: &mut Output) -> CliResult {
    let Status { server, regions, clients, programs, devices } = status;
    let mut metric = |name: &str, help: &str, rows: &[(String, u64)]| -> CliResult {
        output.line(format!("# HELP gpu_vmm_serve_{name} {help}"))?;
        output.line(format!("# TYPE gpu_vmm_serve_{name} gauge"))?;
        rows.iter()
            .try_for_each(|(labels, value)| output.line(format!("gpu_vmm_serve_{name}{labels} {value}")))
    };
    let one = |value| [(String::new(), value)];
    metric("held_bytes", "Memory that the server holds or has promised.", &one(server.held))?;
    metric("old_bytes", "The part of it that is in no region and that clients use.", &one(server.old))?;
    if let Some(budget) = server.budget {
        metric("budget_bytes", "The memory that the server may hold.", &one(budget))?;
    }
    metric("clients", "Connected clients.", &one(server.clients.into()))?;
    let each = |value: fn(&RegionInfo) -> u64| -> Vec<(String, u64)> {
        regions
            .iter()
            .map(|region| (format!("{{region=\"{}\"}}", label(&region.name)), value(region)))
            .collect()
    };
    metric("region_bytes", "The size of a region.", &each(|region| region.size))?;
    metric("region_epoch", "The number of commits of a region.", &each(|region| region.epoch))?;
    metric("region_readers", "Clients with a read lease.", &each(|region| region.readers.into()))?;
    metric("region_writers", "Clients with a write lease.", &each(|region| region.has_writer.into()))?;
    metric("region_waiting", "Clients that wait for a lease.", &each(|region| region.waiting.into()))?;
    let lingering = clients.iter().filter(|client| client.lingers).map(|client| client.bytes);
    // The numbers are another process's.
    let lingering = lingering.fold(0, u64::saturating_add);
    let help = "Memory of processes that have ended their connection without notice.";
    metric("lingering_bytes", help, &one(lingering))?;
    let of_devices = |value: fn(&DeviceInfo) -> u64| -> Vec<(String, u64)> {
        devices.iter().map(|device| (format!("{{device=\"{}\"}}", device.device), value(device))).collect()
    };
    metric(
        "device_budget_bytes",
        "What regions and programs may have on a device.",
        &of_devices(|one| one.budget),
    )?;
    metric("device_held_bytes", "What they have.", &of_devices(|one| one.held))?;
    metric("device_granted_bytes", "The part of it that programs have.", &of_devices(|one| one.granted))?;
    let of_programs = |value: fn(&ProgramInfo) -> u64| -> Vec<(String, u64)> {
        let labels = |one: &ProgramInfo| {
            let (name, device) = (label(&one.name), one.device);
            format!("{{program=\"{name}\",process=\"{}\",device=\"{device}\"}}", one.process)
        };
        programs.iter().map(|program| (labels(program), value(program))).collect()
    };
    metric("program_granted_bytes", "A program's part of the budget.", &of_programs(|one| one.granted))?;
    metric("program_live_bytes", "The memory of its live blocks.", &of_programs(|one| one.report.live))?;
    metric("program_can_give_bytes", "What it can give back.", &of_programs(can_give))?;
    metric("program_asleep_bytes", "What of it is suspended.", &of_programs(|one| one.report.asleep))?;
    metric("program_wanted_bytes", "What it waits for.", &of_programs(|one| one.wants))?;
    metric(
        "program_answers",
        "Whether it has answered the last question.",
        &of_programs(|one| one.answers.into()),
    )
}

/// Returns a text as a label's value.
fn label(text: &str) -> String {
    shown(text).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_quoted() {
        assert_eq!(label("a\"b\\c\n"), "a\\\"b\\\\c");
    }
}
