//! What a kernel does differently from a GPU's driver, or did before some version.

use gpu_vmm_core::Quirk;

const QUIRKS: &[Quirk] = &[
    Quirk {
        id: "joint-access",
        from: 0,
        below: u32::MAX,
        effect: "the MMU knows one CPU and no devices: a page is as open as the most that any device may do with it",
        handling: "copies, fills and patterns keep to what their own device may do",
        evidence: "mprotect(2): the access is the calling process's",
    },
    Quirk {
        id: "mapping-limit",
        from: 0,
        below: u32::MAX,
        effect: "a process has at most vm.max_map_count mappings, 65530 by default; then map, unmap and set access \
                 answer ENOMEM",
        handling: "memory that is created in a row lies in a row, so that the kernel joins its mappings; the error \
                   names the limit; a few mappings are held in reserve, so that unmapping goes on",
        evidence: "the kernel's Documentation/admin-guide/sysctl/vm.rst",
    },
    Quirk {
        id: "hint-without-noreplace",
        from: 0,
        below: 4017,
        effect: "MAP_FIXED_NOREPLACE is not known and the address is a mere hint",
        handling: "the address is compared; another one is given back",
        evidence: "mmap(2), under MAP_FIXED_NOREPLACE",
    },
];

/// Those of a kernel's version.
pub(crate) fn of(version: u32) -> Vec<Quirk> {
    QUIRKS.iter().copied().filter(|quirk| quirk.is_in(version)).collect()
}
