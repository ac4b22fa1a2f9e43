//! The release of a region that was dropped while its devices could not be waited for.

use super::Region;
use super::layout::Layout;
use super::observer::Announced;
use crate::driver::{Backend, Release};
use crate::types::{Bytes, ErrorKind, Result};
use std::collections::BTreeSet;

/// The layout of a dropped region. Everything is still mapped, and the observers must learn when that has changed.
#[derive(Debug)]
struct Late<B: Backend> {
    layout: Layout<B>,
    ending: Option<Announced<B>>,
}

impl<B: Backend> Release for Late<B> {
    fn size(&self) -> Bytes {
        self.layout.table.mapped()
    }

    fn release(&mut self) -> Result<()> {
        let released = self.layout.give_up();
        if let Some(ending) = self.ending.take() {
            ending.released(&self.layout);
        }
        released
    }
}

impl<B: Backend> Region<B> {
    /// Drops the region without waiting. [`Backend::deferred`] keeps its memory and addresses and releases them once the devices
    /// that have access to them have finished.
    ///
    /// Dropping does the same if a device cannot be waited for because a stream is being captured. A caller that knows of a
    /// capture should call this instead, because the attempt to wait invalidates the capture.
    pub fn release_later(mut self) {
        self.defer();
    }

    /// Hands the layout over and leaves the region empty.
    pub(super) fn defer(&mut self) {
        self.announce_end();
        let mut layout = self.layout.take();
        if layout.table.is_empty() {
            return;
        }
        let devices: BTreeSet<_> = layout.table.devices(Bytes::ZERO, layout.spans.size()).collect();
        if !devices.is_empty() {
            let ending = Some(self.observers.take_ending());
            self.backend.deferred().keep(devices, Box::new(Late { layout, ending }));
            return;
        }
        // No device has access, so there is nothing to wait for.
        match layout.give_up() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) => self.backend.drop_log().record(error),
        }
        self.observers.ended(&layout);
    }
}
