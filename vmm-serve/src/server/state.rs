//! The server's state as another process takes it over: plain data, in which numbers stand for handles, layouts and descriptors.

use super::connection::Source;
use crate::Mode;
use crate::protocol::{ClientInfo, LeaseKind, ProgramReport, Reply};
use gpu_vmm_core::{Backend, DeviceUuid};
use gpu_vmm_share::extend::ChannelState;
use gpu_vmm_share::manifest::{MemoryKind, SharedPiece};
use serde::{Deserialize, Serialize};

/// The version of these types. Every change increments it.
pub(super) const VERSION: u32 = 4;

/// The limit of an encoded state, in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// The whole state. Its descriptors are in this order: the listener, the handles, the layouts, the connections, the processes that
/// linger.
#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub(super) next: u64,
    /// How long pools can still come back that a killed server knew, and whether some have.
    pub(super) returns_ms: u64,
    pub(super) is_again: bool,
    /// The socket's path.
    pub(super) socket: Vec<u8>,
    /// The identity of that path, if the server removes it.
    pub(super) removes: Option<(u64, u64)>,
    pub(super) handles: Vec<HandleState>,
    pub(super) layouts: Vec<LayoutState>,
    pub(super) regions: Vec<(String, RegionState)>,
    pub(super) connections: Vec<(u64, ConnectionState)>,
    pub(super) lingering: Vec<LingeringState>,
}

impl State {
    /// Returns the number of its descriptors.
    pub(super) fn descriptors(&self) -> usize {
        1 + self.handles.len() + self.layouts.len() + self.connections.len() + self.lingering.len()
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct HandleState {
    pub(super) id: u64,
    pub(super) piece: SharedPiece,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LayoutState {
    pub(super) id: u64,
    pub(super) size: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct RegionState {
    pub(super) id: u64,
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) mode: Mode,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) device: DeviceUuid,
    pub(super) kind: MemoryKind,
    pub(super) epoch: u64,
    pub(super) handles: Vec<u64>,
    pub(super) layout: Option<u64>,
    pub(super) writer: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ConnectionState {
    pub(super) channel: ChannelState,
    pub(super) version: u16,
    pub(super) role: RoleState,
    pub(super) queue: Vec<(Reply, Vec<SourceState>)>,
    pub(super) ends: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) enum SourceState {
    Handle(u64),
    Layout(u64),
}

impl SourceState {
    pub(super) fn of<B: Backend>(source: &Source<B>) -> Self {
        match source {
            Source::Handle(handle) => Self::Handle(handle.id),
            Source::Layout(layout) => Self::Layout(layout.id),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) enum RoleState {
    New,
    Idle,
    Waits { name: String, kind: LeaseKind, wait_ms: u64, left_ms: u64 },
    Leases(LeaseState),
    Lists,
    Program(ProgramState),
}

#[derive(Serialize, Deserialize)]
pub(super) struct ProgramState {
    pub(super) name: String,
    pub(super) device: DeviceUuid,
    pub(super) priority: i8,
    pub(super) granted: u64,
    pub(super) wants: Option<WantedState>,
    /// The question that it has not answered, and whether it is late.
    pub(super) asked: Option<(u64, bool)>,
    pub(super) report: ProgramReport,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WantedState {
    pub(super) number: u64,
    pub(super) user: u32,
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) waited_ms: u64,
    pub(super) left_ms: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LeaseState {
    pub(super) name: String,
    pub(super) region: u64,
    pub(super) kind: LeaseKind,
    pub(super) sent: u64,
    pub(super) sent_handles: Vec<u64>,
    pub(super) layout: Option<u64>,
    pub(super) applied: u64,
    pub(super) holds: Vec<u64>,
    pub(super) fresh: Vec<(u32, u64)>,
    pub(super) job: Option<JobState>,
    pub(super) is_dropped: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct JobState {
    pub(super) device: DeviceUuid,
    pub(super) kind: MemoryKind,
    /// What is not created yet, in bytes.
    pub(super) left: u64,
    pub(super) lacks: Option<WantedState>,
    pub(super) made: Vec<(u32, u64)>,
    pub(super) plan: PlanState,
}

#[derive(Serialize, Deserialize)]
pub(super) enum PlanState {
    New { handle: u64, least: u64 },
    Renewal(Vec<(u32, u64)>),
}

#[derive(Serialize, Deserialize)]
pub(super) enum LingeringState {
    Lease { info: ClientInfo, holds: Vec<u64> },
    Program { program: ProgramState, user: u32, number: u32 },
}
