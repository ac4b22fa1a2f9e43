//! Memory that somebody else has as well. Other memory in its place would be another than theirs from then on, without a
//! word; so whoever would put it there refuses.

use super::table::{Mapping, Table};
use crate::driver::Backend;
use crate::memory::{MemoryId, PhysicalMemory};
use crate::types::{Bytes, Detail, Error, OffsetRange, Operation, Result};
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

impl<B: Backend> Table<B> {
    /// Refuses memory among some of the mappings that is held outside of all of them.
    pub(super) fn check_not_held(
        &self,
        operation: Operation,
        concerned: impl Fn(&Mapping<B>) -> bool,
    ) -> Result<()> {
        match self.shared(operation, concerned).next() {
            None => Ok(()),
            Some((offset, Mapping { memory, .. }, holder)) => Err(Error::new(
                operation,
                Detail::StillReferenced { range: OffsetRange { offset, length: memory.size() }, holder },
            )),
        }
    }

    /// The mappings, among some, of memory that is held outside of all of those too, with who holds it.
    pub(super) fn shared(
        &self,
        operation: Operation,
        concerned: impl Fn(&Mapping<B>) -> bool,
    ) -> impl Iterator<Item = (Bytes, &Mapping<B>, &'static str)> {
        let mappings: Vec<(Bytes, &Mapping<B>)> =
            self.iter().filter(|(_, mapping)| concerned(mapping)).collect();
        let mut times: HashMap<MemoryId<B>, usize> = HashMap::new();
        for (_, mapping) in &mappings {
            *times.entry(mapping.memory.id()).or_default() += 1;
        }
        mappings.into_iter().filter_map(move |(offset, mapping)| {
            let mapped = times.get(&mapping.memory.id()).copied().unwrap_or_default();
            Some((offset, mapping, holder(operation, &mapping.memory, mapped)?))
        })
    }
}

/// Returns who else holds memory of which this library has `known` references, as the error of an operation says it.
pub(super) fn holder<B: Backend>(
    operation: Operation,
    memory: &PhysicalMemory<B>,
    known: usize,
) -> Option<&'static str> {
    let is_held = memory.holders() > known;
    // Another thread may export its clone and drop it: whoever sees that it is dropped sees that it was exported.
    fence(Ordering::Acquire);
    let suspends = operation == Operation::Suspend;
    if memory.is_imported() {
        Some(if suspends {
            "belongs to another process too, which would not see that it is exchanged for other memory; copy it into a \
             region of its own first, release it and import it again later, or let Region::suspend_into leave it in place"
        } else {
            "belongs to another process too, which would not see that it is exchanged for other memory; copy it into a \
             region of its own first, or release it and import it again later"
        })
    } else if memory.is_exported() {
        Some(if suspends {
            "has been exported, and an importer would keep it and not see other memory in its place; copy it into a region \
             of its own first and share that one anew, or let Region::suspend_into leave it in place"
        } else {
            "has been exported, and an importer would keep it and not see other memory in its place; copy it into a region \
             of its own first, and share that one anew"
        })
    } else if is_held {
        Some(if suspends {
            "is also held by a clone or by another region of this process, which would keep it; drop it there first, or let \
             Region::suspend_into leave it in place"
        } else {
            "is also held by a clone or by another region of this process, which would keep it; drop it there first"
        })
    } else {
        None
    }
}
