//! Any bytes in place of a message from another process.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpu_vmm_share::fuzz::decode(bytes));
