//! NVTX version 3, by which NVIDIA's tools receive ranges.
//!
//! NVTX is no library: a program hands the tool empty slots, into which the tool writes the functions that it wants to be called. A
//! tool names itself in the environment variable `NVTX_INJECTION64_PATH`. The types here are from NVIDIA's headers
//! `nvtxTypes.h` and `nvToolsExt.h`.
#![allow(unsafe_code)]

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// `NVTX_VERSION`.
pub(super) const VERSION: u16 = 3;

/// The number of slots of each module: `NVTX_CBID_*_SIZE`.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// `NVTX_CB_MODULE_CORE2`, and its slots.
const CORE2: usize = 5;
const DOMAIN_RANGE_PUSH_EX: usize = 4;
const DOMAIN_RANGE_POP: usize = 5;
const DOMAIN_CREATE_A: usize = 12;

/// The functions that a tool has written.
static SLOTS: [[AtomicPtr<c_void>; 16]; SIZES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; 16] }; SIZES.len()];

/// `NvtxFunctionPointer*`: the address of a slot.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct SlotAddress(*const AtomicPtr<c_void>);

// SAFETY: the slots live as long as the process and are atomic.
unsafe impl Send for SlotAddress {}
// SAFETY: as above.
unsafe impl Sync for SlotAddress {}

/// The addresses of the slots of each module. The slot with number 0 and the one behind the last are null.
static TABLES: OnceLock<[[SlotAddress; 17]; SIZES.len()]> = OnceLock::new();

fn tables() -> &'static [[SlotAddress; 17]; SIZES.len()] {
    TABLES.get_or_init(|| {
        std::array::from_fn(|module| {
            std::array::from_fn(|slot| match (1..SIZES[module]).contains(&slot) {
                true => SlotAddress(&raw const SLOTS[module][slot]),
                false => SlotAddress(std::ptr::null()),
            })
        })
    })
}

/// `NvtxExportTableCallbacks`.
#[derive(Debug)]
#[repr(C)]
struct Callbacks {
    size: usize,
    get_module_function_table: extern "C" fn(c_uint, *mut *const SlotAddress, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[derive(Debug)]
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks =
    Callbacks { size: size_of::<Callbacks>(), get_module_function_table: function_table };
static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: VERSION as u32,
    reserved: 0,
    set_injection_version: ignore_version,
};

extern "C" fn ignore_version(_version: u32) {}

extern "C" fn function_table(module: c_uint, table: *mut *const SlotAddress, size: *mut c_uint) -> c_int {
    let module = module as usize;
    if module == 0 || module >= SIZES.len() {
        return 0;
    }
    // SAFETY: each pointer is null or the tool's own variable.
    unsafe {
        if !table.is_null() {
            *table = tables()[module].as_ptr();
        }
        if !size.is_null() {
            *size = SIZES[module] as c_uint;
        }
    }
    1
}

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

/// `nvtxEventAttributes_t`, with a text as its message.
#[derive(Debug)]
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    /// 1: `NVTX_MESSAGE_TYPE_ASCII`.
    message_type: i32,
    message: *const c_char,
}

/// A tool that is attached to the process.
#[derive(Debug)]
pub(super) struct Nvtx {
    /// The tool's handle for gpu-vmm's ranges, or null.
    pub(super) domain: Domain,
    push: Option<unsafe extern "C" fn(Domain, *const Attributes) -> c_int>,
    pop: Option<unsafe extern "C" fn(Domain) -> c_int>,
    /// The tool, which stays loaded.
    pub(super) library: Library,
}

/// `nvtxDomainHandle_t`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Domain(*mut c_void);

// SAFETY: a domain may be used from all threads.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// True once a tool may be loaded.
static ALLOWED: AtomicBool = AtomicBool::new(false);

/// Allows that a tool is loaded. A backend calls this when `cuInit` has succeeded: compute-sanitizer crashes the process if its
/// library is loaded before NVIDIA's driver has loaded it.
pub fn allow_nvtx() {
    ALLOWED.store(true, Ordering::Release);
}

/// Returns the tool that the environment names, which is loaded once. `None` if there is none, if it refuses, or if no tool may be
/// loaded yet.
pub(super) fn attached() -> Option<&'static Nvtx> {
    static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();
    if !ALLOWED.load(Ordering::Acquire) {
        return None;
    }
    NVTX.get_or_init(load).as_ref()
}

fn load() -> Option<Nvtx> {
    let variable = if size_of::<usize>() == 8 { "NVTX_INJECTION64_PATH" } else { "NVTX_INJECTION32_PATH" };
    let path = std::env::var_os(variable)?;
    // SAFETY: the environment names a tool that the user wants in this process.
    let library = unsafe { Library::new(path) }.ok()?;
    type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: the name and the type are NVTX's.
    let is_ready = unsafe {
        let initialize = library.get::<Initialize>(b"InitializeInjectionNvtx2").ok()?;
        initialize(export_table) != 0
    };
    if !is_ready {
        return None;
    }
    let slot = |slot: usize| {
        let function = SLOTS[CORE2][slot].load(Ordering::Acquire);
        (!function.is_null()).then_some(function)
    };
    // SAFETY: the tool has written functions of these types into the slots.
    let (create, push, pop) = unsafe {
        use std::mem::transmute;
        (
            slot(DOMAIN_CREATE_A).map(|create| {
                transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> Domain>(create)
            }),
            slot(DOMAIN_RANGE_PUSH_EX).map(|push| {
                transmute::<*mut c_void, unsafe extern "C" fn(Domain, *const Attributes) -> c_int>(push)
            }),
            slot(DOMAIN_RANGE_POP)
                .map(|pop| transmute::<*mut c_void, unsafe extern "C" fn(Domain) -> c_int>(pop)),
        )
    };
    // SAFETY: the name ends with a zero.
    let domain = create.map_or(Domain(null_mut()), |create| unsafe { create(c"gpu-vmm".as_ptr()) });
    Some(Nvtx { domain, push, pop, library })
}

impl Nvtx {
    pub(super) fn push(&self, name: &CStr) {
        let Some(push) = self.push else { return };
        let attributes = Attributes {
            version: VERSION,
            size: size_of::<Attributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: 1,
            message: name.as_ptr(),
        };
        // SAFETY: the attributes and the name, which ends with a zero, are valid during the call.
        unsafe { push(self.domain, &raw const attributes) };
    }

    pub(super) fn pop(&self) {
        if let Some(pop) = self.pop {
            // SAFETY: this thread has begun a range of this domain.
            unsafe { pop(self.domain) };
        }
    }
}
