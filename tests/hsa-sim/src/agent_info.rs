//! Attributes of agents. Those that HIP uses have the values of a gfx90a card (MI200).
//!
//! Rules: `hsa_agent_info_t` in `hsa.h`, `hsa_amd_agent_info_t` in `hsa_ext_amd.h`.
#![allow(unsafe_code)] // exported to C, with pointers for the results

use crate::abi::{Agent, Isa, Status};
use crate::agent::{all, handle, index};
use crate::memory;
use crate::settings::settings;
use crate::system::Answer;
use crate::work::now;
use std::ffi::c_void;

const ISA: Isa = Isa(0x15A0_0001);

/// Returns the identifier of an agent, which is the same in every process; `XX` for real agents without one.
fn uuid(index: usize) -> String {
    let kind = if index > 0 { "GPU" } else { "CPU" };
    if settings().uuids { format!("{kind}-{:016x}", 0x517 + index) } else { format!("{kind}-XX") }
}

fn answer(index: usize, attribute: u32) -> Option<Answer> {
    let gpu = index > 0;
    let number = index as u32;
    Some(match attribute {
        0 if gpu => Answer::text(settings().gfx.split(':').next().unwrap_or_default(), 64), // NAME
        0 => Answer::text("simulated CPU", 64),
        1 => Answer::text(if gpu { "AMD" } else { "CPU" }, 64), // VENDOR_NAME
        2 => 1u32.into(),                                       // FEATURE: kernel dispatch
        3 => 1u32.into(),                                       // MACHINE_MODEL: large
        4 => u32::from(!gpu).into(),                            // PROFILE: base, full
        5 => 2u32.into(),                                       // DEFAULT_FLOAT_ROUNDING_MODE: near
        6 => if gpu { 64u32 } else { 0 }.into(),                // WAVEFRONT_SIZE
        7 => [1024u16; 3].into(),                               // WORKGROUP_MAX_DIM
        8 => 1024u32.into(),                                    // WORKGROUP_MAX_SIZE
        9 => [u32::MAX, 65535, 65535].into(),                   // GRID_MAX_DIM
        10 => u32::MAX.into(),                                  // GRID_MAX_SIZE
        11 => 32u32.into(),                                     // FBARRIER_MAX_SIZE
        12 => if gpu { 128u32 } else { 0 }.into(),              // QUEUES_MAX
        13 => 64u32.into(),                                     // QUEUE_MIN_SIZE
        14 => 131_072_u32.into(),                               // QUEUE_MAX_SIZE
        15 => 0u32.into(),                                      // QUEUE_TYPE: several producers
        16 => number.into(),                                    // NODE
        17 => u32::from(gpu).into(),                            // DEVICE: CPU, GPU
        18 => [16u32 << 10, 8 << 20, 0, 0].into(),              // CACHE_SIZE
        19 => if gpu { ISA.0 } else { 0 }.into(),               // ISA
        20 => [0u8; 128].into(),                                // EXTENSIONS: none
        21 | 22 => 1u16.into(),                                 // VERSION_MAJOR, VERSION_MINOR
        24 => true.into(),                                      // FAST_F16_OPERATION
        0xA000 => 0x740C_u32.into(),                            // CHIP_ID
        0xA001 => 64u32.into(),                                 // CACHELINE_SIZE
        0xA002 | 0xA014 => 104u32.into(),                       // (COOPERATIVE_)COMPUTE_UNIT_COUNT
        0xA003 => 1700u32.into(),                               // MAX_CLOCK_FREQUENCY
        0xA004 | 0xA112 => number.into(),                       // DRIVER_NODE_ID, DRIVER_UID
        0xA005 => 4u32.into(),                                  // MAX_ADDRESS_WATCH_POINTS
        0xA006 => (number << 8 | 8).into(),                     // BDFID
        0xA007 => 4096u32.into(),                               // MEMORY_WIDTH
        0xA008 => 1600u32.into(),                               // MEMORY_MAX_FREQUENCY
        0xA009 if gpu => Answer::text("Simulated GPU", 64),     // PRODUCT_NAME
        0xA009 => Answer::text("CPU", 64),
        0xA00A => 32u32.into(),                                // MAX_WAVES_PER_CU
        0xA00B => 4u32.into(),                                 // NUM_SIMDS_PER_CU
        0xA00C => 8u32.into(),                                 // NUM_SHADER_ENGINES
        0xA00D => 1u32.into(),                                 // NUM_SHADER_ARRAYS_PER_SE
        0xA00E => [0u64; 2].into(),                            // HDP_FLUSH: none
        0xA00F => 0u32.into(),                                 // DOMAIN
        0xA010 => false.into(),                                // COOPERATIVE_QUEUES
        0xA011 => Answer::text(&uuid(index), 21),              // UUID
        0xA012 => 1u32.into(),                                 // ASIC_REVISION
        0xA013 => settings().large_bar.into(),                 // SVM_DIRECT_HOST_ACCESS
        0xA015 => (memory::available(index) as u64).into(),    // MEMORY_AVAIL
        0xA016 => 100_000_000_u64.into(),                      // TIMESTAMP_FREQUENCY
        0xA107 => 141u32.into(),                               // ASIC_FAMILY_ID
        0xA108 | 0xA109 => 1u32.into(),                        // UCODE_VERSION, SDMA_UCODE_VERSION
        0xA10A => 2u32.into(),                                 // NUM_SDMA_ENG
        0xA10B => 0u32.into(),                                 // NUM_SDMA_XGMI_ENG
        0xA110 => 0u32.into(),                                 // IOMMU_SUPPORT
        0xA111 => 1u32.into(),                                 // NUM_XCC
        0xA113 => handle(0).0.into(),                          // NEAREST_CPU
        0xA114 | 0xA115 => [0u8; 8].into(),                    // MEMORY_PROPERTIES, AQL_EXTENSIONS
        0xA116 | 0xA117 => (1u64 << 30).into(),                // SCRATCH_LIMIT_MAX, SCRATCH_LIMIT_CURRENT
        0xA118 => [now(), now(), now(), 1_000_000_000].into(), // CLOCK_COUNTERS
        _ => return None,
    })
}

