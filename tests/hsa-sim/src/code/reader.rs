//! Code objects from the compiler.
//!
//! Rules: `hsa_code_object_reader_*` in `hsa.h`.
#![allow(unsafe_code)] // exported to C

use super::code;
use crate::abi::{Reader, Status, list};
use std::mem::MaybeUninit;

hsa! {
    /// Copies a code object into a reader.
    pub unsafe fn hsa_code_object_reader_create_from_memory(
        bytes: *const u8,
        size: usize,
        out: Option<&mut MaybeUninit<Reader>>,
    ) {
        let Some(out) = out.filter(|_| !bytes.is_null() && size > 0) else { return Status::INVALID_ARGUMENT };
        // SAFETY: the caller guarantees `size` bytes.
        let bytes = unsafe { list(bytes, size) }.to_vec();
        let mut code = code();
        let reader = Reader(code.next());
        code.readers.insert(reader, bytes);
        out.write(reader);
        Status::SUCCESS
    }

    /// Destroys a reader.
    pub unsafe fn hsa_code_object_reader_destroy(reader: Reader) {
        code().readers.remove(&reader);
        Status::SUCCESS
    }
}
