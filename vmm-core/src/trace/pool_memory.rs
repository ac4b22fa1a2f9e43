//! The memory of pools, as NVTX's extension for memory describes it to a tool: compute-sanitizer then reports every access to memory
//! of a pool that lies in no block.
//!
//! Each chunk of a pool is a heap, and each block a region of it. compute-sanitizer 2025.3.1 accepts a heap in memory of `cuMemAlloc`
//! alone: it refuses memory of `cuMemMap` and of `cuMemAllocAsync` as an invalid parameter (NVIDIA H100, driver 580.159.04, 2026-11-25,
//! by a program of NVIDIA's own headers). So only pools of plain allocations report theirs. The types are from NVIDIA's headers
//! `nvtxExtTypes.h` and `nvToolsExtMem.h`.
#![allow(unsafe_code)]

use super::nvtx::{self, Domain, Nvtx, VERSION};
use crate::types::{Address, AddressRange, Bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `NVTX_EXT_MODULEID_MEM` and `NVTX_EXT_COMPATID_MEM`.
const MODULE: u16 = 1;
const COMPATIBLE: u16 = 0x0102;
/// The numbers of the functions: `NVTX3EXT_CBID_*`.
const HEAP_REGISTER: usize = 0;
const HEAP_UNREGISTER: usize = 1;
const REGIONS_REGISTER: usize = 3;
const REGIONS_UNREGISTER: usize = 5;
/// Slots with these values have no function: `NVTX_EXTENSION_FRESH` and `NVTX_EXTENSION_DISABLED`.
const NO_FUNCTION: [isize; 2] = [0, 1];
/// `NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR`, `NVTX_MEM_TYPE_VIRTUAL_ADDRESS`, `NVTX_MEM_REGION_REF_TYPE_POINTER`.
const SUB_ALLOCATOR: u32 = 1;
const VIRTUAL_ADDRESS: u32 = 1;
const BY_POINTER: u32 = 1;

/// The functions that a tool has written.
static SLOTS: [AtomicIsize; 63] = [const { AtomicIsize::new(0) }; 63];

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
struct Segment {
    id: usize,
    count: usize,
    slots: *const AtomicIsize,
}

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
struct ModuleInfo {
    version: u16,
    size: u16,
    module: u16,
    compatible: u16,
    segment_count: usize,
    segments: *mut Segment,
    get_export_function: Option<extern "C" fn(u32) -> isize>,
    info: *const c_void,
}

/// `nvtxMemVirtualRangeDesc_t`.
#[repr(C)]
struct RangeOf {
    size: usize,
    address: *const c_void,
}

/// `nvtxMemHeapDesc_t`.
#[repr(C)]
struct HeapOf {
    compatible: u16,
    size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_size: usize,
    range: *const RangeOf,
    category: u32,
    message_type: u32,
    message: *const c_void,
}

/// `nvtxMemRegionsRegisterBatch_t`.
#[repr(C)]
struct Register {
    compatible: u16,
    size: u16,
    kind: u32,
    heap: Heap,
    count: usize,
    range_size: usize,
    ranges: *const RangeOf,
    handles: *mut c_void,
}

/// `nvtxMemRegionsUnregisterBatch_t`.
#[repr(C)]
struct Unregister {
    compatible: u16,
    size: u16,
    kind: u32,
    count: usize,
    reference_size: usize,
    references: *const *const c_void,
}

/// `nvtxMemHeapHandle_t`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Heap(*mut c_void);

// SAFETY: a heap may be used from all threads.
unsafe impl Send for Heap {}

type HeapRegister = unsafe extern "C" fn(Domain, *const HeapOf) -> Heap;
type HeapUnregister = unsafe extern "C" fn(Domain, Heap);
type RegionsRegister = unsafe extern "C" fn(Domain, *const Register);
type RegionsUnregister = unsafe extern "C" fn(Domain, *const Unregister);

/// A tool that wants to know about memory.
struct Tool {
    domain: Domain,
    heap_register: HeapRegister,
    heap_unregister: HeapUnregister,
    regions_register: RegionsRegister,
    regions_unregister: RegionsUnregister,
    records: Mutex<Records>,
}

/// The memory that the tool knows, by first addresses.
#[derive(Default)]
struct Records {
    /// The end of each chunk, and the tool's heap.
    chunks: BTreeMap<u64, (u64, Heap)>,
    /// The blocks in chunks.
    blocks: BTreeSet<u64>,
}

impl Records {
    /// Returns the heap of the chunk that contains an address.
    fn heap_of(&self, address: u64) -> Option<Heap> {
        let (_, (end, heap)) = self.chunks.range(..=address).next_back()?;
        (address < *end).then_some(*heap)
    }
}

/// Returns the tool, which is asked once.
fn tool() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    let nvtx = nvtx::attached()?;
    TOOL.get_or_init(|| load(nvtx)).as_ref()
}

