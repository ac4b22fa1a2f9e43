//! A pool's history as a trace that Perfetto and Chrome draw: one track for each figure.

use super::recorded_name;
use crate::replay::history::History;
use gpu_vmm::pool::{Moment, PoolSnapshot};
use gpu_vmm_replay::Moment as Replayed;
use serde_json::{Value, json};

type Track = (&'static str, fn(&Moment) -> u64);

type ReplayTrack = fn(&Replayed) -> Option<u64>;

const TRACKS: &[Track] =
    &[("held", |moment| moment.held), ("live", |moment| moment.live), ("pending", |moment| moment.pending)];

/// Returns the trace, in the JSON format of trace events. A replay is a process of its own: its time is the recorded program's.
pub(super) fn trace(snapshot: &PoolSnapshot, replay: Option<&History>) -> Value {
    let name = json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": snapshot.device}});
    let counters = snapshot.timeline.iter().flat_map(|moment| {
        TRACKS.iter().map(|(name, value)| {
            json!({"ph": "C", "pid": 1, "name": name, "ts": moment.at * 1e6, "args": {"bytes": value(moment)}})
        })
    });
    let events: Vec<Value> =
        [name].into_iter().chain(counters).chain(replay.into_iter().flat_map(replayed)).collect();
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

/// Returns the events of a replay. Without times, an allocation or free takes a microsecond.
fn replayed(history: &History) -> Vec<Value> {
    let tracks: [(String, ReplayTrack); 3] = [
        ("held by the pool".to_owned(), |moment| Some(moment.held)),
        (format!("held by {}", recorded_name(history)), |moment| moment.recorded),
        ("requested".to_owned(), |moment| Some(moment.requested)),
    ];
    let unit = if history.seconds { 1e6 } else { 1.0 };
    let name = json!({"ph": "M", "pid": 2, "name": "process_name", "args": {"name": format!("replay of {}", history.trace)}});
    let counters = history.moments.iter().flat_map(|moment| {
        tracks.iter().filter_map(move |(name, value)| {
            let bytes = value(moment)?;
            Some(json!({"ph": "C", "pid": 2, "name": name, "ts": moment.at * unit, "args": {"bytes": bytes}}))
        })
    });
    [name].into_iter().chain(counters).collect()
}
