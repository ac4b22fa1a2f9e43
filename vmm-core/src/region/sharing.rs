//! Memory that somebody else has as well. Other memory in its place would be another than theirs from then on, without a
//! word; so whoever would put it there refuses.

use super::table::{Mapping, Table};
use crate::driver::Backend;
use crate::memory::MemoryId;
use crate::types::{Bytes, Detail, Error, OffsetRange, Operation, Result};
use std::collections::HashMap;

impl<B: Backend> Table<B> {
    /// Refuses memory among some of the mappings that is held outside of all of them.
    pub(super) fn check_not_held(
        &self,
        operation: Operation,
        concerned: impl Fn(&Mapping<B>) -> bool,
    ) -> Result<()> {
        let mappings: Vec<(Bytes, &Mapping<B>)> =
            self.iter().filter(|(_, mapping)| concerned(mapping)).collect();
        let mut times: HashMap<MemoryId<B>, usize> = HashMap::new();
        for (_, mapping) in &mappings {
            *times.entry(mapping.memory.id()).or_default() += 1;
        }
        for (offset, Mapping { memory, .. }) in mappings {
            let mapped = times.get(&memory.id()).copied().unwrap_or_default();
            let holder = if memory.is_imported() {
                "is another process's too, which would not see that it is exchanged for other memory; copy it into a \
                 region of its own first, or let it go and import it again later"
            } else if memory.is_exported() {
                "has been exported, and whoever has it would keep it and not see other memory in its place; copy it \
                 into a region of its own first, and share that one anew"
            } else if memory.holders() > mapped {
                "is held by somebody else in this process too, by a clone or in another region, who would keep it; \
                 let it go there first"
            } else {
                continue;
            };
            return Err(Error::new(
                operation,
                Detail::StillReferenced { range: OffsetRange { offset, length: memory.size() }, holder },
            ));
        }
        Ok(())
    }
}
