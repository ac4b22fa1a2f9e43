//! The security descriptor of exported memory: one that allows only the user that this process runs as, or one that the program chose.
//!
//! CUDA requires an `OBJECT_ATTRIBUTES` with a security descriptor for memory that is exported as a Windows handle
//! (`CUmemAllocationProp::win32HandleMetaData`). It is not the `SECURITY_ATTRIBUTES` that memory pools take.
//!
//! The descriptor is `D:P(A;;GA;;;S-…)`: an access control list, protected (`P`) so that it inherits nothing, with one entry that
//! allows (`A`) all rights (`GA`) to the user's own identifier. NVIDIA's samples allow everyone (`WD`). The owner's rights (`OW`)
//! would be shorter, but the owner of an object is set when the object is made: a process with elevated administrator rights makes
//! it for all administrators, and a driver may make it in a process of its own.
//!
//! The descriptor decides which users can open the memory again or request more rights to it. A handle that was passed to another
//! process stays valid there.
#![allow(unsafe_code)]

use crate::ffi::MemAllocationProp;
use gpu_vmm_core::{Detail, DriverError, Error, HandleTypes, Operation, Result};
use std::collections::BTreeMap;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Win32::Foundation::{ERROR_INVALID_PARAMETER, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{GetTokenInformation, PSID, TOKEN_QUERY, TOKEN_USER, TokenUser};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Adds the security attributes that Windows requires for memory that is exported as a handle.
pub(crate) fn with_attributes(operation: Operation, prop: MemAllocationProp) -> Result<MemAllocationProp> {
    if prop.requested_handle_types & HandleTypes::WIN32.bits() == 0 {
        return Ok(prop);
    }
    Ok(MemAllocationProp { win32_handle_meta_data: attributes(operation)?.cast(), ..prop })
}

/// Returns the attributes for this process's user. They live as long as the process: the user does not change, and CUDA does not
/// document whether it reads them again when memory is exported.
fn attributes(operation: Operation) -> Result<*mut OBJECT_ATTRIBUTES> {
    static MADE: OnceLock<Attributes> = OnceLock::new();
    let chosen = CHOSEN.load(Ordering::Acquire);
    if !chosen.is_null() {
        return Ok(chosen);
    }
    if let Some(made) = MADE.get() {
        return Ok(made.object.as_ptr());
    }
    let own = || Attributes::new(&format!("D:P(A;;GA;;;{})", user()?));
    let made = own().map_err(|source| failed(operation, source))?;
    Ok(MADE.get_or_init(|| made).object.as_ptr())
}

/// The attributes that the program chose; null for those of the user.
static CHOSEN: AtomicPtr<OBJECT_ATTRIBUTES> = AtomicPtr::new(null_mut());

/// Chooses the attributes of memory that is created from now on, by the text of a security descriptor. Each text's attributes are made
/// once and live as long as the process, as those of the user do.
pub(crate) fn choose(operation: Operation, text: &str) -> Result<()> {
    static MADE: Mutex<BTreeMap<String, Attributes>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let chosen = match made.get(text) {
        Some(attributes) => attributes.object.as_ptr(),
        None => {
            let attributes = Attributes::new(text).map_err(|source| failed(operation, source))?;
            made.entry(text.to_owned()).or_insert(attributes).object.as_ptr()
        }
    };
    CHOSEN.store(chosen, Ordering::Release);
    Ok(())
}

fn failed(operation: Operation, source: DriverError) -> Error {
    let context = "building the security descriptor for exported memory".to_owned();
    Error::new(operation, Detail::Driver { source, context })
}

struct Attributes {
    object: NonNull<OBJECT_ATTRIBUTES>,
    _descriptor: Local,
}

// SAFETY: both are memory of the process that is bound to no thread, and it is never changed.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

impl Attributes {
    fn new(text: &str) -> Result<Self, DriverError> {
        let descriptor = descriptor(text)?;
        // Zeros mean that the object has no name and no folder, and that child processes do not inherit its handles.
        let object = Box::new(OBJECT_ATTRIBUTES {
            Length: size_of::<OBJECT_ATTRIBUTES>() as u32,
            SecurityDescriptor: descriptor.0.cast(),
            ..OBJECT_ATTRIBUTES::default()
        });
        Ok(Self { object: NonNull::from(Box::leak(object)), _descriptor: descriptor })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: it was a box, and is dropped only if another thread's attributes were stored instead.
        drop(unsafe { Box::from_raw(self.object.as_ptr()) });
    }
}

/// Memory that a Windows function has allocated for its caller.
struct Local(*mut core::ffi::c_void);

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: such memory is freed with `LocalFree`, and once.
        unsafe { LocalFree(self.0) };
    }
}

/// Parses a security descriptor from its text.
fn descriptor(text: &str) -> Result<Local, DriverError> {
    const CALL: &str = "ConvertStringSecurityDescriptorToSecurityDescriptorW";
    if text.contains('\0') {
        // Windows would read the text before it alone.
        return Err(DriverError::system(CALL, &io::Error::from_raw_os_error(ERROR_INVALID_PARAMETER as i32)));
    }
    let text: Vec<u16> = text.encode_utf16().chain([0]).collect();
    let mut made = null_mut();
    // SAFETY: the text ends with a zero; the pointer is valid for one pointer, and the size is not requested.
    let answer = unsafe {
        ConvertStringSecurityDescriptorToSecurityDescriptorW(
            text.as_ptr(),
            SDDL_REVISION_1,
            &raw mut made,
            null_mut(),
        )
    };
    succeeded(CALL, answer).map(|()| Local(made))
}

