//! The numbers of live objects, for leak checks.
#![allow(unsafe_code)] // C's interface

use crate::state::state;
use crate::work::work;

/// The number of objects of each kind in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ranges of addresses.
    pub reservations: u64,
    /// Handles that the program holds or that are mapped.
    pub handles: u64,
    /// Memory objects behind handles and descriptors.
    pub memories: u64,
    /// Mappings.
    pub mappings: u64,
    /// Allocations of `cuMemAlloc`.
    pub plain: u64,
    /// Contexts.
    pub contexts: u64,
    /// Streams that the program created.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Modules.
    pub modules: u64,
    /// Graphs, including executable ones.
    pub graphs: u64,
    /// Bindings of memory to multicast objects.
    pub bindings: u64,
    /// Page-locked allocations of the host.
    pub pinned: u64,
}

/// Writes the counts.
///
/// # Safety
///
/// The pointer must be valid for writing one [`Counts`].
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_counts(to: *mut Counts) {
    let (mut state, work) = (state(), work());
    state.forget_unused();
    let counts = Counts {
        reservations: state.space.reservations.len() as u64,
        handles: state.handles.len() as u64,
        memories: state.memories.len() as u64,
        mappings: state.mappings.len() as u64,
        plain: state.plain.len() as u64,
        contexts: work.contexts.len() as u64,
        streams: work.streams_of_the_program(),
        events: work.events.len() as u64,
        modules: work.modules.len() as u64,
        graphs: (work.graphs.len() + work.execs.len()) as u64,
        bindings: state.teams.values().map(|team| team.bound.len() as u64).sum(),
        pinned: state.pinned.len() as u64,
    };
    // SAFETY: the caller's guarantee.
    unsafe { to.write(counts) };
}
