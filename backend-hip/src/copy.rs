//! Copies, fills and waiting.
//!
//! The given device performs all work, after the work on its null stream, and the work is finished when the call
//! returns. `hipMemcpy` and `hipMemset` would invalidate every capture (quirk `null-stream-spoils-captures`). The
//! backend therefore waits for the null stream, which invalidates nothing, and works on a non-blocking stream. If HIP
//! lacks one of the calls for that, the null stream does the work.
#![allow(unsafe_code)] // calls into HIP

use crate::access;
use crate::device::FLOOR;
use crate::device_state::StreamName;
use crate::driver::Driver;
use crate::ffi::{
    self, hipMemcpyKind, hipMemoryType, hipPointerAttribute_t, hipStream_t, hipStreamNonBlocking,
};
use crate::quirks::{NULL_STREAM_SPOILS_CAPTURES, workaround_enabled};
use crate::stream::raw;
use gpu_vmm_core::{
    Access, Address, AddressRange, Bytes, Detail, DeviceId, Error, Operation, Result, Stream,
};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// The functions and the non-blocking stream for copies and fills.
struct Apart {
    copy: ffi::hipMemcpyAsync,
    fill: ffi::hipMemsetAsync,
    stream: hipStream_t,
}

/// The size of one step through the host: enough for a copy engine's full speed.
const CHUNK: Bytes = Bytes::mib(16);

impl Driver {
    /// Returns the stream for the copies and fills of the current device `device`, if HIP has all the calls for it.
    fn apart(&self, operation: Operation, device: DeviceId) -> Result<Option<Apart>> {
        let (Some(copy), Some(fill), Some(create)) =
            (self.hip.hipMemcpyAsync, self.hip.hipMemsetAsync, self.hip.hipStreamCreateWithFlags)
        else {
            return Ok(None);
        };
        if !workaround_enabled(&NULL_STREAM_SPOILS_CAPTURES) {
            return Ok(None);
        }
        let place = &self.devices_state(device)?.copies;
        if place.get().is_none() {
            let mut stream = null_mut();
            // SAFETY: HIP writes one stream, of the current device.
            let code = unsafe { create(&raw mut stream, hipStreamNonBlocking) };
            self.check(operation, "hipStreamCreateWithFlags", code, || device.to_string())?;
            if let Err(StreamName(second)) = place.set(StreamName(stream))
                && let Some(destroy) = self.hip.hipStreamDestroy
            {
                // SAFETY: another thread stored its stream first; this stream was created above, and nothing is queued
                // on it.
                let code = unsafe { destroy(second) };
                self.check(operation, "hipStreamDestroy", code, || device.to_string())?;
            }
        }
        Ok(place.get().map(|name| Apart { copy, fill, stream: name.0 }))
    }

    /// # Safety
    ///
    /// Both sides are `length` bytes long and of the memory types that `kind` says; `device` may read and write them.
    unsafe fn hip_copy(
        &self,
        operation: Operation,
        device: DeviceId,
        to: *mut c_void,
        from: *const c_void,
        length: Bytes,
        kind: hipMemcpyKind,
    ) -> Result<()> {
        let _current = self.on(operation, device)?;
        if length.is_zero() {
            return Ok(());
        }
        let context = || format!("{length} from {from:p} to {to:p} by {device}");
        if let Some(apart) = self.apart(operation, device)? {
            let _relaxed = self.relax(operation)?;
            self.wait_for_null(operation)?;
            // SAFETY: the caller's promise, until the stream has finished; the stream belongs to the device.
            let code = unsafe { (apart.copy)(to, from, length.0 as usize, kind, apart.stream) };
            self.check(operation, "hipMemcpyAsync", code, context)?;
            return self.wait_for(operation, apart.stream);
        }
        // SAFETY: the caller's promise.
        let code = unsafe { (self.hip.hipMemcpy)(to, from, length.0 as usize, kind) };
        self.check(operation, "hipMemcpy", code, context)?;
        if kind.0 == hipMemcpyKind::hipMemcpyDeviceToDevice.0 {
            self.wait_for_null(operation)
        } else {
            Ok(())
        }
    }

