//! Creating memory in smaller handles if the driver refuses a large one.

use super::PhysicalMemory;
use crate::driver::Backend;
use crate::types::{Bytes, Detail, Granularity, Properties, Result};

/// Creates `size` bytes of memory, a multiple of `unit`, as one handle. If the driver has too little memory for such a handle although
/// it reports enough free memory, creates the same size in smaller handles: free memory may be in several pieces, and some drivers limit
/// the size of a handle. If that fails too, returns the error of the first handle.
pub(crate) fn create_split<B: Backend>(
    backend: &B,
    size: Bytes,
    properties: Properties,
    unit: Granularity,
) -> Result<Vec<PhysicalMemory<B>>> {
    let unit = unit.bytes();
    let (mut memory, mut left, mut most) = (Vec::new(), size, size);
    let mut first = None;
    while !left.is_zero() {
        let length = most.min(left);
        match PhysicalMemory::create(backend, length, properties) {
            Ok(piece) => {
                left -= piece.size();
                memory.push(piece);
            }
            Err(error) => match error.detail() {
                Detail::OutOfMemory { free, .. } if length > unit && *free >= left => {
                    most = Bytes((length.0 / 2 / unit.0).max(1) * unit.0);
                    first.get_or_insert(error);
                }
                _ => return Err(first.unwrap_or(error)),
            },
        }
    }
    Ok(memory)
}
