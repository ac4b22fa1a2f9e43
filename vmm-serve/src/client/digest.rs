//! A checksum of a region's contents.

use super::Lease;
use gpu_vmm_core::extend::Lock;
use gpu_vmm_core::{Backend, Bytes, Operation, Result};

/// The size of the blocks that are hashed one by one.
const BLOCK: usize = 4 << 20;

impl<B: Backend> Lease<B> {
    /// Returns a checksum of the contents that are mapped, in hexadecimal digits. It is the same for the same bytes, whatever the
    /// device and the handles. Readers map the memory read-only and are trusted not to write otherwise: a writer that keeps the
    /// checksum, for example as a note of the layout, can find out later whether one did.
    ///
    /// It is the BLAKE3 hash of the hashes of all blocks of 4 MiB. The memory is copied to the host for it, by several threads.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn digest(&self) -> Result<String> {
        let size = self.region().end();
        let count = size.0.div_ceil(BLOCK as u64) as usize;
        let hashes = Lock::new(vec![[0; blake3::OUT_LEN]; count]);
        let take = |offset: Bytes, bytes: &[u8]| {
            // Chunks are whole blocks.
            for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
                let hash = *blake3::hash(bytes).as_bytes();
                if let Some(place) =
                    hashes.lock(Operation::DigestRegion)?.get_mut(offset.0 as usize / BLOCK + block)
                {
                    *place = hash;
                }
            }
            Ok(())
        };
        self.fetch(Bytes(BLOCK as u64), &take)?;
        let hashes = hashes.lock(Operation::DigestRegion)?;
        Ok(blake3::hash(hashes.as_flattened()).to_string())
    }
}
