//! The streams for the stream numbers of a trace.
#![allow(unsafe_code)] // a stream is a pointer

use gpu_vmm_core::{DeviceId, Result, Stream};
use gpu_vmm_testkit::{TestKit, WorkStream};

/// Streams of a device. They must outlive the pool that uses them, with all its blocks.
#[derive(Debug)]
pub struct Streams {
    all: Vec<Stream<'static>>,
    _own: Vec<Box<dyn WorkStream>>,
}

impl Streams {
    /// Creates `count` streams: the default stream and `count - 1` others.
    ///
    /// # Errors
    ///
    /// Those of [`TestKit::own_stream`].
    pub fn of<B: TestKit>(backend: &B, device: DeviceId, count: usize) -> Result<Self> {
        let own = (1..count).map(|_| backend.own_stream(device)).collect::<Result<Vec<_>>>()?;
        // SAFETY: `own` keeps the streams alive, and callers keep `Streams` as long as they use them, as required above.
        let named = own.iter().map(|own| unsafe { Stream::from_raw(own.stream().as_raw()) });
        Ok(Self { all: std::iter::once(Stream::DEFAULT).chain(named).collect(), _own: own })
    }

    /// Returns the stream with a number below the count, or the default stream for any other number.
    #[must_use]
    pub fn get(&self, number: u16) -> Stream<'static> {
        self.all.get(usize::from(number)).copied().unwrap_or(Stream::DEFAULT)
    }
}
