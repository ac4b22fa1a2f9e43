//! Work in flight: a stream of its own, and what is queued on it.
#![allow(unsafe_code)] // calls into HIP

use crate::ffi::hipError_t;
use crate::stream::{OwnStream, needed};
use gpu_vmm_core::workbench::Flight;
use gpu_vmm_core::{Result, Stream};

impl Flight for OwnStream {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: the stream lives as long as it is borrowed.
        unsafe { Stream::from_raw(self.raw().cast()) }
    }

    fn is_done(&self) -> Result<bool> {
        const OPERATION: &str = "ask a stream";
        let query = needed(OPERATION, "hipStreamQuery", self.driver.hip.hipStreamQuery)?;
        let _current = self.enter(OPERATION)?;
        // SAFETY: the stream is alive.
        let code = unsafe { query(self.raw()) };
        match self.driver.check(OPERATION, "hipStreamQuery", code, || format!("stream {:p}", self.raw())) {
            Err(_) if code == hipError_t::hipErrorNotReady => Ok(false),
            answer => answer.map(|()| true),
        }
    }
}
