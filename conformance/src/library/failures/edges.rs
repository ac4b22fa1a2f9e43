//! What of a mapping is written and looked at, on which backend.

use gpu_vmm_core::Bytes;
use gpu_vmm_testkit::FaultInject;

/// A backend whose calls fail when they are told to.
pub(super) type Faulty<B> = FaultInject<B>;

/// How much at each end of a mapping, or of a vector, is written and looked at. Handles are mapped whole, so that this
/// tells one mapping from any other.
pub(super) const EDGE: Bytes = Bytes::kib(4);

/// Where the two ends of a mapping begin.
pub(super) fn edges(offset: Bytes, length: Bytes) -> [Bytes; 2] {
    [offset, offset + length - EDGE]
}
