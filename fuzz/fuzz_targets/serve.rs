//! Any bytes in place of a message, a layout or a file for the server of memory and its clients.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpu_vmm_serve::fuzz::decode(bytes));
