//! The streams that the numbers of a trace become.
#![allow(unsafe_code)] // a stream is a pointer

use gpu_vmm_core::{DeviceId, Result, Stream};
use gpu_vmm_testkit::{TestKit, WorkStream};

/// Streams of a device. They have to be there for as long as the pool that they are given to, with all its blocks.
#[derive(Debug)]
pub struct Streams {
    all: Vec<Stream<'static>>,
    _own: Vec<Box<dyn WorkStream>>,
}

impl Streams {
    /// The default stream, and so many of its own beside it that there are `count`.
    ///
    /// # Errors
    ///
    /// Those of [`TestKit::own_stream`].
    pub fn of<B: TestKit>(backend: &B, device: DeviceId, count: usize) -> Result<Self> {
        let own = (1..count).map(|_| backend.own_stream(device)).collect::<Result<Vec<_>>>()?;
        // SAFETY: the streams are kept beside their names, and who uses these keeps both, as is said above.
        let named = own.iter().map(|own| unsafe { Stream::from_raw(own.stream().as_raw()) });
        Ok(Self { all: std::iter::once(Stream::DEFAULT).chain(named).collect(), _own: own })
    }

    /// The stream of a number below the count; the default one for any other.
    #[must_use]
    pub fn get(&self, number: u16) -> Stream<'static> {
        self.all.get(usize::from(number)).copied().unwrap_or(Stream::DEFAULT)
    }
}
