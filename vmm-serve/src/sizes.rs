//! The sizes of the handles that make up a region.

use gpu_vmm_core::Bytes;

/// The size of a handle where the region is large enough. Each handle takes a descriptor in the server and, while it is sent, in the
/// client.
pub(crate) const HANDLE: Bytes = Bytes::mib(256);

/// The most handles of a region: 32 TiB of 256 MiB each.
pub(crate) const MAX_HANDLES: usize = 1 << 17;

/// Returns the size of the next handle of a region of which `rest` bytes are missing.
pub(crate) fn next(rest: Bytes, handle: Bytes) -> Bytes {
    rest.min(handle)
}

/// Returns the indexes of the handles that a range of a region touches; `None` if it goes beyond the region.
pub(crate) fn touching(
    sizes: impl IntoIterator<Item = Bytes>,
    offset: Bytes,
    length: Bytes,
) -> Option<(u32, u32)> {
    let end = offset.0.checked_add(length.0)?;
    let (mut at, mut first, mut count) = (0, None, 0);
    for (index, size) in sizes.into_iter().enumerate() {
        let next = at + size.0;
        if !length.is_zero() && at < end && offset.0 < next {
            first.get_or_insert(index as u32);
            count += 1;
        }
        at = next;
    }
    (end <= at).then_some((first.unwrap_or(0), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_handles_are_found() {
        let sizes = [4, 4, 2].map(Bytes);
        let find = |offset, length| touching(sizes, Bytes(offset), Bytes(length));
        assert_eq!(find(0, 10), Some((0, 3)));
        assert_eq!(find(3, 1), Some((0, 1)));
        assert_eq!(find(3, 2), Some((0, 2)));
        assert_eq!(find(4, 4), Some((1, 1)));
        assert_eq!(find(9, 1), Some((2, 1)));
        assert_eq!(find(5, 0), Some((0, 0)));
        assert_eq!(find(9, 2), None);
        assert_eq!(find(u64::MAX, 2), None);
    }
}
