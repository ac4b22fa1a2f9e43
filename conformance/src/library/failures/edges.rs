//! The parts of a mapping that are written and checked, and the backend that fails on demand.

use gpu_vmm_core::Bytes;
use gpu_vmm_testkit::FaultInject;

/// A backend whose calls fail on demand.
pub(super) type Faulty<B> = FaultInject<B>;

/// The size at each end of a mapping or a vector that is written and checked. Handles are mapped whole, so this is enough to
/// distinguish one mapping from another.
pub(super) const EDGE: Bytes = Bytes::kib(4);

/// Returns the offsets of the two ends of a mapping.
pub(super) fn edges(offset: Bytes, length: Bytes) -> [Bytes; 2] {
    [offset, offset + length - EDGE]
}
