//! The state of a server as JSON.

use gpu_vmm::serve::{ClientInfo, DeviceInfo, ProgramInfo, RegionInfo, Status};
use serde_json::{Value, json};

pub(super) fn of(status: &Status) -> Value {
    let server = &status.server;
    json!({
        "server": {
            "version": server.version,
            "vendor": server.vendor,
            "process": server.process,
            "held": server.held,
            "old": server.old,
            "budget": server.budget,
            "clients": server.clients,
        },
        "regions": status.regions.iter().map(region).collect::<Vec<_>>(),
        "clients": status.clients.iter().map(client).collect::<Vec<_>>(),
        "programs": status.programs.iter().map(program).collect::<Vec<_>>(),
        "devices": status.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

fn region(region: &RegionInfo) -> Value {
    json!({
        "name": region.name,
        "address": region.address,
        "size": region.size,
        "handles": region.handles,
        "device": region.device.to_string(),
        "epoch": region.epoch,
        "layout": region.layout,
        "user": region.user,
        "group": region.group,
        "mode": region.mode.to_string(),
        "readers": region.readers,
        "has_writer": region.has_writer,
        "waiting": region.waiting,
    })
}

fn client(client: &ClientInfo) -> Value {
    json!({
        "process": client.process,
        "user": client.user,
        "region": client.region,
        "lease": client.lease.name(),
        "waits": client.waits,
        "epoch": client.epoch,
        "bytes": client.bytes,
        "lingers": client.lingers,
    })
}

fn program(program: &ProgramInfo) -> Value {
    json!({
        "process": program.process,
        "user": program.user,
        "name": program.name,
        "device": program.device.to_string(),
        "priority": program.priority,
        "granted": program.granted,
        "reserved": program.report.reserved,
        "held": program.report.held,
        "live": program.report.live,
        "can_sleep": program.report.can_sleep,
        "asleep": program.report.asleep,
        "wants": program.wants,
        "waited_ms": program.waited_ms,
        "waits_for": program.waits_for,
        "answers": program.answers,
        "lingers": program.lingers,
    })
}

fn device(device: &DeviceInfo) -> Value {
    json!({
        "device": device.device.to_string(),
        "name": device.name,
        "budget": device.budget,
        "held": device.held,
        "granted": device.granted,
    })
}