/// Returns the identifier of the user that this process runs as, as text: `S-1-5-21-…`.
fn user() -> Result<String, DriverError> {
    let token = token()?;
    let mut length = 0;
    // SAFETY: without a buffer the call reports the needed length.
    unsafe { GetTokenInformation(token.as_raw_handle(), TokenUser, null_mut(), 0, &raw mut length) };
    // A vector of pointers, since the structure begins with one and needs its alignment.
    let mut buffer = vec![null::<u8>(); (length as usize).div_ceil(size_of::<*const u8>())];
    let size = size_of_val(buffer.as_slice()) as u32;
    // SAFETY: the buffer has the given size.
    let answer = unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            buffer.as_mut_ptr().cast(),
            size,
            &raw mut length,
        )
    };
    succeeded("GetTokenInformation", answer)?;
    // SAFETY: the call has succeeded, so the buffer begins with such a structure, with its alignment.
    let user: PSID = unsafe { (*buffer.as_ptr().cast::<TOKEN_USER>()).User.Sid };
    let mut text = null_mut();
    // SAFETY: the identifier lies in the buffer, which is still alive; the pointer is valid for one pointer.
    succeeded("ConvertSidToStringSidW", unsafe { ConvertSidToStringSidW(user, &raw mut text) })?;
    let text = Local(text.cast());
    let letters = text.0.cast::<u16>();
    // SAFETY: the text ends with a zero, and only the characters up to it are read.
    let length = (0..).take_while(|index| unsafe { *letters.add(*index) } != 0).count();
    // SAFETY: as above.
    Ok(String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(letters, length) }))
}

/// Returns the access token of this process.
fn token() -> Result<OwnedHandle, DriverError> {
    let mut token = null_mut();
    // SAFETY: the pointer is valid for one handle; the process's pseudo-handle needs no closing.
    let answer = unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token) };
    succeeded("OpenProcessToken", answer)?;
    // SAFETY: the call has succeeded, and the caller owns the handle.
    Ok(unsafe { OwnedHandle::from_raw_handle(token) })
}

/// Checks the result of a call that stores its error code per thread; it must be the thread's last call.
fn succeeded(call: &'static str, answer: i32) -> Result<(), DriverError> {
    if answer == 0 { Err(DriverError::system(call, &io::Error::last_os_error())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windows_sys::Win32::Security::Authorization::ConvertSecurityDescriptorToStringSecurityDescriptorW;
    use windows_sys::Win32::Security::{DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR};

    /// Reads the descriptor back from the structure that CUDA receives.
    #[test]
    fn chosen_descriptor_replaces_the_users_own() {
        let object = attributes(Operation::CreateMemory).unwrap();
        assert_eq!(object, attributes(Operation::CreateMemory).unwrap());
        let user = user().unwrap();
        assert!(user.starts_with("S-1-"), "{user}");
        assert_eq!(read_back(object), format!("D:P(A;;GA;;;{user})"));
        // The program's choice replaces it. A wrong one leaves it in place.
        for (chosen, shown) in [("D:P(A;;GA;;;WD)", "D:P(A;;GA;;;WD)"), ("D:(A;;GR;;;BA)", "D:(A;;GR;;;BA)")]
        {
            choose(Operation::CreateMemory, chosen).unwrap();
            let object = attributes(Operation::CreateMemory).unwrap();
            assert_eq!(read_back(object), shown);
            for wrong in ["nonsense", "D:P(A;;GA;;;WD)\0"] {
                assert!(choose(Operation::CreateMemory, wrong).is_err(), "{wrong:?}");
                assert_eq!(attributes(Operation::CreateMemory).unwrap(), object);
            }
        }
        choose(Operation::CreateMemory, "D:P(A;;GA;;;WD)").unwrap();
        assert_eq!(read_back(attributes(Operation::CreateMemory).unwrap()), "D:P(A;;GA;;;WD)");
    }

    /// Returns the text of the descriptor in attributes.
    fn read_back(object: *mut OBJECT_ATTRIBUTES) -> String {
        // SAFETY: `attributes` made it, and it is never freed.
        let object = unsafe { *object };
        assert_eq!(object.Length as usize, size_of::<OBJECT_ATTRIBUTES>());
        assert!(object.RootDirectory.is_null() && object.ObjectName.is_null() && object.Attributes == 0);
        let mut text = null_mut();
        let mut length = 0;
        // SAFETY: a descriptor that Windows has made, and pointers that are valid for one pointer and one number.
        let answer = unsafe {
            ConvertSecurityDescriptorToStringSecurityDescriptorW(
                object.SecurityDescriptor as PSECURITY_DESCRIPTOR,
                SDDL_REVISION_1,
                DACL_SECURITY_INFORMATION,
                &raw mut text,
                &raw mut length,
            )
        };
        succeeded("asked back", answer).unwrap();
        // SAFETY: the call has reported the text's length.
        let letters = unsafe { std::slice::from_raw_parts(text, length as usize) };
        String::from_utf16_lossy(letters).trim_end_matches('\0').to_owned()
    }

    #[test]
    fn wrong_descriptor_text_returns_windows_error() {
        let error = descriptor("D:P(A;;GA;;;unknown)").err().unwrap();
        assert!(error.code != 0 && error.call.starts_with("ConvertString"), "{error}");
    }
}
