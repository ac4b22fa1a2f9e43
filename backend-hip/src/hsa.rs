//! Functions of ROCr, the HSA runtime below HIP, for two tasks that HIP itself fails at.
//!
//! The first is a descriptor of mapped memory: HIP's function leaks the memory (quirk `range-leaks`). The second is
//! access: HIP 7.0 to 7.2 refuse valid `hipMemSetAccess` calls (quirk `access-sums`). After its check HIP only calls
//! `hsa_amd_vmem_set_access` with the same range and keeps no record, so this module calls that function. HIP numbers
//! its devices itself, so the HSA agent of a device is read from an allocation that HIP made on it.
#![allow(unsafe_code)] // calls into ROCr

use crate::driver::Driver;
use crate::ffi::hsa::{
    AccessDescription, Agent, Hsa, HsaStatus, NEAREST_CPU, POINTER_TYPE_HSA, PointerInfo, SUCCESS,
};
#[cfg(unix)]
use crate::ffi::hsa::{EXPORT, MemoryHandle};
use gpu_vmm_core::{Access, AddressRange, Bytes, Detail, DeviceId, DriverError, Error, Operation, Result};
use std::ptr::{null, null_mut};

#[cfg(unix)]
use crate::descriptor::exported;
#[cfg(unix)]
use std::os::fd::OwnedFd;

const SET_ACCESS: Operation = Operation::SetAccess;
/// Returns the HSA agent of a device. The first call finds it.
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
    // Only of a plain allocation: ROCr 7.14 and 7.15 crash if the memory is imported (ROCm/rocm-systems #11449, PR #11592).
    // SAFETY: `info` has the size that it states; without an allocator ROCr builds no list of agents.
    let status = unsafe { (hsa.pointer_info)(at.as_ptr(), &raw mut info, null(), null_mut(), null_mut()) };
    // SAFETY: allocated above, and not passed on.
    unsafe { driver.free_plain(SET_ACCESS, device, at, size) }?;
    check(SET_ACCESS, "hsa_amd_pointer_info", status, || format!("{device}"))?;
    if info.kind != POINTER_TYPE_HSA || info.owner == Agent(0) {
        let what =
            format!("hsa_amd_pointer_info returned kind {} and no owner for memory on {device}", info.kind);
        return Err(Error::new(SET_ACCESS, Detail::DriverContractViolated { what }));
    }
    Ok(*known.get_or_init(|| info.owner))
}

/// Returns the host's agent: the CPU nearest to device 0. ROCr treats all CPUs alike here.
fn host(driver: &Driver, hsa: &Hsa) -> Result<Agent> {
    let gpu = agent(driver, hsa, DeviceId(0))?;
    let mut cpu = Agent(0);
    // SAFETY: the agent is ROCr's, and the attribute's value is one agent.
    let status = unsafe { (hsa.agent_info)(gpu, NEAREST_CPU, &raw mut cpu) };
    check(SET_ACCESS, "hsa_agent_get_info", status, || "the CPU nearest to device 0".to_owned())?;
    Ok(cpu)
}

/// Does what `hipMemSetAccess` does after its check.
///
/// # Safety
///
/// `range` consists of one or more whole mappings in one reservation, without gaps between them.
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
    // SAFETY: the range consists of whole mappings, as the caller promises, and the count of descriptions is one.
    let status =
        unsafe { (hsa.set_access)(range.base.as_ptr(), range.size.0 as usize, &raw const description, 1) };
    check(SET_ACCESS, "hsa_amd_vmem_set_access", status, || format!("{range}, {device}, {access}"))
}

/// Exports the memory of a mapping as a new descriptor, which is closed on exec.
///
/// # Safety
///
/// `mapping` is one whole mapping.
#[cfg(unix)]
pub(crate) unsafe fn export(
    driver: &Driver,
    operation: Operation,
    hsa: &Hsa,
    mapping: AddressRange,
) -> Result<OwnedFd> {
    let mut memory = MemoryHandle(0);
    // SAFETY: a mapping begins there; its memory gains a reference.
    let status = unsafe { (hsa.retain)(&raw mut memory, mapping.base.as_ptr()) };
    check(operation, "hsa_amd_vmem_retain_alloc_handle", status, || mapping.to_string())?;
    let export = || {
        let mut fd = -1;
        // SAFETY: the memory is alive, and ROCr writes one descriptor.
        let status = unsafe { (hsa.export)(&raw mut fd, memory, 0) };
        check(operation, EXPORT, status, || mapping.to_string()).map(|()| fd)
    };
    // SAFETY: ROCr's export of memory that is released below.
    let exported = unsafe { exported(driver, operation, EXPORT, export) };
    // SAFETY: releases the reference that was added above.
    let status = unsafe { (hsa.release)(memory) };
    check(operation, "hsa_amd_vmem_handle_release", status, || mapping.to_string())?;
    exported
}

/// True for an export that ROCr itself refused, but not for a lack of resources.
#[cfg(unix)]
pub(crate) fn is_refused_export(error: &Error) -> bool {
    const OUT_OF_RESOURCES: i64 = 0x1008;
    error.driver_error().is_some_and(|source| source.call == EXPORT && source.code != OUT_OF_RESOURCES)
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
