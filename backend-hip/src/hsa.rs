//! Two functions of ROCr, the HSA runtime below HIP, for the one thing in which HIP is in the way.
//!
//! HIP 7.0 to 7.2 refuse `hipMemSetAccess` on mappings that it could well set (quirk `access-sums`). Behind its check HIP does nothing but call
//! `hsa_amd_vmem_set_access` with the same range, and keeps no record of its own; so that is what is called here. Which
//! HSA agent a HIP device is, is asked of memory that HIP has allocated on it, since HIP numbers its devices itself.
#![allow(unsafe_code)] // calls into ROCr

use crate::driver::Driver;
use crate::loader::Library;
use gpu_vmm_core::{Access, AddressRange, Bytes, DeviceId, DriverError, Error, Result};
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::{null, null_mut};

/// `hsa_status_t`: 0 is success.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct HsaStatus(u32);

/// `hsa_agent_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agent(u64);

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
struct AccessDescription {
    permissions: u32,
    agent: Agent,
}

/// `hsa_amd_pointer_info_t`.
#[repr(C)]
struct PointerInfo {
    size: u32,
    kind: u32,
    agent_base: *mut c_void,
    host_base: *mut c_void,
    size_in_bytes: usize,
    user_data: *mut c_void,
    owner: Agent,
    global_flags: u32,
    registered: bool,
}

// As hsa_ext_amd.h has them.
const _: () = {
    assert!(size_of::<AccessDescription>() == 16 && offset_of!(AccessDescription, agent) == 8);
    assert!(size_of::<PointerInfo>() == 56 && offset_of!(PointerInfo, owner) == 40);
};

type SetAccess = unsafe extern "C" fn(*mut c_void, usize, *const AccessDescription, usize) -> HsaStatus;
type GetPointerInfo = unsafe extern "C" fn(
    *const c_void,
    *mut PointerInfo,
    *const c_void,
    *mut u32,
    *mut *mut Agent,
) -> HsaStatus;

const SUCCESS: HsaStatus = HsaStatus(0);
/// `HSA_EXT_POINTER_TYPE_HSA`: an allocation of ROCr's.
const POINTER_TYPE_HSA: u32 = 1;

/// What is used of ROCr.
pub(crate) struct Hsa {
    set_access: SetAccess,
    pointer_info: GetPointerInfo,
}

impl Hsa {
    /// Looks the functions up through HIP, which depends on ROCr: so they are those of the very copy that HIP uses.
    pub(crate) fn find(hip: &Library) -> Option<Self> {
        // SAFETY: ROCr's functions of these names have these types since they exist (interface 1.4 and 1.0), and HIP is
        // never unloaded, nor what it depends on.
        unsafe {
            Some(Self {
                set_access: *hip.get("hsa_amd_vmem_set_access").ok()?,
                pointer_info: *hip.get("hsa_amd_pointer_info").ok()?,
            })
        }
    }
}

/// The agent that HIP uses for a device, found out once.
fn agent(driver: &Driver, hsa: &Hsa, device: DeviceId) -> Result<Agent> {
    let known = &driver.devices_state(device)?.agent;
    if let Some(agent) = known.get() {
        return Ok(*agent);
    }
    let size = Bytes::kib(4);
    let at = driver.allocate_plain("set access", device, size)?;
    // SAFETY: the structure is integers and pointers, for which zero is a value.
    let mut info: PointerInfo = unsafe { std::mem::zeroed() };
    info.size = size_of::<PointerInfo>() as u32;
    // SAFETY: `info` has the size that it says; without an allocator ROCr makes no list of agents.
    let status = unsafe { (hsa.pointer_info)(at.as_ptr(), &raw mut info, null(), null_mut(), null_mut()) };
    // SAFETY: allocated above, given to nobody.
    unsafe { driver.free_plain("set access", device, at, size) }?;
    check("hsa_amd_pointer_info", status, || format!("{device}"))?;
    if info.kind != POINTER_TYPE_HSA || info.owner == Agent(0) {
        let what = format!("hsa_amd_pointer_info says kind {} and no owner of memory on {device}", info.kind);
        return Err(Error::DriverBroke { operation: "set access", what });
    }
    Ok(*known.get_or_init(|| info.owner))
}

/// Does what `hipMemSetAccess` would do, without its check.
///
/// # Safety
///
/// `range` is one or several whole mappings in one reservation that follow each other without a hole.
pub(crate) unsafe fn set_access(
    driver: &Driver,
    hsa: &Hsa,
    range: AddressRange,
    device: DeviceId,
    access: Access,
) -> Result<()> {
    let permissions = match access {
        Access::None => 0,
        Access::Read => 1,
        Access::ReadWrite => 3,
    };
    let description = AccessDescription { permissions, agent: agent(driver, hsa, device)? };
    // SAFETY: the range is whole mappings, as the caller promises, and one description is given.
    let status =
        unsafe { (hsa.set_access)(range.base.as_ptr(), range.size.0 as usize, &raw const description, 1) };
    check("hsa_amd_vmem_set_access", status, || format!("{range}, {device}, {access}"))
}

fn check(call: &'static str, status: HsaStatus, context: impl FnOnce() -> String) -> Result<()> {
    if status == SUCCESS {
        return Ok(());
    }
    let name = format!("HSA status {:#x}", status.0).into();
    let source = DriverError { call, code: i64::from(status.0), name, description: "".into() };
    Err(Error::Driver { operation: "set access", source, context: context() })
}
