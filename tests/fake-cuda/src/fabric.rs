//! Fabric handles: 64 bytes that name memory across processes.
//!
//! Measured: the attribute reports support, but creation is not permitted without an IMEX channel. `FAKE_CUDA_FABRIC`
//! provides one. The bytes name the process, its descriptor and the file; they are valid on this machine and as long as the
//! process has the memory. What a real driver returns for bytes that name nothing is unknown.

use crate::code::{Answer, Code};
use crate::memory::Memory;
use crate::settings::settings;
use std::fs::File;
use std::os::fd::AsFd;

/// `CUmemFabricHandle`.
pub(crate) type Bytes = [u8; 64];

const MAGIC: &[u8; 16] = b"fake-cuda-fabric";

/// Refuses fabric handles unless this process may use them.
pub(crate) fn check() -> Answer {
    if settings().fabric { Ok(()) } else { Err(Code::NOT_PERMITTED) }
}

/// Returns the bytes that name memory of this process.
pub(crate) fn name(memory: &Memory) -> Bytes {
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(MAGIC);
    let numbers = [u64::from(std::process::id()), memory.number() as u64, memory.identity];
    for (place, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Returns the memory that the bytes name, if it still exists.
pub(crate) fn find(bytes: &Bytes) -> Option<Memory> {
    let (magic, numbers) = bytes.split_at(MAGIC.len());
    let mut numbers =
        numbers.chunks_exact(8).filter_map(|number| Some(u64::from_le_bytes(number.try_into().ok()?)));
    let (process, descriptor, identity) = (numbers.next()?, numbers.next()?, numbers.next()?);
    if magic != MAGIC || numbers.any(|rest| rest != 0) {
        return None;
    }
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path).ok()?;
    Memory::import(file.as_fd()).filter(|memory| memory.identity == identity)
}
