//! Attributes of the whole machine, and the output of attribute values.
//!
//! Rules: `hsa_system_info_t` in `hsa.h` and `hsa_ext_amd.h`; the loader's table in `hsa_ven_amd_loader.h`.
#![allow(unsafe_code)] // exported to C, with pointers for the results

use crate::abi::Status;
use crate::settings::settings;
use crate::work::now;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// The value of an attribute, in C's representation.
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// Creates a text of at most `room` bytes, followed by a zero byte.
    pub(crate) fn text(text: &str, room: usize) -> Self {
        let mut bytes = text.as_bytes()[..text.len().min(room - 1)].to_vec();
        bytes.resize(room, 0);
        Self(bytes)
    }

    /// Creates a value of raw bytes.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Writes the value.
    ///
    /// # Safety
    ///
    /// `value` must be null or valid for writing it.
    pub(crate) unsafe fn write(&self, value: *mut u8) -> Status {
        if value.is_null() {
            return Status::INVALID_ARGUMENT;
        }
        // SAFETY: not null, so the caller guarantees space; bytes need no alignment.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), value, self.0.len()) };
        Status::SUCCESS
    }
}

impl<T: bytemuck::NoUninit> From<T> for Answer {
    fn from(value: T) -> Self {
        Self(bytemuck::bytes_of(&value).to_vec())
    }
}

fn answer(attribute: u32) -> Option<Answer> {
    Some(match attribute {
        0 => 1u16.into(),               // VERSION_MAJOR
        1 => 18u16.into(),              // VERSION_MINOR
        2 => now().into(),              // TIMESTAMP
        3 => 1_000_000_000_u64.into(),  // TIMESTAMP_FREQUENCY
        4 => u64::MAX.into(),           // SIGNAL_MAX_WAIT
        5 => 0u32.into(),               // ENDIANNESS: little
        6 => 1u32.into(),               // MACHINE_MODEL: large
        7 => [0u8; 128].into(),         // EXTENSIONS: none
        0x201 | 0x202 => false.into(),  // SVM_SUPPORTED, SVM_ACCESSIBLE_BY_DEFAULT
        0x203 | 0x206 => false.into(),  // MWAITX_ENABLED, XNACK_ENABLED
        0x204 => true.into(),           // DMABUF_SUPPORTED
        0x205 => settings().vmm.into(), // VIRTUAL_MEM_API_SUPPORTED
        0x207 => 1u16.into(),           // EXT_VERSION_MAJOR
        0x208 => 12u16.into(),          // EXT_VERSION_MINOR
        _ => return None,
    })
}

/// The loader's first function: returns the host's address of loaded code, which is the device's here.
unsafe extern "C" fn host_address(device: usize, host: Option<&mut MaybeUninit<usize>>) -> Status {
    let Some(host) = host else { return Status::INVALID_ARGUMENT };
    host.write(device);
    Status::SUCCESS
}

extern "C" fn not_supported() -> Status {
    Status::NOT_SUPPORTED
}

hsa! {
    /// Starts the runtime; reads the settings at the latest here.
    pub unsafe fn hsa_init() {
        trace!("hsa_init: {} GPU(s) of {}", settings().gpus, settings().gfx);
        Status::SUCCESS
    }

    /// Shuts the runtime down. Objects stay alive: HIP calls it when the process exits.
    pub unsafe fn hsa_shut_down() {
        trace!("hsa_shut_down");
        Status::SUCCESS
    }

    /// Returns an attribute of the machine.
    pub unsafe fn hsa_system_get_info(attribute: u32, value: *mut u8) {
        match answer(attribute) {
            // SAFETY: the caller guarantees space for the attribute.
            Some(answer) => unsafe { answer.write(value) },
            None => {
                trace!("hsa_system_get_info({attribute:#x}): unknown");
                Status::INVALID_ARGUMENT
            }
        }
    }

    /// Returns the loader's table. It has one function; the others return that they are not supported.
    pub unsafe fn hsa_system_get_major_extension_table(
        extension: u16,
        _major: u16,
        bytes: usize,
        table: *mut *const c_void,
    ) {
        const LOADER: u16 = 0x201;
        if extension != LOADER {
            return Status::NOT_SUPPORTED;
        }
        if table.is_null() {
            return Status::INVALID_ARGUMENT;
        }
        for entry in 0..bytes / size_of::<*const c_void>() {
            let function = if entry == 0 { host_address as *const c_void } else { not_supported as *const c_void };
            // SAFETY: the caller guarantees a table of this size.
            unsafe { table.add(entry).write(function) };
        }
        Status::SUCCESS
    }

    /// Returns a text for a status.
    pub unsafe fn hsa_status_string(status: Status, text: Option<&mut MaybeUninit<*const c_char>>) {
        let Some(text) = text else { return Status::INVALID_ARGUMENT };
        text.write(status.text().as_ptr());
        Status::SUCCESS
    }
}
