//! The state of a server as JSON.

use gpu_vmm::serve::{ClientInfo, RegionInfo, Status};
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