    /// # Safety
    ///
    /// As for [`CopyCalls::copy_from_host`](gpu_vmm_core::CopyCalls::copy_from_host).
    pub(crate) unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        let length = Bytes(from.len() as u64);
        let kind = hipMemcpyKind::hipMemcpyHostToDevice;
        let owner = self.check_owner(Operation::CopyFromHost, device, to, Access::ReadWrite)?;
        // SAFETY: `from` has `length` bytes; `to` has them from the offset on, as the caller promises.
        let copy = |offset: Bytes, from: &[u8], length| unsafe {
            let to = (to + offset).as_ptr();
            self.hip_copy(Operation::CopyFromHost, device, to, from.as_ptr().cast(), length, kind)
        };
        if !self.goes_astray(owner, from.as_ptr().cast()) {
            return copy(Bytes::ZERO, from, length);
        }
        let (mut plain, mut offset) = (vec![0; CHUNK.min(length).0 as usize], Bytes::ZERO);
        from.chunks(CHUNK.0 as usize).try_for_each(|part| {
            let length = Bytes(part.len() as u64);
            let plain = &mut plain[..part.len()];
            plain.copy_from_slice(part);
            copy(offset, plain, length)?;
            offset += length;
            Ok(())
        })
    }

    /// # Safety
    ///
    /// As for [`CopyCalls::copy_to_host`](gpu_vmm_core::CopyCalls::copy_to_host).
    pub(crate) unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        let length = Bytes(to.len() as u64);
        let kind = hipMemcpyKind::hipMemcpyDeviceToHost;
        let owner = self.check_owner(Operation::CopyToHost, device, from, Access::Read)?;
        // SAFETY: as above, in the other direction.
        let copy = |to: &mut [u8], offset: Bytes, length| unsafe {
            let from = (from + offset).as_ptr();
            self.hip_copy(Operation::CopyToHost, device, to.as_mut_ptr().cast(), from, length, kind)
        };
        if !self.goes_astray(owner, to.as_ptr().cast()) {
            return copy(to, Bytes::ZERO, length);
        }
        let (mut plain, mut offset) = (vec![0; CHUNK.min(length).0 as usize], Bytes::ZERO);
        to.chunks_mut(CHUNK.0 as usize).try_for_each(|part| {
            let length = Bytes(part.len() as u64);
            let plain = &mut plain[..part.len()];
            copy(plain, offset, length)?;
            part.copy_from_slice(plain);
            offset += length;
            Ok(())
        })
    }

    /// # Safety
    ///
    /// As for [`CopyCalls::copy`](gpu_vmm_core::CopyCalls::copy).
    pub(crate) unsafe fn copy(
        &self,
        device: DeviceId,
        to: Address,
        from: Address,
        length: Bytes,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::Copy;
        let kind = hipMemcpyKind::hipMemcpyDeviceToDevice;
        if self.quirks.copy_by_source && !length.is_zero() {
            let source = self.owner(OPERATION, from)?;
            if source != device {
                self.check_source(OPERATION, (source, device), AddressRange { base: from, size: length })?;
                // SAFETY: the caller's promise; the source's owner may read all of it, as checked.
                return unsafe { self.copy_through_host((device, to), (source, from), length) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.hip_copy(OPERATION, device, to.as_ptr(), from.as_ptr(), length, kind) }
    }

    /// Refuses a copy of memory that its owner performs without having access to all of it. Mappings of one owner can differ in
    /// access.
    fn check_source(
        &self,
        operation: Operation,
        (owner, device): (DeviceId, DeviceId),
        range: AddressRange,
    ) -> Result<()> {
        let unit = FLOOR.0;
        let mut at = range.base;
        while at < range.end() {
            self.check_access(operation, (owner, device), at, Access::Read)?;
            // The next place at which a mapping can begin.
            at = Address((at.0 / unit + 1) * unit);
        }
        Ok(())
    }

    /// Copies between the memory of two devices through the host; each device accesses only its own memory.
    ///
    /// # Safety
    ///
    /// As for [`CopyCalls::copy`](gpu_vmm_core::CopyCalls::copy).
    unsafe fn copy_through_host(
        &self,
        to: (DeviceId, Address),
        from: (DeviceId, Address),
        length: Bytes,
    ) -> Result<()> {
        let mut host = vec![0; CHUNK.min(length).0 as usize];
        for offset in (0..length.0).step_by(host.len()).map(Bytes) {
            let size = CHUNK.min(length - offset).0 as usize;
            let chunk = &mut host[..size];
            // SAFETY: parts of the ranges that the caller promises.
            unsafe {
                self.copy_to_host(from.0, chunk, from.1 + offset)?;
                self.copy_from_host(to.0, to.1 + offset, chunk)?;
            }
        }
        Ok(())
    }

    /// Refuses a copy to or from the host if the memory's owner performs it without having access (quirk
    /// `copy-by-source`). Returns the device that performs the copy.
    pub(crate) fn check_owner(
        &self,
        operation: Operation,
        device: DeviceId,
        at: Address,
        need: Access,
    ) -> Result<DeviceId> {
        if !self.quirks.copy_by_source {
            return Ok(device);
        }
        let owner = self.owner(operation, at)?;
        if owner != device {
            self.check_access(operation, (owner, device), at, need)?;
        }
        Ok(owner)
    }

    /// Refuses a copy that the memory's owner performs in place of `device`, if the owner lacks the access at an address.
    fn check_access(
        &self,
        operation: Operation,
        (owner, device): (DeviceId, DeviceId),
        at: Address,
        need: Access,
    ) -> Result<()> {
        let range = AddressRange { base: at, size: Bytes::ZERO };
        let have = access::get(self, operation, range, Bytes::ZERO, owner)?;
        if need.is_within(have) {
            return Ok(());
        }
        let version = self.info().version;
        let reason = format!(
            "HIP {version} copies memory at {at} with its owner {owner}, which has {have} there, and not with \
         {device}"
        );
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }

    /// True if device 0 would copy another device's memory, because the host's side is page-locked (quirk
    /// `pinned-copies-by-first`).
    fn goes_astray(&self, owner: DeviceId, host: *const c_void) -> bool {
        let is_locked = || {
            let host = Address(host.expose_provenance() as u64);
            let attributes = self.attributes(Operation::Copy, host);
            attributes.is_ok_and(|attributes| attributes.type_ == hipMemoryType::hipMemoryTypeHost)
        };
        self.copies_astray(owner) && is_locked()
    }

    /// True if device 0 would copy between this device's memory and page-locked memory.
    pub(crate) fn copies_astray(&self, owner: DeviceId) -> bool {
        self.quirks.pinned_by_first && owner != DeviceId(0)
    }

    /// Returns the device that owns the memory at an address.
    fn owner(&self, operation: Operation, at: Address) -> Result<DeviceId> {
        let device = self.attributes(operation, at)?.device;
        u32::try_from(device).map(DeviceId).map_err(|_| {
            let what = format!("hipPointerGetAttributes returned device {device} for {at}, which is mapped");
            Error::new(operation, Detail::DriverContractViolated { what })
        })
    }

    /// Returns HIP's attributes of an address.
    fn attributes(&self, operation: Operation, at: Address) -> Result<hipPointerAttribute_t> {
        self.process.check(operation)?;
        let mut attributes = MaybeUninit::<hipPointerAttribute_t>::zeroed();
        // SAFETY: the function looks the address up and writes one structure.
        let code = unsafe { (self.hip.hipPointerGetAttributes)(attributes.as_mut_ptr(), at.as_ptr()) };
        self.check(operation, "hipPointerGetAttributes", code, || at.to_string())?;
        // SAFETY: zero is a value of all its fields, so they are initialized even if HIP did not write them.
        Ok(unsafe { attributes.assume_init() })
    }

    /// # Safety
    ///
    /// As for [`CopyCalls::fill`](gpu_vmm_core::CopyCalls::fill).
    pub(crate) unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        const OPERATION: Operation = Operation::Fill;
        let _current = self.on(OPERATION, device)?;
        if length.is_zero() {
            return Ok(());
        }
        let (range, value) = (AddressRange { base: at, size: length }, c_int::from(value));
        if let Some(apart) = self.apart(OPERATION, device)? {
            let _relaxed = self.relax(OPERATION)?;
            self.wait_for_null(OPERATION)?;
            // SAFETY: the memory is mapped and writable for the device, as the caller promises; the stream belongs to
            // the device.
            let code = unsafe { (apart.fill)(at.as_ptr(), value, length.0 as usize, apart.stream) };
            self.check(OPERATION, "hipMemsetAsync", code, || format!("{range} by {device}"))?;
            return self.wait_for(OPERATION, apart.stream);
        }
        // SAFETY: as above.
        let code = unsafe { (self.hip.hipMemset)(at.as_ptr(), value, length.0 as usize) };
        self.check(OPERATION, "hipMemset", code, || format!("{range} by {device}"))?;
        self.wait_for_null(OPERATION)
    }

    /// Waits for the current device's null stream.
    pub(crate) fn wait_for_null(&self, operation: Operation) -> Result<()> {
        self.wait_for(operation, std::ptr::null_mut())
    }

    /// Waits for a stream, which is null or belongs to the current device.
    pub(crate) fn wait_for(&self, operation: Operation, stream: hipStream_t) -> Result<()> {
        let _relaxed = self.relax(operation)?;
        // SAFETY: the stream is null or alive.
        let code = unsafe { (self.hip.hipStreamSynchronize)(stream) };
        self.check(operation, "hipStreamSynchronize", code, || format!("stream {stream:p}"))
    }

    /// Waits for a stream. The device is made current first, because the null stream and `hipStreamPerThread` are those
    /// of the current device.
    pub(crate) fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        const STREAM: Operation = Operation::WaitForStream;
        let _current = self.on(STREAM, device)?;
        self.wait_for(STREAM, raw(stream))
    }
}
