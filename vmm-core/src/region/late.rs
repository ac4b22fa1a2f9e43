//! A region that was dropped while its devices could not be waited for.

use super::Region;
use super::layout::Layout;
use crate::driver::{Backend, Release};
use crate::types::{Bytes, ErrorKind, Result};
use std::collections::BTreeSet;

/// What the region had: everything is still mapped.
#[derive(Debug)]
struct Late<B: Backend>(Layout<B>);

impl<B: Backend> Release for Late<B> {
    fn size(&self) -> Bytes {
        self.0.table.mapped()
    }

    fn release(&mut self) -> Result<()> {
        self.0.give_up()
    }
}

impl<B: Backend> Region<B> {
    /// Ends the region without waiting: its memory and addresses are kept by [`Backend::deferred`] and given back once the
    /// devices that have access to them have been waited for.
    ///
    /// Dropping does the same if a device cannot be waited for because a stream is being captured. A caller that knows of
    /// a capture calls this, since already the attempt to wait spoils the capture.
    pub fn release_later(mut self) {
        self.defer();
    }

    /// Leaves the region without anything.
    pub(super) fn defer(&mut self) {
        let mut layout = self.layout.take();
        if layout.table.is_empty() {
            return;
        }
        let devices: BTreeSet<_> = layout.table.devices(Bytes::ZERO, layout.spans.size()).collect();
        if !devices.is_empty() {
            self.backend.deferred().keep(devices, Box::new(Late(layout)));
            return;
        }
        // No device has access, so that there is nothing to wait for.
        match layout.give_up() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) => self.backend.drop_log().record(error),
        }
    }
}
