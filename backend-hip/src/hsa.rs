//! Some functions of ROCr, the HSA runtime below HIP, for the two things in which HIP is in the way.
//!
//! One is a descriptor of mapped memory, whose function in HIP loses the memory (quirk `range-leaks`). The other is access:
//! HIP 7.0 to 7.2 refuse `hipMemSetAccess` on mappings that it could well set (quirk `access-sums`). Behind its check HIP does nothing but call
//! `hsa_amd_vmem_set_access` with the same range, and keeps no record of its own; so that is what is called here. Which
//! HSA agent a HIP device is, is asked of memory that HIP has allocated on it, since HIP numbers its devices itself.
#![allow(unsafe_code)] // calls into ROCr

use crate::driver::Driver;
use crate::loader::Library;
use gpu_vmm_core::{Access, AddressRange, Bytes, Detail, DeviceId, DriverError, Error, Operation, Result};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

#[cfg(unix)]
use crate::share;
#[cfg(unix)]
use std::os::fd::OwnedFd;

/// `hsa_status_t`: 0 is success.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct HsaStatus(u32);

/// `hsa_agent_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agent(u64);

/// `hsa_amd_vmem_alloc_handle_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct MemoryHandle(u64);

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

type Retain = unsafe extern "C" fn(*mut MemoryHandle, *const c_void) -> HsaStatus;
type Export = unsafe extern "C" fn(*mut c_int, MemoryHandle, u64) -> HsaStatus;
type Release = unsafe extern "C" fn(MemoryHandle) -> HsaStatus;
type GetAgentInfo = unsafe extern "C" fn(Agent, u32, *mut Agent) -> HsaStatus;

/// What gives a descriptor of memory.
pub(crate) const EXPORT: &str = "hsa_amd_vmem_export_shareable_handle";
const SET_ACCESS: Operation = Operation::SetAccess;
const SUCCESS: HsaStatus = HsaStatus(0);
/// `HSA_AMD_AGENT_INFO_NEAREST_CPU`, whose value is an agent.
const NEAREST_CPU: u32 = 0xA113;
/// `HSA_EXT_POINTER_TYPE_HSA`: an allocation of ROCr's.
const POINTER_TYPE_HSA: u32 = 1;

/// What is used of ROCr.
#[cfg_attr(not(unix), allow(dead_code))] // descriptors
pub(crate) struct Hsa {
    set_access: SetAccess,
    pointer_info: GetPointerInfo,
    agent_info: GetAgentInfo,
    retain: Retain,
    export: Export,
    release: Release,
}

impl Hsa {
    /// Looks the functions up through HIP, which depends on ROCr: so they are those of the very copy that HIP uses.
    pub(crate) fn find(hip: &Library) -> Option<Self> {
        // SAFETY: ROCr's functions of these names have these types since they exist (interface 1.4 and 1.0; the last one
        // writes what is asked for, and is asked for agents alone), and HIP is never unloaded, nor what it depends on.
        unsafe {
            Some(Self {
                set_access: *hip.get("hsa_amd_vmem_set_access").ok()?,
                pointer_info: *hip.get("hsa_amd_pointer_info").ok()?,
                agent_info: *hip.get("hsa_agent_get_info").ok()?,
                retain: *hip.get("hsa_amd_vmem_retain_alloc_handle").ok()?,
                export: *hip.get(EXPORT).ok()?,
                release: *hip.get("hsa_amd_vmem_handle_release").ok()?,
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
    let at = driver.allocate_plain(SET_ACCESS, device, size)?;
    // SAFETY: the structure is integers and pointers, for which zero is a value.
    let mut info: PointerInfo = unsafe { std::mem::zeroed() };
    info.size = size_of::<PointerInfo>() as u32;
    // SAFETY: `info` has the size that it says; without an allocator ROCr makes no list of agents.
    let status = unsafe { (hsa.pointer_info)(at.as_ptr(), &raw mut info, null(), null_mut(), null_mut()) };
    // SAFETY: allocated above, given to nobody.
    unsafe { driver.free_plain(SET_ACCESS, device, at, size) }?;
    check(SET_ACCESS, "hsa_amd_pointer_info", status, || format!("{device}"))?;
    if info.kind != POINTER_TYPE_HSA || info.owner == Agent(0) {
        let what = format!("hsa_amd_pointer_info says kind {} and no owner of memory on {device}", info.kind);
        return Err(Error::new(SET_ACCESS, Detail::DriverContractViolated { what }));
    }
    Ok(*known.get_or_init(|| info.owner))
}

/// The agent that is the host: the CPU nearest to the first device. ROCr makes no difference between CPUs here.
fn host(driver: &Driver, hsa: &Hsa) -> Result<Agent> {
    let gpu = agent(driver, hsa, DeviceId(0))?;
    let mut cpu = Agent(0);
    // SAFETY: the agent is ROCr's, and the value of this attribute is one agent.
    let status = unsafe { (hsa.agent_info)(gpu, NEAREST_CPU, &raw mut cpu) };
    check(SET_ACCESS, "hsa_agent_get_info", status, || "the CPU nearest to device 0".to_owned())?;
    Ok(cpu)
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
    let agent = if device.is_host() { host(driver, hsa)? } else { agent(driver, hsa, device)? };
    let description = AccessDescription { permissions, agent };
    // SAFETY: the range is whole mappings, as the caller promises, and one description is given.
    let status =
        unsafe { (hsa.set_access)(range.base.as_ptr(), range.size.0 as usize, &raw const description, 1) };
    check(SET_ACCESS, "hsa_amd_vmem_set_access", status, || format!("{range}, {device}, {access}"))
}

/// A new descriptor of the memory of a mapping. It is closed on exec.
///
/// # Safety
///
/// `mapping` is one whole mapping.
#[cfg(unix)]
pub(crate) unsafe fn export(operation: Operation, hsa: &Hsa, mapping: AddressRange) -> Result<OwnedFd> {
    let mut memory = MemoryHandle(0);
    // SAFETY: a mapping begins there, whose memory gets a reference more.
    let status = unsafe { (hsa.retain)(&raw mut memory, mapping.base.as_ptr()) };
    check(operation, "hsa_amd_vmem_retain_alloc_handle", status, || mapping.to_string())?;
    let mut fd = -1;
    // SAFETY: the memory is alive, and one descriptor is written.
    let status = unsafe { (hsa.export)(&raw mut fd, memory, 0) };
    let exported = check(operation, EXPORT, status, || mapping.to_string())
        // SAFETY: ROCr has just given it.
        .and_then(|()| unsafe { share::taken(operation, EXPORT, fd) });
    // SAFETY: the reference is the one that was added above.
    let status = unsafe { (hsa.release)(memory) };
    check(operation, "hsa_amd_vmem_handle_release", status, || mapping.to_string())?;
    exported
}

fn check(
    operation: Operation,
    call: &'static str,
    status: HsaStatus,
    context: impl FnOnce() -> String,
) -> Result<()> {
    if status == SUCCESS {
        return Ok(());
    }
    let name = format!("HSA status {:#x}", status.0).into();
    let source = DriverError { call, code: i64::from(status.0), name, description: "".into() };
    Err(Error::new(operation, Detail::Driver { source, context: context() }))
}
