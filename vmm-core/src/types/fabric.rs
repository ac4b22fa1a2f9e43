//! Fabric handles: 64 bytes that name memory across machines whose GPUs share a fabric.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A 64-byte handle of physical memory that any network can carry. CUDA: `CUmemFabricHandle`, HIP: `hipMemFabricHandle_t`.
///
/// Serializes as its bytes. Keep them secret: any process that has them and a channel of the same fabric can import the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FabricHandle(pub [u8; Self::LENGTH]);

impl FabricHandle {
    /// The length in bytes.
    pub const LENGTH: usize = 64;
}

impl fmt::Debug for FabricHandle {
    /// Omits the bytes, because they grant access to the memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FabricHandle(..)")
    }
}

impl Serialize for FabricHandle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (low, high): (&[u8], &[u8]) = self.0.split_at(32);
        (<[u8; 32]>::try_from(low).unwrap_or_default(), <[u8; 32]>::try_from(high).unwrap_or_default())
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FabricHandle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (low, high) = <([u8; 32], [u8; 32])>::deserialize(deserializer)?;
        let mut bytes = [0; Self::LENGTH];
        bytes[..32].copy_from_slice(&low);
        bytes[32..].copy_from_slice(&high);
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_in_its_place() {
        let handle = FabricHandle(std::array::from_fn(|place| place as u8 + 1));
        let sent = postcard::to_allocvec(&handle).unwrap();
        // No length precedes the bytes, as in the handle of the driver.
        assert_eq!(sent, handle.0);
        assert_eq!(postcard::from_bytes::<FabricHandle>(&sent).unwrap(), handle);
        assert!(postcard::from_bytes::<FabricHandle>(&sent[1..]).is_err());
    }

    #[test]
    fn no_byte_is_shown() {
        assert_eq!(format!("{:?}", FabricHandle([9; 64])), "FabricHandle(..)");
    }
}
