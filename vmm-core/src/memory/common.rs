//! Memory that suspended regions have in common with others.
//!
//! It stays where it is while any other holder uses it. Once suspended regions alone hold it, it is saved and released, once for all
//! of them. The first of them that resumes restores it, and the others map the same memory again.

use crate::driver::Backend;
use crate::memory::SavedContents;
use crate::types::{Bytes, Lock, Operation, Properties, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Memory that keeps the suspended regions which have it in common with others.
pub(crate) trait Shared<B: Backend>: Clone {
    fn size(&self) -> Bytes;
    fn properties(&self) -> Properties;
    fn common(&self) -> &Lock<Weak<Common<B, Self>>>;
}

/// One piece of memory that at least one suspended region has in common with others.
#[derive(Debug)]
pub(crate) struct Common<B: Backend, M> {
    size: Bytes,
    properties: Properties,
    /// True while the contents are saved, to be read without waiting for a copy.
    is_saved: AtomicBool,
    /// Held while the contents are copied: another region that needs the memory waits for them.
    state: Lock<State<B, M>>,
}

#[derive(Debug)]
enum State<B: Backend, M> {
    Present(M),
    Saved(SavedContents<B>),
}

impl<B: Backend, M: Shared<B>> Common<B, M> {
    /// Returns the value for this memory, the same one for all regions.
    pub(crate) fn of(operation: Operation, memory: &M) -> Result<Arc<Self>> {
        let mut known = memory.common().lock(operation)?;
        if let Some(common) = known.upgrade() {
            return Ok(common);
        }
        let state = Lock::new(State::Present(memory.clone()));
        let common = Arc::new(Self {
            size: memory.size(),
            properties: memory.properties(),
            is_saved: AtomicBool::new(false),
            state,
        });
        *known = Arc::downgrade(&common);
        Ok(common)
    }

    pub(crate) const fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) const fn properties(&self) -> Properties {
        self.properties
    }

    /// Returns true if the contents were saved and the memory was released. Another thread can change that at any time.
    pub(crate) fn is_saved(&self) -> bool {
        self.is_saved.load(Ordering::Relaxed)
    }

    /// Saves the contents by `save` if suspended regions alone hold the memory, and returns the memory, which they need no more.
    pub(crate) fn save_if_unused(
        &self,
        operation: Operation,
        is_used: impl FnOnce(&M) -> bool,
        save: impl FnOnce(&M) -> Result<SavedContents<B>>,
    ) -> Result<Option<M>> {
        let mut state = self.state.lock(operation)?;
        let saved = match &*state {
            State::Present(memory) if !is_used(memory) => {
                let saved = save(memory)?;
                // The next regions that use the memory have other contents in it.
                *memory.common().lock(operation)? = Weak::new();
                saved
            }
            _ => return Ok(None),
        };
        self.is_saved.store(true, Ordering::Relaxed);
        match std::mem::replace(&mut *state, State::Saved(saved)) {
            State::Present(memory) => Ok(Some(memory)),
            State::Saved(_) => Ok(None),
        }
    }

    /// Returns the memory. If it was saved, `restore` returns other memory with the contents.
    pub(crate) fn memory(
        self: &Arc<Self>,
        operation: Operation,
        restore: impl FnOnce(&Self, &SavedContents<B>) -> Result<M>,
    ) -> Result<M> {
        let mut state = self.state.lock(operation)?;
        let memory = match &*state {
            State::Present(memory) => return Ok(memory.clone()),
            State::Saved(saved) => restore(self, saved)?,
        };
        *memory.common().lock(operation)? = Arc::downgrade(self);
        *state = State::Present(memory.clone());
        self.is_saved.store(false, Ordering::Relaxed);
        Ok(memory)
    }
}
