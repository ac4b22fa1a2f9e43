//! Deviations of CUDA's driver from its documentation, and how this crate handles them.
//!
//! Version numbers are as `cuDriverGetVersion` returns them: 13000 is CUDA 13.0.

use gpu_vmm_core::{Address, Bytes, Granularity, Quirk};

/// Below the oldest supported version.
const ALWAYS: u32 = 0;
const UNFIXED: u32 = u32::MAX;

/// The unit of reservations: quirk `addresses-in-32-mib`.
pub(crate) const RESERVATION_UNIT: Granularity = match Granularity::new(Bytes::mib(32)) {
    Some(unit) => unit,
    None => Granularity::BYTE,
};

/// Returns the hint that the driver gets, 0 for none: quirk `high-hints-hang`.
pub(crate) fn hint(wanted: Option<Address>, is_windows: bool) -> Address {
    const TOO_HIGH: Address = Address(1 << 40);
    wanted.filter(|address| !is_windows || *address < TOO_HIGH).unwrap_or(Address(0))
}

/// Every known quirk.
pub(crate) const QUIRKS: &[Quirk] = &[
    Quirk {
        id: "hint-moves",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemAddressReserve succeeds with another address when the hinted range is taken",
        handling: "the returned address is compared with the hint, and a mismatch is freed when the address must be exact",
        evidence: "documented as a hint; H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "high-hints-hang",
        from: ALWAYS,
        below: UNFIXED,
        effect: "on Windows (WDDM), cuMemAddressReserve honours hints between 64 and 512 GiB only; it moves lower ones, \
                 reports a lack of memory at 1 TiB, and never returns from 2 TiB on",
        handling: "on Windows the driver gets no hint from 1 TiB on, and restorable addresses lie between 64 and 512 GiB",
        evidence: "lupine #574: a T4; never run by gpu-vmm",
    },
    Quirk {
        id: "addresses-in-32-mib",
        from: ALWAYS,
        below: UNFIXED,
        effect: "a reservation occupies a multiple of 32 MiB of addresses, so a hint at the end of a reservation of \
                 another size is moved",
        handling: "reservations are multiples of 32 MiB, so that one can begin where the last one ends",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): of 17 sizes from 32 MiB to 1 GiB at three places each, the next \
                   address that was honoured was the end rounded up to 32 MiB",
    },
    Quirk {
        id: "kept-addresses-first",
        from: ALWAYS,
        below: UNFIXED,
        effect: "when the device has a context, cuMemAddressReserve serves reservations from free addresses that the driver \
                 keeps, whatever the hint, as long as these have room: up to 24 MiB in a small program, and up to 256 MiB in \
                 a program with PyTorch",
        handling: "a reservation that was placed elsewhere although the hint's addresses are free is kept, and the call is \
                   repeated, up to 64 times, until the driver's own addresses have no room",
        evidence: "H200, driver 580.159.04 (CUDA 13.0), PyTorch 2.11: of 13 sizes, 2 MiB to 256 MiB were placed in the \
                   driver's own range and 512 MiB to 64 GiB at the hint; while one of 256 MiB was kept, the next one was \
                   at the hint, 9 of 9 times",
    },
    Quirk {
        id: "map-past-the-end",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemMap of a range that begins inside a reservation and ends past it succeeds; the reservation after it \
                 is then unusable, and this one cannot be freed",
        handling: "gpu-vmm checks ranges in its own records; no range crosses the end of a reservation",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): 32 MiB mapped 16 MiB before the end of 64 MiB, 128 MiB and 64 GiB",
    },
    Quirk {
        id: "access-over-holes",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemSetAccess over two mappings with a hole between them succeeds, against its documentation",
        handling: "each call covers a range without holes",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "unmap-over-holes",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemUnmap of a range with holes, with no mapping at all, or past its reservation succeeds, so unmapping \
                 twice goes unnoticed",
        handling: "gpu-vmm checks ranges in its own records; each call covers whole mappings without holes",
        evidence: "H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "unmap-does-not-wait",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemUnmap, documented as synchronous, returns while queued work still uses the memory; cuMemFree \
                 waits",
        handling: "callers that unmap must state how the device is known to be done",
        evidence: "H200, driver of CUDA 13.0: unmap took 29 µs during a memset of 68 ms; vllm-project/vllm#28714",
    },
    Quirk {
        id: "offset-must-be-zero",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemMap returns CUDA_ERROR_NOT_SUPPORTED for an offset other than 0 and for a size below the handle's",
        handling: "only whole handles are mapped",
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
        id: "host-access-not-reported",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemGetAccess reports read and write for CU_MEM_LOCATION_TYPE_HOST, whatever access was set, even for \
                 device memory, which the CPU cannot access",
        handling: "the CPU is named CU_MEM_LOCATION_TYPE_HOST_NUMA, for which the reported access is right",
        evidence: "2 H200, driver 580.159.04 (CUDA 13.0): memory of both kinds of place, access none, read, and both",
    },
    Quirk {
        id: "cpu-copies-to-host-memory",
        from: ALWAYS,
        below: UNFIXED,
        effect: "a copy from the host, or from host memory, into host memory that the CPU may read is made by the CPU: if the \
                 CPU may not write it, the process ends with SIGSEGV, although the device may",
        handling: "such a copy is refused; a resume and a restore give the CPU write access for their copies",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): cuMemcpyHtoD, cuMemcpyHtoDAsync and cuMemcpyDtoD of 4 B and 16 MiB, for \
                   each access of the CPU and of the device; cuMemsetD8 and a copy from device memory work",
    },
    Quirk {
        id: "compression-gives-way",
        from: ALWAYS,
        below: UNFIXED,
        effect: "memory requested as compressible and for remote DMA is created, but is not compressible",
        handling: "the properties of the created memory are read back",
        evidence: "H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "dma-buf-wants-a-context",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemGetHandleForAddressRange returns CUDA_ERROR_INVALID_CONTEXT on a thread without a current context, \
                 though creating, mapping and exporting need none",
        handling: "the owner's context is current during the call",
        evidence: "2 H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "compressible-has-no-dma-buf",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemGetHandleForAddressRange returns CUDA_ERROR_UNKNOWN for compressible memory",
        handling: "reported as unsupported, with the likely cause",
        evidence: "H200, driver 580.159.04 (CUDA 13.0)",
    },
    Quirk {
        id: "fabric-attribute",
        from: 12_030,
        below: UNFIXED,
        effect: "the attribute for fabric handles is 1 although cuMemCreate then returns CUDA_ERROR_NOT_PERMITTED, for \
                 lack of an IMEX channel",
        handling: "the capability is tried on a granule",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "descriptor-zero",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemImportFromShareableHandle returns CUDA_ERROR_INVALID_VALUE for descriptor 0",
        handling: "descriptor 0 is duplicated before an import; exports never return it",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "import-answers-unknown",
        from: ALWAYS,
        below: UNFIXED,
        effect: "cuMemImportFromShareableHandle returns CUDA_ERROR_UNKNOWN, which its documentation does not list, for a \
                 descriptor that is closed or does not refer to memory",
        handling: "none: the error is returned unchanged",
        evidence: "H200, driver 580.159.04 (CUDA 13.0): /dev/null, and a number that is no open descriptor",
    },
    Quirk {
        id: "import-does-not-export",
        from: ALWAYS,
        below: UNFIXED,
        effect: "imported memory cannot be exported, and its properties list no handle type",
        handling: "exporting it is refused with the reason; the original descriptor can be passed on instead",
        evidence: "H200, driver of CUDA 13.0",
    },
    Quirk {
        id: "stub-library",
        from: ALWAYS,
        below: UNFIXED,
        effect: "the toolkit's stub carries the driver's own library name, so once it is loaded, libcuda.so.1 resolves to \
                 the stub; every call returns CUDA_ERROR_STUB_LIBRARY",
        handling: "libcuda.so.1 is tried first, and a stub is refused with advice",
        evidence: "NVIDIA's toolkit, lib64/stubs",
    },
    Quirk {
        id: "fork",
        from: ALWAYS,
        below: UNFIXED,
        effect: "in a forked child every call returns CUDA_ERROR_NOT_INITIALIZED, cuInit included; if cuInit found no device in \
                 the parent, it crashes in the child",
        handling: "calls return an error that names the fork, opening included if the driver's library was loaded before, and \
                   dropping does nothing; a child of a process without a device gets its parent's error",
        evidence: "H200, driver of CUDA 13.0",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn quirks_have_distinct_names_and_full_texts() {
        let ids: HashSet<_> = QUIRKS.iter().map(|quirk| quirk.id).collect();
        assert_eq!(ids.len(), QUIRKS.len());
        for quirk in QUIRKS {
            let texts = [quirk.id, quirk.effect, quirk.handling, quirk.evidence];
            assert!(texts.iter().all(|text| !text.is_empty()) && quirk.from < quirk.below, "{quirk:?}");
        }
    }

    #[test]
    fn windows_driver_gets_no_high_hints() {
        let hints = [0, 64 << 30, (1 << 40) - 1, 1 << 40, 0x3800_0000_0000].map(Address);
        assert_eq!(hints.map(|wanted| hint(Some(wanted), false)), hints);
        let given = [hints[0], hints[1], hints[2], Address(0), Address(0)];
        assert_eq!(hints.map(|wanted| hint(Some(wanted), true)), given);
        assert_eq!(hint(None, true), Address(0));
    }

    /// Fabric handles came with CUDA 12.3. No other quirk is of later drivers only, and none has ended.
    #[test]
    fn old_drivers_lack_only_fabric_quirks() {
        let missing = |version| -> Vec<&str> {
            QUIRKS.iter().filter(|quirk| !quirk.is_in(version)).map(|quirk| quirk.id).collect()
        };
        for (version, expected) in [
            (11_040, &["fabric-attribute"][..]),
            (12_029, &["fabric-attribute"]),
            (12_030, &[]),
            (13_000, &[]),
        ] {
            assert_eq!(missing(version), expected, "{version}");
        }
    }
}
