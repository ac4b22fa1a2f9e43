//! A pool's history as a trace that Perfetto and Chrome draw: one track for each figure.

use gpu_vmm::pool::{Moment, PoolSnapshot};
use serde_json::{Value, json};

type Track = (&'static str, fn(&Moment) -> u64);

const TRACKS: &[Track] =
    &[("held", |moment| moment.held), ("live", |moment| moment.live), ("pending", |moment| moment.pending)];

/// Returns the trace, in the JSON format of trace events.
pub(super) fn trace(snapshot: &PoolSnapshot) -> Value {
    let name = json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": snapshot.device}});
    let counters = snapshot.timeline.iter().flat_map(|moment| {
        TRACKS.iter().map(|(name, value)| {
            json!({"ph": "C", "pid": 1, "name": name, "ts": moment.at * 1e6, "args": {"bytes": value(moment)}})
        })
    });
    let events: Vec<Value> = [name].into_iter().chain(counters).collect();
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}
