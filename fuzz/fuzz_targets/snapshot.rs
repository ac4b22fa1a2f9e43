//! Any bytes in place of a snapshot's file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpu_vmm_snapshot::fuzz::decode(bytes));
