//! Work in flight: a stream of its own, and what is queued on it.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::CuResult;
use crate::stream::OwnStream;
use gpu_vmm_core::workbench::Flight;
use gpu_vmm_core::{Result, Stream};

impl Flight for OwnStream {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: the stream lives as long as it is borrowed.
        unsafe { Stream::from_raw(self.raw().0) }
    }

    fn is_done(&self) -> Result<bool> {
        const OPERATION: &str = "ask a stream";
        let _entered = self.enter(OPERATION)?;
        // SAFETY: the stream is live, and its context is current.
        match unsafe { (self.backend.functions().stream_query)(self.raw()) } {
            CuResult::NOT_READY => Ok(false),
            result => {
                let context = || format!("stream {:?}", self.raw());
                self.backend.check(OPERATION, "cuStreamQuery", result, context).map(|()| true)
            }
        }
    }
}
