//! The memory of pools, as NVTX's extension for memory describes it to a tool: compute-sanitizer then reports every access to memory
//! of a pool that lies in no block.
//!
//! Each mapped page of a pool is a heap, since NVIDIA's tools want a heap to be one allocation of the driver, and each block is a
//! region in the heap of every page that it touches. The records here find the heaps of a block, and the blocks of a page that is
//! mapped again. The types are those of NVIDIA's headers `nvtxExtTypes.h` and `nvToolsExtMem.h`.
#![allow(unsafe_code)]

use super::nvtx::{self, Domain, Nvtx, VERSION};
use crate::types::{Address, AddressRange, Bytes};
use std::collections::BTreeMap;
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
    /// The end of each mapped page, and the tool's heap.
    pages: BTreeMap<u64, (u64, Heap)>,
    /// The end of each block.
    blocks: BTreeMap<u64, u64>,
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

/// Reports that memory is mapped at a page of a pool. No access to it is valid outside of blocks.
pub fn page_mapped(page: AddressRange) {
    let Some(tool) = tool() else { return };
    let mut records = tool.records();
    let (start, end) = (page.base.0, page.base.0 + page.size.0);
    let heap = tool.register_heap(start, end);
    records.pages.insert(start, (end, heap));
    let blocks = overlapping(&records.blocks, (start, end), |end| *end);
    blocks.for_each(|(from, to, _)| tool.register(heap, from, to));
}

/// Reports that the pages in a range are about to be unmapped.
pub fn pages_unmapped(range: AddressRange) {
    let Some(tool) = tool() else { return };
    let mut records = tool.records();
    let end = range.base.0 + range.size.0;
    let gone: Vec<u64> = records.pages.range(range.base.0..end).map(|(start, _)| *start).collect();
    for start in gone {
        let Some((end, heap)) = records.pages.remove(&start) else { continue };
        overlapping(&records.blocks, (start, end), |end| *end).for_each(|(from, ..)| tool.unregister(from));
        // SAFETY: the tool has made the heap, which is not used any more.
        unsafe { (tool.heap_unregister)(tool.domain, heap) };
    }
}

/// Reports a new block of a pool: its first bytes, which the caller asked for, can be used.
pub fn block_allocated(address: Address, size: Bytes) {
    let Some(tool) = tool() else { return };
    let mut records = tool.records();
    let (start, end) = (address.0, address.0 + size.0);
    records.blocks.insert(start, end);
    let pages = overlapping(&records.pages, (start, end), |(end, _)| *end);
    pages.for_each(|(from, to, (_, heap))| tool.register(*heap, from, to));
}

/// Reports that a block is about to be freed.
pub fn block_freed(address: Address) {
    let Some(tool) = tool() else { return };
    let mut records = tool.records();
    let Some(end) = records.blocks.remove(&address.0) else { return };
    let pages = overlapping(&records.pages, (address.0, end), |(end, _)| *end);
    pages.for_each(|(from, ..)| tool.unregister(from));
}

/// Returns the ranges of a map that overlap with `range`, which it keeps by their first addresses: the common part of each.
fn overlapping<T>(
    map: &BTreeMap<u64, T>,
    range: (u64, u64),
    end_of: impl Fn(&T) -> u64,
) -> impl Iterator<Item = (u64, u64, &T)> {
    let (start, end) = range;
    let first = map.range(..=start).next_back().map_or(start, |(first, _)| *first);
    map.range(first..end.max(first)).filter_map(move |(at, value)| {
        let (from, to) = (start.max(*at), end.min(end_of(value)));
        (from < to).then_some((from, to, value))
    })
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

    fn register(&self, heap: Heap, start: u64, end: u64) {
        let range = RangeOf { size: (end - start) as usize, address: start as *const c_void };
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
