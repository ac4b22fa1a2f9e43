//! Memory that a client has requested and that does not exist yet.

use super::books::{Handle, Indexed, Promise};
use super::descriptors;
use super::program::Wanted;
use crate::ServeError;
use crate::sizes::{self, MAX_HANDLES};
use gpu_vmm_core::extend::create_now;
use gpu_vmm_core::{Backend, Bytes, ErrorKind, Granularity, Operation, Properties, Result};
use gpu_vmm_share::manifest::SharedPiece;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Memory that a client has requested, of which one handle after the other is created.
#[derive(Debug)]
pub(super) struct Job<B: Backend> {
    pub(super) properties: Properties,
    pub(super) promise: Promise,
    /// What the budget has no room for yet. Nothing is created meanwhile.
    pub(super) lacks: Option<Wanted>,
    pub(super) made: Indexed<B>,
    pub(super) plan: Plan,
}

/// The handles that are missing.
#[derive(Debug)]
pub(super) enum Plan {
    /// The rest of a new region, in handles of this size.
    New { handle: Bytes, least: Granularity },
    /// Replacements of the handles with these indexes, of their sizes.
    Renewal(VecDeque<(u32, Bytes)>),
}

impl<B: Backend> Job<B> {
    /// Promises the memory. The job begins.
    pub(super) fn begin(&mut self, bytes: u64) {
        self.promise.raise(bytes);
        self.lacks = None;
    }

    /// Returns true if all handles are there.
    pub(super) fn is_done(&self) -> bool {
        match &self.plan {
            Plan::New { .. } => self.promise.left() == 0,
            Plan::Renewal(rest) => rest.is_empty(),
        }
    }

    /// Creates the next handle, with this number.
    pub(super) fn create_one(&mut self, backend: &B, number: u64) -> Result<()> {
        let (index, size) = match &mut self.plan {
            Plan::New { handle, .. } => {
                (self.made.len() as u32, sizes::next(Bytes(self.promise.left()), *handle))
            }
            Plan::Renewal(rest) => match rest.front() {
                Some(next) => *next,
                None => return Ok(()),
            },
        };
        let memory = match (create_now(backend, size, self.properties), &mut self.plan) {
            // A driver may refuse a large handle although smaller ones have room.
            (Err(error), Plan::New { handle, least })
                if error.kind() == ErrorKind::OutOfMemory && size > least.bytes() =>
            {
                *handle = Bytes((size.0 / 2).next_multiple_of(least.bytes().0));
                let count = self.made.len() as u64 + self.promise.left().div_ceil(handle.0);
                return if count <= MAX_HANDLES as u64 { Ok(()) } else { Err(error) };
            }
            (created, _) => created?,
        };
        let piece = SharedPiece::of(Operation::CreateMemory, backend, 0, &memory)?;
        let descriptor = memory.export()?;
        let counted = self.promise.take(size);
        self.made.push((index, Arc::new(Handle { id: number, piece, descriptor, memory, counted })));
        if let Plan::Renewal(rest) = &mut self.plan {
            rest.pop_front();
        }
        Ok(())
    }

    /// Fails if the last handle has taken a descriptor that is left for clients.
    pub(super) fn check_descriptors(&self, clients: usize) -> std::result::Result<(), ServeError> {
        self.made.last().map_or(Ok(()), |(_, handle)| descriptors::check(handle.descriptor.as_fd(), clients))
    }

    /// Returns the size of all memory that the job promises or has created.
    pub(super) fn bytes(&self) -> u64 {
        self.promise.left() + self.made.iter().map(|(_, handle)| handle.size().0).sum::<u64>()
    }
}
