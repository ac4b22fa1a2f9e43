//! The streams of a program, and the work on them.

use crate::LateWork;
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Stream};

/// The streams of a program. Positions count the units of work that were queued on a stream.
pub trait Work: Sync {
    /// Returns a stream that is live as long as the program runs.
    fn stream(&self, index: usize) -> Stream<'static>;

    /// Queues a unit of work that may use the memory.
    fn queue(&self, stream: usize, address: Address, size: Bytes);

    /// Returns the number of units that were ever queued. While the stream captures, one more counts: work that ends after the
    /// capture.
    fn queued(&self, stream: usize) -> u64;

    /// Returns a number of units that have ended.
    fn done(&self, stream: usize) -> u64;

    /// Returns true if no other units have ended than [`done`](Work::done) says, so that a block in memory of unfinished work is a fault.
    fn is_exact(&self) -> bool {
        false
    }

    /// Ends up to `count` units, or waits for them.
    fn finish(&self, stream: usize, count: u64);

    /// Begins a capture. Returns false if the streams cannot capture.
    fn begin_capture(&self, _stream: usize) -> bool {
        false
    }

    /// Ends a capture that has begun, and queues a unit of work behind it.
    fn end_capture(&self, _stream: usize) {}

    /// Returns the number of events that exist, if that is known.
    fn events(&self) -> u64 {
        0
    }

    /// Returns the size of the device's memory. What a program frees on a stream while that captures stays, up to all of it.
    fn memory(&self) -> u64;
}

impl<B: Backend> Work for LateWork<B> {
    fn stream(&self, index: usize) -> Stream<'static> {
        self.stream(index)
    }

    fn queue(&self, stream: usize, _: Address, _: Bytes) {
        self.queue(stream);
    }

    fn queued(&self, stream: usize) -> u64 {
        self.queued(stream) + u64::from(self.is_capturing_on(stream))
    }

    fn done(&self, stream: usize) -> u64 {
        self.done(stream)
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn finish(&self, stream: usize, count: u64) {
        self.finish(stream, count);
    }

    fn begin_capture(&self, stream: usize) -> bool {
        self.set_capturing(stream, true);
        true
    }

    fn end_capture(&self, stream: usize) {
        self.set_capturing(stream, false);
        self.queue(stream);
    }

    fn events(&self) -> u64 {
        self.events()
    }

    fn memory(&self) -> u64 {
        memory_of(self, DeviceId(0))
    }
}

/// Returns the memory of a device, or no limit if the driver does not say it.
pub fn memory_of<B: Backend>(backend: &B, device: DeviceId) -> u64 {
    backend.memory_info(device).map_or(u64::MAX, |memory| memory.total.0)
}