hsa! {
    /// Calls a function for each agent, the CPU first.
    pub unsafe fn hsa_iterate_agents(
        callback: extern "C" fn(Agent, *mut c_void) -> Status,
        data: *mut c_void,
    ) {
        all().map(|index| callback(handle(index), data)).find(|status| *status != Status::SUCCESS)
            .unwrap_or(Status::SUCCESS)
    }

    /// Returns an attribute of an agent.
    pub unsafe fn hsa_agent_get_info(agent: Agent, attribute: u32, value: *mut u8) {
        let Some(index) = index(agent) else { return Status::INVALID_AGENT };
        match answer(index, attribute) {
            // SAFETY: the caller guarantees space for the attribute.
            Some(answer) => unsafe { answer.write(value) },
            None => {
                trace!("hsa_agent_get_info({index}, {attribute:#x}): unknown");
                Status::INVALID_ARGUMENT
            }
        }
    }

    /// Calls a function for the only instruction set of a GPU.
    pub unsafe fn hsa_agent_iterate_isas(
        agent: Agent,
        callback: extern "C" fn(Isa, *mut c_void) -> Status,
        data: *mut c_void,
    ) {
        match index(agent) {
            None => Status::INVALID_AGENT,
            Some(0) => Status::SUCCESS,
            Some(_) => callback(ISA, data),
        }
    }

    /// Returns the name of an instruction set, or its length.
    pub unsafe fn hsa_isa_get_info_alt(isa: Isa, attribute: u32, value: *mut u8) {
        if isa != ISA {
            return Status::INVALID_ISA;
        }
        let name = format!("amdgcn-amd-amdhsa--{}", settings().gfx);
        let answer = match attribute {
            0 => Answer::from(name.len() as u32 + 1),
            1 => Answer::text(&name, name.len() + 1),
            _ => return Status::INVALID_ARGUMENT,
        };
        // SAFETY: the caller guarantees space for the attribute.
        unsafe { answer.write(value) }
    }
}
