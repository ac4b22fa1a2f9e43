//! Deviations of the kernel from a GPU's driver, and of older kernels from newer ones.

use gpu_vmm_core::Quirk;

const QUIRKS: &[Quirk] = &[
    Quirk {
        id: "joint-access",
        from: 0,
        below: u32::MAX,
        effect: "the MMU knows one CPU and no devices: a page has the widest access of any device",
        handling: "copies, fills and patterns check their own device's access",
        evidence: "mprotect(2): the access is the calling process's",
    },
    Quirk {
        id: "mapping-limit",
        from: 0,
        below: u32::MAX,
        effect: "a process has at most vm.max_map_count mappings, 65530 by default; beyond that, map, unmap and set \
                 access return ENOMEM",
        handling: "memory created in a row is contiguous in its file, so that the kernel merges its mappings; the error \
                   names the limit; a few mappings are held in reserve, so that unmapping keeps working",
        evidence: "the kernel's Documentation/admin-guide/sysctl/vm.rst",
    },
    Quirk {
        id: "hint-without-noreplace",
        from: 0,
        below: 4017,
        effect: "MAP_FIXED_NOREPLACE is unknown and the address is only a hint",
        handling: "the returned address is compared, and a mismatch is released",
        evidence: "mmap(2), under MAP_FIXED_NOREPLACE",
    },
];

/// Returns the quirks of a kernel version.
pub(crate) fn of(version: u32) -> Vec<Quirk> {
    QUIRKS.iter().copied().filter(|quirk| quirk.is_in(version)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `MAP_FIXED_NOREPLACE` came with Linux 4.17.
    #[test]
    fn only_old_kernels_lack_fixed_noreplace() {
        let ids = |version| of(version).iter().map(|quirk| quirk.id).collect::<Vec<_>>();
        let always = ["joint-access", "mapping-limit"];
        for version in [4017, 6012, u32::MAX - 1] {
            assert_eq!(ids(version), always, "{version}");
        }
        for version in [0, 4016] {
            assert_eq!(ids(version), [&always[..], &["hint-without-noreplace"]].concat(), "{version}");
        }
    }
}
