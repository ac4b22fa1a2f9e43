//! Copies, fills and waiting.
//!
//! All work is the given device's, comes after what is on its null stream, and is done when the call returns. `hipMemcpy` and
//! `hipMemset` would spoil every capture (quirk `null-stream-spoils-captures`), so the null stream is waited for, which does
//! not, and a stream apart from it does the work. A HIP that lacks one of the calls for that has the null stream do it.
#![allow(unsafe_code)] // calls into HIP

use crate::access;
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

/// What copies and fills beside the null stream.
struct Apart {
    copy: ffi::hipMemcpyAsync,
    fill: ffi::hipMemsetAsync,
    stream: hipStream_t,
}

/// How much goes through the host at a time: enough for a copy engine's full speed.
const CHUNK: Bytes = Bytes::mib(16);

impl Driver {
    /// The stream of a device, which is current, for its copies and fills, if this HIP has all that they need.
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
                // SAFETY: another thread was first; this one was made above, and nothing is on it.
                let code = unsafe { destroy(second) };
                self.check(operation, "hipStreamDestroy", code, || device.to_string())?;
            }
        }
        Ok(place.get().map(|name| Apart { copy, fill, stream: name.0 }))
    }

    /// # Safety
    ///
    /// Both sides are as long as `length`, and what the kind of copy says that they are; `device` may read and write them.
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
            // SAFETY: the caller's promise, until the stream has been waited for; the stream is the device's.
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
        // SAFETY: `from` is as long as is said, and `to` by the caller's promise, as far as the offset says.
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
        // SAFETY: as above, the other way round.
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
                // SAFETY: the caller's promise.
                return unsafe { self.copy_through_host((device, to), (source, from), length) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.hip_copy(OPERATION, device, to.as_ptr(), from.as_ptr(), length, kind) }
    }

    /// Copies between two devices' memory, each by its own.
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
            // SAFETY: parts of what the caller promises.
            unsafe {
                self.copy_to_host(from.0, chunk, from.1 + offset)?;
                self.copy_from_host(to.0, to.1 + offset, chunk)?;
            }
        }
        Ok(())
    }

    /// Refuses a copy to or from the host that the memory's own device will do and may not (quirk `copy-by-source`). Gives
    /// the device that will do it.
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
        if owner == device {
            return Ok(owner);
        }
        let range = AddressRange { base: at, size: Bytes::ZERO };
        let have = access::get(self, operation, range, Bytes::ZERO, owner)?;
        if need.is_within(have) {
            return Ok(owner);
        }
        let version = self.info().version;
        let reason = format!(
            "HIP {version} has {owner} copy its memory at {at}, which has {have} there, not {device}"
        );
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }

    /// True where the first device would do a copy of another one's memory, since the host's side is page-locked (quirk
    /// `pinned-copies-by-first`).
    fn goes_astray(&self, owner: DeviceId, host: *const c_void) -> bool {
        let is_locked = || {
            let host = Address(host.expose_provenance() as u64);
            let attributes = self.attributes(Operation::Copy, host);
            attributes.is_ok_and(|attributes| attributes.type_ == hipMemoryType::hipMemoryTypeHost)
        };
        self.copies_astray(owner) && is_locked()
    }

    /// True where the first device would copy between this one's memory and page-locked memory.
    pub(crate) fn copies_astray(&self, owner: DeviceId) -> bool {
        self.quirks.pinned_by_first && owner != DeviceId(0)
    }

    /// Whose memory an address is.
    fn owner(&self, operation: Operation, at: Address) -> Result<DeviceId> {
        let device = self.attributes(operation, at)?.device;
        u32::try_from(device).map(DeviceId).map_err(|_| {
            let what = format!("hipPointerGetAttributes says device {device} for {at}, which is mapped");
            Error::new(operation, Detail::DriverContractViolated { what })
        })
    }

    /// What HIP knows of an address.
    fn attributes(&self, operation: Operation, at: Address) -> Result<hipPointerAttribute_t> {
        self.process.check(operation)?;
        let mut attributes = MaybeUninit::<hipPointerAttribute_t>::zeroed();
        // SAFETY: the function looks the address up, and writes one structure.
        let code = unsafe { (self.hip.hipPointerGetAttributes)(attributes.as_mut_ptr(), at.as_ptr()) };
        self.check(operation, "hipPointerGetAttributes", code, || at.to_string())?;
        // SAFETY: zero is a value of all its fields, whether written over or not.
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
            // SAFETY: the memory is mapped and may be written by the device, as the caller promises; the stream is its own.
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

    /// Waits for a stream, which is null or of the current device.
    pub(crate) fn wait_for(&self, operation: Operation, stream: hipStream_t) -> Result<()> {
        let _relaxed = self.relax(operation)?;
        // SAFETY: the stream is null or alive.
        let code = unsafe { (self.hip.hipStreamSynchronize)(stream) };
        self.check(operation, "hipStreamSynchronize", code, || format!("stream {stream:p}"))
    }

    /// The null stream and the calling thread's own (`hipStreamPerThread`) are the current device's, so the device is made
    /// current.
    pub(crate) fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        const STREAM: Operation = Operation::WaitForStream;
        let _current = self.on(STREAM, device)?;
        self.wait_for(STREAM, raw(stream))
    }
}
