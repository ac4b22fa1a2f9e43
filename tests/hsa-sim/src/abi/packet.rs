//! The packets of a queue: 64 bytes each, the first of which identifies the kind.

/// The kind of a packet: the low byte of its header.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketKind(pub u8);

impl PacketKind {
    /// `HSA_PACKET_TYPE_VENDOR_SPECIFIC`: with AMD's format 2, a barrier on a value.
    pub const VENDOR: Self = Self(0);
    /// `HSA_PACKET_TYPE_INVALID`: not written yet, or finished.
    pub const INVALID: Self = Self(1);
    /// `HSA_PACKET_TYPE_KERNEL_DISPATCH`
    pub const KERNEL: Self = Self(2);
    /// `HSA_PACKET_TYPE_BARRIER_AND`
    pub const BARRIER_AND: Self = Self(3);
    /// `HSA_PACKET_TYPE_BARRIER_OR`
    pub const BARRIER_OR: Self = Self(5);

    /// The size of a packet in bytes.
    pub const PACKET: usize = 64;
    /// `HSA_AMD_PACKET_TYPE_BARRIER_VALUE`, in the third byte.
    pub const FORMAT_BARRIER_VALUE: u8 = 2;
}

/// Returns a 64-bit field of a packet, by its offset.
#[must_use]
pub fn word(packet: &[u8; PacketKind::PACKET], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&packet[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}
