//! Quirks of the host: its access to a device's memory, its own memory, and copies from and to page-locked memory.

use super::versions::{UNFIXED, V6_1, V7_0, V7_2, V7_15, V7_16, V7_17, quirk};
use gpu_vmm_core::Quirk;

pub(super) const ACCESS_APPEARS: Quirk = quirk(
    "host-access-appears",
    (V6_1, V7_2),
    "hipMemSetAccess for the host is refused, or before 7.0 sets the access of device 0 instead",
    "a request for host access returns Unsupported",
    "ROCm/rocm-systems PR #1606, #1620; simulated, 6.4.3",
);

pub(super) const ON_IMPORTS: Quirk = quirk(
    "host-access-on-imports",
    (V7_15, V7_17),
    "hipMemSetAccess for the host fails on imported memory",
    "none: gpu-vmm returns the error",
    "ROCm/rocm-systems #11185, PR #10879; fixed by PR #11380, which is in 7.17",
);

pub(crate) const HOST_ACCESS_NOT_REPORTED: Quirk = quirk(
    "host-access-not-reported",
    (V7_2, UNFIXED),
    "hipMemGetAccess returns hipErrorInvalidValue for the host, whatever its access is",
    "gpu-vmm does not read the host's access back; a query for it returns Unsupported",
    "simulated, 7.2.4",
);

pub(crate) const HOST_ACCESS_LEAVES_A_HOLE: Quirk = quirk(
    "host-access-leaves-a-hole",
    (V7_2, V7_16),
    "after hipMemUnmap of memory that the host had access to, its addresses are unmapped in the process: the next mmap \
     may get them, and hipMemAddressFree then unmaps that mapping",
    "gpu-vmm maps the addresses without access as soon as hipMemUnmap returns; only an mmap in another thread can come \
     between",
    "read in rocr-runtime of October 2024 and August 2025 (MappedHandleAllowedAgent::RemoveAccess); 7.16 and \
     later do not leave it",
);

pub(crate) const HOST_ACCESS_FAULTS: Quirk = quirk(
    "host-access-faults",
    (V7_15, UNFIXED),
    "hipMemSetAccess for the host succeeds, and the CPU's first write to the memory raises SIGBUS: on machines with several \
     GPUs of which ROCR_VISIBLE_DEVICES hides the first, and with partitioned GPUs (CPX and NPS2)",
    "before memory for the CPU is created, the kernel writes to one granule of such memory (uname), which fails with EFAULT \
     instead of the signal; a request for such memory then returns Unsupported",
    "ROCm/rocm-systems #9985, #10708, PR #11380; not reproduced by gpu-vmm",
);

pub(super) const MEMORY_IS_THE_DEVICES: Quirk = quirk(
    "host-memory-is-the-devices",
    (V6_1, V7_15),
    "hipMemCreate refuses host memory, or since 7.0 succeeds and allocates the current device's memory",
    "a request for host memory returns Unsupported; since 7.15 gpu-vmm allocates one granule and compares the device's \
     free memory",
    "simulated, both: hipMemGetInfo",
);

pub(super) const PINNED_BY_FIRST: Quirk = quirk(
    "pinned-copies-by-first",
    (V6_1, V7_0),
    "device 0 performs every copy between mapped memory and page-locked host memory, whichever device owns the memory \
     and on any stream; without access it faults and ends the process",
    "memory of other devices is copied through memory that is not locked; on a copy stream such a copy is \
     synchronous",
    "simulated, 6.4.3; 7.2.4 uses the stream's device",
);
