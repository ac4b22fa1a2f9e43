//! Memory that other regions, clones or processes hold as well. If a region replaced such memory, the other holders would keep
//! the old memory without notice. So operations that replace memory refuse it.

use super::table::{Mapping, Table};
use crate::driver::Backend;
use crate::memory::{MemoryId, PhysicalMemory};
use crate::types::{Bytes, Detail, Error, OffsetRange, Operation, Result};
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

impl<B: Backend> Table<B> {
    /// Refuses memory of the concerned mappings that is also held outside of them.
    pub(super) fn check_not_held(
        &self,
        operation: Operation,
        concerned: impl Fn(&Mapping<B>) -> bool,
    ) -> Result<()> {
        match self.shared(operation, concerned).next() {
            None => Ok(()),
            Some((offset, mapping, holder)) => Err(still_referenced(operation, offset, mapping, holder)),
        }
    }

    /// The concerned mappings of memory that is also held outside of them, each with its holder.
    pub(super) fn shared(
        &self,
        operation: Operation,
        concerned: impl Fn(&Mapping<B>) -> bool,
    ) -> impl Iterator<Item = (Bytes, &Mapping<B>, &'static str)> {
        let mappings: Vec<(Bytes, &Mapping<B>)> =
            self.iter().filter(|(_, mapping)| concerned(mapping)).collect();
        let mut times: HashMap<MemoryId, usize> = HashMap::new();
        for (_, mapping) in &mappings {
            *times.entry(mapping.memory.id()).or_default() += 1;
        }
        mappings.into_iter().filter_map(move |(offset, mapping)| {
            let mapped = times.get(&mapping.memory.id()).copied().unwrap_or_default();
            Some((offset, mapping, holder(operation, &mapping.memory, mapped)?))
        })
    }
}

/// The error for memory that has another holder.
pub(super) fn still_referenced<B: Backend>(
    operation: Operation,
    offset: Bytes,
    mapping: &Mapping<B>,
    holder: &'static str,
) -> Error {
    let range = OffsetRange { offset, length: mapping.length() };
    Error::new(operation, Detail::StillReferenced { range, holder })
}

/// Describes the other holder, for the error of an operation, if memory has more than the `known` references of this library.
pub(super) fn holder<B: Backend>(
    operation: Operation,
    memory: &PhysicalMemory<B>,
    known: usize,
) -> Option<&'static str> {
    macro_rules! way_out {
        ($text:literal) => {
            Some(if operation == Operation::Suspend {
                concat!(
                    $text,
                    "; to suspend the region nevertheless, use the suspend call for shared memory (C and Python: \
                     \"shared\", Rust: \"into\"), which leaves this memory in place"
                )
            } else {
                $text
            })
        };
    }
    let is_held = memory.holders() > known;
    // Another thread may export its clone and then drop it. A thread that sees the drop must see the export too.
    fence(Ordering::Acquire);
    if memory.is_imported() {
        way_out!(
            "belongs to another process too, which would keep the old memory; copy it into another region first, or \
             release it and import it again later"
        )
    } else if memory.is_adopted() {
        way_out!(
            "belongs to other code of this process too, which would keep the old memory; copy it into another region first, \
             or drop it and adopt it again later"
        )
    } else if memory.is_exported() {
        way_out!(
            "has been exported, and an importer would keep the old memory; copy it into another region first, and export \
             that one"
        )
    } else if is_held {
        way_out!(
            "is also held by a clone or by another region of this process, which would keep it; drop it there first"
        )
    } else {
        None
    }
}
