//! The page-locked memory of queued copies, which must stay until they are done.
//!
//! Uses unsafe code: recording an event relies on its backend.
#![allow(unsafe_code)]

use gpu_vmm::{AnyBackend, CopyStream, DeviceId, Event, Pinned, SyncCalls as _};
use std::collections::VecDeque;
use std::sync::Arc;

/// Memory in the order of its last copies.
#[derive(Debug, Default)]
pub(super) struct InUse {
    list: VecDeque<Use>,
    spare: Vec<Box<dyn Event>>,
}

#[derive(Debug)]
struct Use {
    memory: Arc<dyn Pinned>,
    /// Done when the last copy is. None if it could not be recorded: the memory then stays until the queue is finished.
    done: Option<Box<dyn Event>>,
}

impl InUse {
    /// Keeps memory for copies that the caller queues next.
    pub(super) fn keep(&mut self, memory: &Arc<dyn Pinned>) {
        if let Some(place) = self.list.iter().position(|one| Arc::ptr_eq(&one.memory, memory))
            && let Some(Use { done: Some(event), .. }) = self.list.remove(place)
        {
            self.spare.push(event);
        }
        self.list.push_back(Use { memory: Arc::clone(memory), done: None });
    }

    /// Records that the copies of the memory that was kept last are queued.
    pub(super) fn queued(&mut self, backend: &AnyBackend, device: DeviceId, stream: &mut dyn CopyStream) {
        let Some(last) = self.list.back_mut() else { return };
        let made = self.spare.pop().map_or_else(|| backend.event(device), Ok);
        let Ok(mut event) = made else { return };
        // SAFETY: the event and the stream are of this backend.
        if unsafe { stream.record(&mut *event) }.is_ok() {
            last.done = Some(event);
        }
    }

    /// Gives up the memory whose copies are done.
    pub(super) fn collect(&mut self, backend: &AnyBackend) {
        // Some versions of HIP invalidate captures when an event is queried. These wait for the end of the queue.
        if backend.queries_spoil_captures() {
            return;
        }
        // The copies of a queue are done in order.
        while let Some(Use { done: Some(event), .. }) = self.list.front()
            && event.is_done().unwrap_or(false)
        {
            self.spare.extend(self.list.pop_front().and_then(|one| one.done));
        }
    }

    /// Gives up all memory, after the queue was finished.
    pub(super) fn clear(&mut self) {
        self.spare.extend(self.list.drain(..).filter_map(|one| one.done));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}
