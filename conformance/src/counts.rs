//! Counts of the simulated HSA runtime below HIP. The tests of backend-hip use the same counts.
#![allow(unsafe_code)] // calls the simulation

use gpu_vmm_testkit::raw::loaded;

/// Numbers of reservations, allocations of physical memory and mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    reserved: usize,
    physical: usize,
    mapped: usize,
}

impl Counts {
    /// Returns `None` on real hardware, which has no such counts.
    pub(crate) fn now() -> Option<Self> {
        let hsa = loaded("libhsa-runtime64.so.1")?;
        let (mut reserved, mut physical, mut mapped) = (0, 0, 0);
        // SAFETY: the simulation's function of this name writes three counts.
        unsafe {
            let count =
                hsa.get::<unsafe extern "C" fn(*mut usize, *mut usize, *mut usize)>("hsa_sim_vmem_counts");
            count.ok()?(&raw mut reserved, &raw mut physical, &raw mut mapped);
        }
        Some(Self { reserved, physical, mapped })
    }

    /// Fails if the counts differ from those `before`, except for what HIP itself never releases: the memory of `imports` under
    /// the quirk `import-leaks`, and freed addresses under `free-races`.
    pub(crate) fn check(
        before: Option<Self>,
        imports: usize,
        has_quirk: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let (Some(before), Some(after)) = (before, Self::now()) else { return Ok(()) };
        let leaked = if has_quirk("import-leaks") { imports } else { 0 };
        let kept = if has_quirk("free-races") { after.reserved } else { before.reserved };
        let expected = Self { physical: before.physical + leaked, reserved: kept, ..before };
        if after == expected {
            Ok(())
        } else {
            Err(format!("left behind below HIP: {after:?} instead of {expected:?}"))
        }
    }

    /// Fails if addresses reserved after `first` are still reserved. Call it after `HipBackend::release_kept_addresses`, when
    /// all reservations are dropped.
    pub(crate) fn check_addresses(first: Option<Self>) -> Result<(), String> {
        let (Some(first), Some(last)) = (first, Self::now()) else { return Ok(()) };
        if last.reserved == first.reserved {
            Ok(())
        } else {
            Err(format!("reserved below HIP at the end: {last:?}, and at first {first:?}"))
        }
    }
}

/// Makes the simulated HSA runtime occupy the addresses that HIP frees next, or release them. Returns false without that
/// runtime.
pub(crate) fn take_freed(take: bool) -> bool {
    let Some(hsa) = loaded("libhsa-runtime64.so.1") else { return false };
    // SAFETY: the simulation's function of this name takes one number.
    unsafe {
        let function = hsa.get::<unsafe extern "C" fn(i32)>("hsa_sim_take_freed");
        function.map(|function| function(take.into())).is_ok()
    }
}
