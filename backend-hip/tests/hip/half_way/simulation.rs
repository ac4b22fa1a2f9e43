//! Calls into the simulated HSA runtime that make its functions fail.

use gpu_vmm_testkit::raw::loaded;
use std::ffi::{CStr, c_char};
use std::ptr::null;

/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`, which most functions may return.
const STATUS: u32 = 0x1008;

/// The simulation's functions.
pub(super) struct Simulation {
    name: unsafe extern "C" fn(usize) -> *const c_char,
    count: unsafe extern "C" fn(*const c_char) -> u64,
    fail: unsafe extern "C" fn(*const c_char, u16, u32) -> u32,
}

impl Simulation {
    /// Returns the simulation; `None` on real hardware, where no call can be made to fail.
    pub(super) fn find() -> Option<Self> {
        let hsa = loaded("libhsa-runtime64.so.1")?;
        // SAFETY: the simulation's functions of these names have these types.
        unsafe {
            Some(Self {
                name: *hsa.get("hsa_sim_call_name").ok()?,
                count: *hsa.get("hsa_sim_call_count").ok()?,
                fail: *hsa.get("hsa_sim_fail").ok()?,
            })
        }
    }

    /// Returns the functions that are counted.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static CStr> {
        // SAFETY: the name at a place is null or a constant text.
        (0..).map_while(|place| unsafe {
            let name = (self.name)(place);
            (!name.is_null()).then(|| CStr::from_ptr(name))
        })
    }

    pub(super) fn count(&self, name: &CStr) -> u64 {
        // SAFETY: the name ends with a zero byte.
        unsafe { (self.count)(name.as_ptr()) }
    }

    pub(super) fn fail(&self, name: &CStr, after: u16) {
        // SAFETY: the name ends with a zero byte.
        assert_eq!(unsafe { (self.fail)(name.as_ptr(), after, STATUS) }, 1);
    }

    /// Makes no more calls fail.
    pub(super) fn stop(&self) {
        // SAFETY: null is no name.
        unsafe { (self.fail)(null(), 0, 0) };
    }
}
