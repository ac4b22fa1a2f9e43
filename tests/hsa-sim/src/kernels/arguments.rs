//! A kernel's arguments in memory.

/// The bytes.
pub(super) struct Arguments(pub(super) Vec<u8>);

impl Arguments {
    /// Returns the 64-bit argument with this number, if all before it are 64 bits wide too.
    pub(super) fn nth(&self, number: usize) -> u64 {
        self.long(8 * number)
    }

    /// Returns eight bytes at an offset. The size listed for a kernel covers all its reads.
    pub(super) fn long(&self, offset: usize) -> u64 {
        self.at(offset).map_or(0, u64::from_le_bytes)
    }

    /// Returns four bytes at an offset.
    pub(super) fn int(&self, offset: usize) -> u32 {
        self.at(offset).map_or(0, u32::from_le_bytes)
    }

    fn at<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..offset + N)?.try_into().ok()
    }
}
