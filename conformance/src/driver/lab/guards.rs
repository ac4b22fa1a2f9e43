//! Guards that release objects at the end of a rule, however it ends.
//!
//! Destructors ignore the driver's result: a rule about releasing makes the call itself.

use super::{CallResult, Lab};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Releases an object. A skip that left a destructor would abort the process.
fn give_back(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Reserved addresses.
pub(in crate::driver) struct Reserved<'a> {
    lab: &'a Lab,
    pub(in crate::driver) base: u64,
    pub(in crate::driver) size: usize,
}

impl<'a> Reserved<'a> {
    pub(super) const fn new(lab: &'a Lab, base: u64, size: usize) -> Self {
        Self { lab, base, size }
    }

    /// Returns the address `units` units from the base.
    pub(in crate::driver) fn at(&self, units: usize) -> u64 {
        self.base + (units * self.lab.unit) as u64
    }

    pub(in crate::driver) fn end(&self) -> u64 {
        self.base + self.size as u64
    }

    pub(in crate::driver) fn overlaps(&self, other: &Self) -> bool {
        self.base < other.end() && other.base < self.end()
    }

    /// From here on, the rule itself must free the addresses.
    pub(in crate::driver) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.lab.keeps_addresses {
            give_back(|| drop(self.lab.address_free(self.base, self.size)));
        }
    }
}

/// A handle of physical memory.
pub(in crate::driver) struct Memory<'a> {
    lab: &'a Lab,
    pub(in crate::driver) handle: u64,
    pub(in crate::driver) size: usize,
}

impl<'a> Memory<'a> {
    pub(super) const fn new(lab: &'a Lab, handle: u64, size: usize) -> Self {
        Self { lab, handle, size }
    }

    /// Sets the size of an imported handle, which the caller knows.
    pub(in crate::driver) const fn sized(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    pub(in crate::driver) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        give_back(|| drop(self.lab.release(self.handle)));
    }
}

/// A mapping.
pub(in crate::driver) struct Mapping<'a> {
    lab: &'a Lab,
    pub(in crate::driver) at: u64,
    pub(in crate::driver) size: usize,
}

impl<'a> Mapping<'a> {
    /// Guards memory that a call has mapped.
    pub(in crate::driver) const fn new(lab: &'a Lab, at: u64, size: usize) -> Self {
        Self { lab, at, size }
    }

    pub(in crate::driver) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        give_back(|| drop(self.lab.unmap(self.at, self.size)));
    }
}

/// A plain allocation.
pub(in crate::driver) struct Plain<'a> {
    pub(super) lab: &'a Lab,
    pub(in crate::driver) address: u64,
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        give_back(|| drop(self.lab.free(self.address)));
    }
}

/// A stream.
pub(in crate::driver) struct Stream<'a> {
    pub(super) lab: &'a Lab,
    pub(super) raw: *mut c_void,
}

impl Stream<'_> {
    /// Returns true if the stream still has work to do.
    pub(in crate::driver) fn is_busy(&self) -> bool {
        self.lab.is_busy(self.raw)
    }

    pub(in crate::driver) fn wait(&self) -> CallResult<()> {
        self.lab.wait(self.raw)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        give_back(|| self.lab.destroy_stream(self.raw));
    }
}

/// A stream that captures.
pub(in crate::driver) struct Capture<'a> {
    pub(super) stream: Option<&'a Stream<'a>>,
}

impl Capture<'_> {
    /// Ends the capture. Returns an error if a call has invalidated it.
    pub(in crate::driver) fn end(mut self) -> CallResult<()> {
        self.stream.take().map_or(Ok(()), |stream| stream.lab.end_capture(stream.raw))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            give_back(|| drop(stream.lab.end_capture(stream.raw)));
        }
    }
}