fn load(nvtx: &Nvtx) -> Option<Tool> {
    let mut segment = Segment { id: 1, count: SLOTS.len(), slots: SLOTS.as_ptr() };
    let mut info = ModuleInfo {
        version: VERSION,
        size: size_of::<ModuleInfo>() as u16,
        module: MODULE,
        compatible: COMPATIBLE,
        segment_count: 1,
        segments: &raw mut segment,
        get_export_function: None,
        info: null(),
    };
    type Initialize = unsafe extern "C" fn(*mut ModuleInfo) -> c_int;
    // SAFETY: the name and the type are NVTX's, and the tool reads the description during the call.
    let is_ready = unsafe {
        let initialize = nvtx.library.get::<Initialize>(b"InitializeInjectionNvtxExtension").ok()?;
        initialize(&raw mut info) != 0
    };
    let slot = |slot: usize| {
        let function = SLOTS[slot].load(Ordering::Acquire);
        (is_ready && !NO_FUNCTION.contains(&function)).then_some(function as *const c_void)
    };
    use std::mem::transmute;
    // SAFETY: the tool has written functions of these types into the slots.
    unsafe {
        Some(Tool {
            domain: nvtx.domain,
            heap_register: transmute::<*const c_void, HeapRegister>(slot(HEAP_REGISTER)?),
            heap_unregister: transmute::<*const c_void, HeapUnregister>(slot(HEAP_UNREGISTER)?),
            regions_register: transmute::<*const c_void, RegionsRegister>(slot(REGIONS_REGISTER)?),
            regions_unregister: transmute::<*const c_void, RegionsUnregister>(slot(REGIONS_UNREGISTER)?),
            records: Mutex::default(),
        })
    }
}

/// Returns true if a tool wants to know about memory.
pub fn is_watched() -> bool {
    tool().is_some()
}

/// Reports a new chunk of a pool: a plain allocation. No access to it is valid outside of blocks.
pub fn chunk_allocated(chunk: AddressRange) {
    let Some(tool) = tool() else { return };
    let end = chunk.base.0 + chunk.size.0;
    let heap = tool.register_heap(chunk.base.0, end);
    if !heap.0.is_null() {
        tool.records().chunks.insert(chunk.base.0, (end, heap));
    }
}

/// Reports that a chunk without blocks is about to be freed. Does nothing for other memory.
pub fn chunk_freed(chunk: AddressRange) {
    let Some(tool) = tool() else { return };
    let gone = tool.records().chunks.remove(&chunk.base.0);
    if let Some((_, heap)) = gone {
        // SAFETY: the tool has made the heap, which is not used any more.
        unsafe { (tool.heap_unregister)(tool.domain, heap) };
    }
}

/// Reports a new block: its first bytes, which the caller asked for, can be used. Does nothing if it lies in no chunk.
pub fn block_allocated(address: Address, size: Bytes) {
    let Some(tool) = tool() else { return };
    let mut records = tool.records();
    if let Some(heap) = records.heap_of(address.0) {
        tool.register(heap, address.0, size.0);
        records.blocks.insert(address.0);
    }
}

/// Reports that a block is about to be freed.
pub fn block_freed(address: Address) {
    let Some(tool) = tool() else { return };
    if tool.records().blocks.remove(&address.0) {
        tool.unregister(address.0);
    }
}

impl Tool {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register_heap(&self, start: u64, end: u64) -> Heap {
        let range = RangeOf { size: (end - start) as usize, address: start as *const c_void };
        let heap = HeapOf {
            compatible: COMPATIBLE,
            size: size_of::<HeapOf>() as u16,
            reserved: 0,
            usage: SUB_ALLOCATOR,
            kind: VIRTUAL_ADDRESS,
            range_size: size_of::<RangeOf>(),
            range: &raw const range,
            category: 0,
            message_type: 0,
            message: null(),
        };
        // SAFETY: the description is valid during the call.
        unsafe { (self.heap_register)(self.domain, &raw const heap) }
    }

    fn register(&self, heap: Heap, start: u64, size: u64) {
        let range = RangeOf { size: size as usize, address: start as *const c_void };
        let register = Register {
            compatible: COMPATIBLE,
            size: size_of::<Register>() as u16,
            kind: VIRTUAL_ADDRESS,
            heap,
            count: 1,
            range_size: size_of::<RangeOf>(),
            ranges: &raw const range,
            handles: null_mut(),
        };
        // SAFETY: the description is valid during the call, and the tool has made the heap.
        unsafe { (self.regions_register)(self.domain, &raw const register) };
    }

    fn unregister(&self, start: u64) {
        let reference = start as *const c_void;
        let unregister = Unregister {
            compatible: COMPATIBLE,
            size: size_of::<Unregister>() as u16,
            kind: BY_POINTER,
            count: 1,
            reference_size: size_of::<*const c_void>(),
            references: &raw const reference,
        };
        // SAFETY: the description is valid during the call.
        unsafe { (self.regions_unregister)(self.domain, &raw const unregister) };
    }
}
