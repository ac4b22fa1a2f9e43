//! What an importer has of another process's memory: descriptors first, and the memory once it has been imported.

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

/// What there is of a piece.
#[derive(Debug)]
pub(crate) enum Source<B: Backend> {
    /// It is still to be imported.
    Descriptor {
        descriptor: OwnedFd,
        size: Bytes,
        properties: Properties,
    },
    Memory(PhysicalMemory<B>),
}

/// What the exporter has said, with what there is of each piece.
pub(crate) type Sources<B> = ImporterState<Source<B>>;

/// Receives what `begin` began, and writes it down if all of it is right.
pub(crate) fn take_in<B: Backend>(
    operation: Operation,
    backend: &B,
    channel: &mut Channel,
    begin: &Begin,
    revision: u64,
    book: &mut Sources<B>,
) -> Result<()> {
    begin.origin.check(operation, backend)?;
    if begin.revision != revision {
        let why = format!("revision {} came where {revision} is next", begin.revision);
        return Err(Error::of_extension(operation, PeerError::BadMessage { why }));
    }
    let (claim, descriptors) = receive(channel, operation, begin)?;
    book.check(operation, &claim)?;
    let checked = SharedPiece::check_all(operation, backend, &claim.pieces)?;
    let sources = checked
        .into_iter()
        .zip(descriptors)
        .map(|((size, properties), descriptor)| Source::Descriptor { descriptor, size, properties });
    book.take(&claim, sources);
    Ok(())
}

/// The memory of all pieces that have not been imported yet, by their numbers, which ascend.
pub(crate) fn import_new<B: Backend>(
    backend: &B,
    book: &Sources<B>,
) -> Result<Vec<(u32, PhysicalMemory<B>)>> {
    let new = book.pieces().filter_map(|(id, source)| match source {
        Source::Memory(_) => None,
        Source::Descriptor { descriptor, size, properties } => {
            Some(import(backend, descriptor.as_fd(), *size, *properties).map(|memory| (id, memory)))
        }
    });
    new.collect()
}

/// The mappings that the book has, in order.
pub(crate) fn wanted<B: Backend>(
    import: &ImportOptions,
    book: &Sources<B>,
    new: &[(u32, PhysicalMemory<B>)],
) -> Vec<MappedMemory<B>> {
    let memory = |id, source: &Source<B>| match source {
        Source::Memory(memory) => Some(memory.clone()),
        Source::Descriptor { .. } => {
            let place = new.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            Some(new[place].1.clone())
        }
    };
    let mappings = book.mappings();
    mappings.filter_map(|(offset, id, source)| Some(import.wanted(offset, memory(id, source)?))).collect()
}

/// Notes what has been imported; the descriptors are closed.
pub(crate) fn keep<B: Backend>(book: &mut Sources<B>, new: Vec<(u32, PhysicalMemory<B>)>) {
    for (id, memory) in new {
        book.replace(id, Source::Memory(memory));
    }
}
