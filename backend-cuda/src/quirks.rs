//! What CUDA's driver does differently from its documentation, and what is done about it.
//!
//! Version numbers are those of `cuDriverGetVersion`: 13000 is CUDA 13.0.

use gpu_vmm_core::{Bytes, Granularity, Quirk};

/// The oldest version that is used at all.
const ALWAYS: u32 = 0;
const UNFIXED: u32 = u32::MAX;

/// What reservations are multiples of: quirk `addresses-in-32-mib`.
pub(crate) const RESERVATION_UNIT: Granularity = match Granularity::new(Bytes::mib(32)) {
    Some(unit) => unit,
    None => Granularity::BYTE,
};

/// Every known quirk.
pub(crate) const ALL: &[Quirk] = &[
    Quirk {
        id: "hint-moves",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemAddressReserve answers success with another address where the hint is taken",
        handling: "the caller compares, and gives the wrong addresses back where they had to be exact",
        evidence: "documented as a hint; H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "addresses-in-32-mib",
        from: ALWAYS,
        below: UNFIXED,
        effect: "a reservation takes multiples of 32 MiB of addresses, so that a hint at the end of one of another size is \
                 moved; where the device has a context, hints of up to 24 MiB are moved into an arena of small ones, \
                 wherever they point",
        handling: "reservations are multiples of 32 MiB, so that one can begin where the last one ends",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): of 17 sizes from 32 MiB to 1 GiB at three places each, the next \
                   address that was honoured was the end rounded up to 32 MiB",
    },
    Quirk {
        id: "map-past-the-end",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemMap of a range that begins in a reservation and ends behind it answers success; the reservation \
                 behind cannot be used then, nor this one freed",
        handling: "the books decide; no range crosses a reservation's border",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): 32 MiB mapped 16 MiB before the end of 64 MiB, 128 MiB and 64 GiB",
    },
    Quirk {
        id: "access-over-holes",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemSetAccess over two mappings with a hole between answers success, against its documentation",
        handling: "the call is made for parts without a hole alone",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "unmap-over-holes",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemUnmap of a part with holes, or with nothing mapped at all, or that goes on behind its reservation, \
                 answers success, so that unmapping twice is not noticed",
        handling: "the books decide; the call is made for whole mappings without a hole alone",
        evidence: "H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "unmap-does-not-wait",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemUnmap, documented as synchronous, returns while queued work still uses the memory; cuMemFree \
                 waits",
        handling: "whoever unmaps must say how it is known that the device is done",
        evidence: "H200, driver of CUDA 13.0: unmap took 29 µs during a memset of 68 ms; vllm-project/vllm#28714",
    },
    Quirk {
        id: "offset-must-be-zero",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemMap answers CUDA_ERROR_NOT_SUPPORTED for an offset other than 0 and for less than the handle",
        handling: "whole handles are mapped",
        evidence: "documented (\"offset currently must be zero\"); H200, driver of CUDA 13.0; NVIDIA/cuda-python#2908",
    },
    Quirk {
        id: "page-is-not-enough",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemAddressReserve refuses sizes that are multiples of the host's page, which its documentation \
                 allows, but not of the granularity",
        handling: "sizes are multiples of the granularity",
        evidence: "H200, driver of CUDA 13.0: CUDA_ERROR_INVALID_VALUE for 2 MiB + 4096",
    },
    Quirk {
        id: "host-access-untold",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemGetAccess answers read and write for CU_MEM_LOCATION_TYPE_HOST, whatever was set, and of a device's \
                 memory too, at which the CPU is not let",
        handling: "the CPU is named CU_MEM_LOCATION_TYPE_HOST_NUMA, for which the answer is right",
        evidence: "2 H200, driver 580.159.04 (CUDA 13.0): memory of both kinds of place, access none, read, and both",
    },
    Quirk {
        id: "compression-gives-way",
        from: ALWAYS,
        below: UNFIXED,
        effect: "memory that is asked for as compressible and for remote DMA is made, and is not compressible",
        handling: "the properties of what was made are read back",
        evidence: "H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "dma-buf-wants-a-context",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemGetHandleForAddressRange answers CUDA_ERROR_INVALID_CONTEXT to a thread without a current context, \
                 though creating, mapping and exporting want none",
        handling: "the owner's context is current for the call",
        evidence: "2 H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "compressible-has-no-dma-buf",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemGetHandleForAddressRange answers CUDA_ERROR_UNKNOWN for compressible memory",
        handling: "it is told as something that cannot be had, with what is known of it",
        evidence: "H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "fabric-attribute",
        from: 12_030,
        below: UNFIXED,
        effect: "the attribute for fabric handles is 1 where cuMemCreate then answers CUDA_ERROR_NOT_PERMITTED, for \
                 want of an IMEX channel",
        handling: "the capability is tried on a granule",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "descriptor-zero",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemImportFromShareableHandle answers CUDA_ERROR_INVALID_VALUE for descriptor 0",
        handling: "a descriptor 0 is duplicated first; exporting never gives it",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "import-answers-unknown",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemImportFromShareableHandle answers CUDA_ERROR_UNKNOWN, which its documentation does not name, for a \
                 descriptor that is closed or stands for no memory",
        handling: "none: the error is passed on as it is",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): /dev/null, and a number that is no descriptor",
    },
    Quirk {
        id: "import-does-not-export",
        from: ALWAYS,
        below: UNFIXED,
        effect: "memory that was imported cannot be exported, and its properties name no kind of handle",
        handling: "exporting it is refused with the reason; the descriptor can be passed on instead",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "stub-library",
        from: ALWAYS,
        below: UNFIXED,
        effect: "the toolkit's stub has the driver's own name inside, so that once it is loaded, libcuda.so.1 is the \
                 stub; each call answers CUDA_ERROR_STUB_LIBRARY",
        handling: "libcuda.so.1 is looked for first, and a stub is refused with advice",
        evidence: "NVIDIA's toolkit, lib64/stubs",
    },
    Quirk {
        id: "fork",
        from: ALWAYS,
        below: UNFIXED,
        effect: "in a forked child every call answers CUDA_ERROR_NOT_INITIALIZED",
        handling: "calls answer with an error that says so, and dropping does nothing",
        evidence: "H200, driver of CUDA 13.0",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_a_name_of_its_own_and_says_everything() {
        let ids: HashSet<_> = ALL.iter().map(|quirk| quirk.id).collect();
        assert_eq!(ids.len(), ALL.len());
        for quirk in ALL {
            let texts = [quirk.id, quirk.effect, quirk.handling, quirk.evidence];
            assert!(texts.iter().all(|text| !text.is_empty()) && quirk.from < quirk.below, "{quirk:?}");
        }
    }
}
