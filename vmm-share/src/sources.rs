//! The pieces of another process's memory that an importer holds: first as descriptors, then as imported memory.

use crate::PeerError;
use crate::importer_state::ImporterState;
use crate::manifest::SharedPiece;
use crate::memory::import;
use crate::message::Begin;
use crate::wire::receive;
use crate::{Channel, ImportOptions};
use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{Backend, Bytes, Error, Operation, PhysicalMemory, Properties, Result};
use std::os::fd::{AsFd, OwnedFd};

/// A piece of memory in the importer.
#[derive(Debug)]
pub(crate) enum Source<B: Backend> {
    /// Not imported yet.
    Descriptor {
        descriptor: OwnedFd,
        size: Bytes,
        properties: Properties,
    },
    Memory(PhysicalMemory<B>),
}

/// The exporter's region as received, with the source of each piece.
pub(crate) type Sources<B> = ImporterState<Source<B>>;

/// Receives the rest of the description that `begin` started, checks and records it.
pub(crate) fn receive_claim<B: Backend>(
    operation: Operation,
    backend: &B,
    channel: &mut Channel,
    begin: &Begin,
    revision: u64,
    sources: &mut Sources<B>,
) -> Result<()> {
    begin.origin.check(operation, backend)?;
    if begin.revision != revision {
        let why = format!("revision {} arrived, and {revision} was expected", begin.revision);
        return Err(Error::of_extension(operation, PeerError::BadMessage { why }));
    }
    let (claim, descriptors) = receive(channel, operation, begin)?;
    sources.check(operation, &claim)?;
    let checked = SharedPiece::check_all(operation, backend, &claim.pieces)?;
    let new = checked
        .into_iter()
        .zip(descriptors)
        .map(|((size, properties), descriptor)| Source::Descriptor { descriptor, size, properties });
    sources.record(&claim, new);
    Ok(())
}

/// Imports all pieces that were not imported yet. Returns them ordered by their numbers.
pub(crate) fn import_new<B: Backend>(
    backend: &B,
    sources: &Sources<B>,
) -> Result<Vec<(u32, PhysicalMemory<B>)>> {
    let new = sources.pieces().filter_map(|(id, source)| match source {
        Source::Memory(_) => None,
        Source::Descriptor { descriptor, size, properties } => {
            Some(import(backend, descriptor.as_fd(), *size, *properties).map(|memory| (id, memory)))
        }
    });
    new.collect()
}

/// Returns the mappings that the region must have, ordered by offset.
pub(crate) fn wanted<B: Backend>(
    import: &ImportOptions,
    sources: &Sources<B>,
    new: &[(u32, PhysicalMemory<B>)],
) -> Vec<MappedMemory<B>> {
    let memory = |id, source: &Source<B>| match source {
        Source::Memory(memory) => Some(memory.clone()),
        Source::Descriptor { .. } => {
            let place = new.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            Some(new[place].1.clone())
        }
    };
    let mappings = sources.mappings();
    mappings.filter_map(|(offset, id, source)| Some(import.wanted(offset, memory(id, source)?))).collect()
}

/// Records the memory that was imported, which closes its descriptors.
pub(crate) fn keep<B: Backend>(sources: &mut Sources<B>, new: Vec<(u32, PhysicalMemory<B>)>) {
    for (id, memory) in new {
        sources.replace(id, Source::Memory(memory));
    }
}
