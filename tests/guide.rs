//! The chapters of the guide that list something list all of it, and nothing else.
#![allow(clippy::expect_used)] // a test program may panic

mod tree;

use gpu_vmm::pool::PoolError;
use gpu_vmm::share::PeerError;
use gpu_vmm::{
    Access, Address, Bytes, Detail, DeviceId, DriverError, Error, ErrorKind, Granularity, LoadAttempt,
    OffsetRange, Operation, Vendor,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect(file)
}

/// The section of a page that begins with a heading, up to the next heading of the same level.
fn section(page: &str, heading: &str) -> String {
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with("## ")).map(|line| format!("{line}\n")).collect()
}

/// The text of the first string literal, if nothing but white space comes before it.
fn literal(source: &str) -> Option<&str> {
    source.trim_start().strip_prefix('"')?.split('"').next()
}

/// The names of the quirks that a source declares: the first argument of `quirk(`, or the field `id`.
fn declared(source: &str) -> BTreeSet<String> {
    ["quirk(", "id:"]
        .iter()
        .flat_map(|start| source.split(start).skip(1))
        .filter_map(literal)
        .map(str::to_owned)
        .collect()
}

/// The names in the first column of all tables.
fn listed(section: &str) -> BTreeSet<String> {
    let first = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(first).collect()
}

#[test]
fn vendor_calls_page_has_every_call() {
    let page = read("docs/guide/vendor-calls.md");
    let rows = page.lines().filter(|line| line.starts_with('|'));
    for row in rows {
        let mut cells = row.trim_matches('|').split('|');
        assert!(cells.all(|cell| !cell.trim().is_empty()), "an empty cell: {row}");
    }
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|letter: char| !letter.is_alphanumeric()).map(str::to_owned).collect()
    };
    let (named, mut count) = (words(&page), 0);
    for source in ["backend-cuda/src/ffi/functions.rs", "backend-hip/src/loader.rs"] {
        for call in words(&read(source)).iter().filter(|call| is_of_the_chapter(call)) {
            count += 1;
            assert!(named.contains(call), "{call} has no row");
        }
    }
    assert!(count > 25, "{count} calls were found in the backends");
}

/// Returns true for a call of the vendors' chapters on virtual memory and multicast.
fn is_of_the_chapter(call: &str) -> bool {
    const WORDS: [&str; 13] = [
        "Address",
        "Create",
        "Release",
        "Map",
        "Unmap",
        "SetAccess",
        "GetAccess",
        "GetAllocation",
        "ExportTo",
        "ImportFrom",
        "GetHandleFor",
        "Retain",
        "GetAddressRange",
    ];
    let of_memory = call.strip_prefix("cuMem").or_else(|| call.strip_prefix("hipMem"));
    call.starts_with("cuMulticast")
        || of_memory.is_some_and(|rest| WORDS.iter().any(|word| rest.starts_with(word)))
}

#[test]
fn deviations_page_has_every_quirk() {
    let page = read("docs/guide/deviations.md");
    let sources: [(&str, &[&str]); 3] = [
        ("## NVIDIA's CUDA driver", &["backend-cuda/src/quirks.rs"]),
        (
            "## AMD's HIP runtime",
            &[
                "backend-hip/src/quirks/list.rs",
                "backend-hip/src/quirks/captures.rs",
                "backend-hip/src/quirks/host.rs",
            ],
        ),
        ("## Host memory", &["backend-host/src/quirks.rs"]),
    ];
    for (heading, files) in sources {
        let declared: BTreeSet<_> = files.iter().flat_map(|file| declared(&read(file))).collect();
        let listed = listed(&section(&page, heading));
        assert!(!declared.is_empty(), "no quirk found in {files:?}");
        let missing: Vec<_> = declared.difference(&listed).collect();
        let unknown: Vec<_> = listed.difference(&declared).collect();
        assert!(missing.is_empty(), "docs/guide/deviations.md, {heading}: add {missing:?}");
        assert!(unknown.is_empty(), "docs/guide/deviations.md, {heading}: no such quirks: {unknown:?}");
    }
}

/// The environment variables that a source names, without those that only tests of gpu-vmm set.
fn variables(source: &str) -> BTreeSet<String> {
    let names = source.split('"').filter(|text| text.starts_with("GPU_VMM_") && !text.contains(' '));
    let names = names.filter(|name| !name.contains("TEST") && *name != "GPU_VMM_HIP_WITHOUT_QUIRK");
    names.map(str::to_owned).collect()
}

#[test]
fn every_environment_variable_is_in_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "src",
        "vmm-core/src",
        "vmm-serve/src",
        "vmm-share/src",
        "vmm-snapshot/src",
        "vmm-premap/src",
        "vmm-pool/src",
        "backend-cuda/src",
        "backend-hip/src",
        "backend-host/src",
        "plugins/c/src",
        "plugins/python/gpu_vmm",
        "cli/src",
        "conformance/src",
    ];
    let files = folders.iter().flat_map(|folder| tree::files(&root.join(folder), &[".rs", ".py"]));
    let used: BTreeSet<_> =
        files.flat_map(|file| variables(&fs::read_to_string(file).expect("a source"))).collect();
    let table = section(&read("docs/guide/support.md"), "## Environment variables");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let named = rows.flat_map(|(names, _)| names.split('`')).filter(|name| name.starts_with("GPU_VMM_"));
    let named: BTreeSet<_> = named.map(str::to_owned).collect();
    assert!(used.contains("GPU_VMM_BACKEND"), "{used:?}");
    assert_eq!(named, used, "the table in docs/guide/support.md, and the variables in the sources");
}

#[test]
fn troubleshooting_page_has_every_error_kind() {
    let page = read("docs/guide/troubleshooting.md");
    let source = read("vmm-core/src/types/error/kind.rs");
    let of_enum =
        source.split_once("pub enum ErrorKind {").expect("the enum").1.split_once("\n}").expect("its end").0;
    let variants: Vec<_> = of_enum.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    assert!(variants.contains(&"OutOfMemory"), "{variants:?}");
    let headings: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("### `ErrorKind::")?.strip_suffix('`')).collect();
    assert_eq!(
        headings, variants,
        "docs/guide/troubleshooting.md has a heading for each kind, in the enum's order"
    );
}

fn answer(call: &'static str, code: i64, name: &'static str, description: &'static str) -> DriverError {
    DriverError { call, code, name: name.into(), description: description.into() }
}

fn range(offset: Bytes, length: Bytes) -> OffsetRange {
    OffsetRange { offset, length }
}

/// The errors that the page shows.
fn examples() -> Vec<(ErrorKind, Operation, Detail)> {
    use Bytes as B;
    let wanted = Address(0x7f00_4000_0000);
    let offered = Address(0x7f21_8000_0000);
    let invalid = answer("cuMemSetAccess", 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
    vec![
        (
            ErrorKind::OutOfMemory,
            Operation::CreateMemory,
            Detail::OutOfMemory {
                device: DeviceId(0),
                requested: B::gib(4),
                free: B::mib(312),
                total: B::gib(80),
                source: answer("cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
            },
        ),
        (
            ErrorKind::OutOfMemory,
            Operation::Suspend,
            Detail::BackingStoreFull { needed: B::gib(2), free: B::mib(512), capacity: B::gib(4) },
        ),
        (
            ErrorKind::OutOfMemory,
            Operation::CreateMemory,
            Detail::BudgetExhausted {
                requested: B::mib(4),
                held: B::mib(64),
                free: B::mib(2),
                budget: B::mib(64),
            },
        ),
        (
            ErrorKind::OutOfAddressSpace,
            Operation::Reserve,
            Detail::ExceedsAddressSpace { size: B::gib(1 << 20), limit: B::gib(1 << 17) },
        ),
        (
            ErrorKind::NotMapped,
            Operation::AdoptMemory,
            Detail::NoMemoryAt { address: wanted, reason: "nothing is mapped there".to_owned() },
        ),
        (
            ErrorKind::AddressTaken,
            Operation::Reserve,
            Detail::NotBelow { size: B::mib(64), limit: Address(1 << 40), offered },
        ),
        (
            ErrorKind::OutOfDescriptors,
            Operation::ExportMemory,
            Detail::OutOfDescriptors {
                source: answer(
                    "cuMemExportToShareableHandle",
                    304,
                    "CUDA_ERROR_OPERATING_SYSTEM",
                    "OS call failed or operation not supported on this OS",
                ),
                context: "2 MiB of device 0".to_owned(),
            },
        ),
        (
            ErrorKind::InvalidArgument,
            Operation::Unmap,
            Detail::PartialMapping { range: range(B::ZERO, B::mib(2)), mapping: range(B::ZERO, B::mib(64)) },
        ),
        (
            ErrorKind::Unaligned,
            Operation::Map,
            Detail::Unaligned {
                what: "offset",
                value: B::mib(3).0,
                granularity: Granularity::new(B::mib(2)).expect("a power of two"),
            },
        ),
        (
            ErrorKind::OutOfRange,
            Operation::Unmap,
            Detail::OutOfRange { range: range(B::mib(6), B::mib(4)), limit: B::mib(8) },
        ),
        (
            ErrorKind::AlreadyMapped,
            Operation::Map,
            Detail::AlreadyMapped {
                range: range(B::mib(2), B::mib(4)),
                mapping: range(B::mib(4), B::mib(2)),
            },
        ),
        (
            ErrorKind::NotMapped,
            Operation::Read,
            Detail::NotMapped {
                range: range(B::ZERO, B::mib(8)),
                hole: B::mib(6),
                mapped: B::mib(6),
                end: B::mib(6),
            },
        ),
        (ErrorKind::AddressTaken, Operation::Reserve, Detail::AddressTaken { wanted, offered }),
        (
            ErrorKind::AddressTaken,
            Operation::Grow,
            Detail::OutgrewReservation { requested: B::mib(72), reserved: B::mib(64), wanted, offered },
        ),
        (
            ErrorKind::NotFound,
            Operation::Free,
            Detail::Extension(Arc::new(PoolError::FreedTwice { address: wanted })),
        ),
        (
            ErrorKind::Peer,
            Operation::ImportMemory,
            Detail::Extension(Arc::new(PeerError::Gone { why: String::new() })),
        ),
        (
            ErrorKind::TimedOut,
            Operation::WaitApplied,
            Detail::Extension(Arc::new(PeerError::TimedOut {
                what: "answer from the importer",
                waited: Duration::from_secs(30),
            })),
        ),
        (
            ErrorKind::NoListener,
            Operation::Connect,
            Detail::Extension(Arc::new(PeerError::NoListener { path: "/run/user/1000/weights".to_owned() })),
        ),
        (
            ErrorKind::StaleSocket,
            Operation::Listen,
            Detail::Extension(Arc::new(PeerError::StaleSocket {
                path: "/run/user/1000/weights".to_owned(),
                call: "bind",
                name: "EADDRINUSE (98)",
            })),
        ),
        (
            ErrorKind::NoSuchDevice,
            Operation::CreateMemory,
            Detail::NoSuchDevice { device: DeviceId(4), vendor: Vendor::Cuda, count: 2 },
        ),
        (
            ErrorKind::NoSuchDevice,
            Operation::Open,
            Detail::NoDevice {
                vendor: Vendor::Cuda,
                reason: "cuInit answered CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected"
                    .to_owned(),
            },
        ),
        (
            ErrorKind::PeerUnreachable,
            Operation::SetAccess,
            Detail::PeerUnreachable { device: DeviceId(1), owner: DeviceId(0) },
        ),
        (
            ErrorKind::AccessDenied,
            Operation::Write,
            Detail::NoAccess {
                device: DeviceId(0),
                offset: B::mib(2),
                have: Access::Read,
                need: Access::ReadWrite,
            },
        ),
        (
            ErrorKind::Unsupported,
            Operation::ExportMemory,
            Detail::Unsupported { reason: "the memory was not created as shareable".to_owned() },
        ),
        (
            ErrorKind::Unsupported,
            Operation::Open,
            Detail::LibraryNotFound {
                vendor: Vendor::Cuda,
                what: "libcuda, which comes with NVIDIA's driver",
                variable: "GPU_VMM_CUDA_LIBRARY",
                tried: ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"]
                    .map(|library| LoadAttempt {
                        library: library.to_owned(),
                        answer: format!(
                            "{library}: cannot open shared object file: No such file or directory"
                        ),
                    })
                    .to_vec(),
            },
        ),
        (ErrorKind::Busy, Operation::Unmap, Detail::Capturing { source: None }),
        (ErrorKind::Busy, Operation::Shrink, Detail::Exported { count: 2 }),
        (ErrorKind::Suspended, Operation::Write, Detail::Suspended { address: wanted, reserved: B::gib(1) }),
        (
            ErrorKind::Poisoned,
            Operation::SetAccess,
            Detail::Poisoned { range: range(B::mib(64), B::mib(64)), cause: invalid.to_string() },
        ),
        (ErrorKind::Forked, Operation::Grow, Detail::Forked),
        (
            ErrorKind::DeviceLost,
            Operation::WaitForDevice,
            Detail::DeviceLost {
                source: answer(
                    "cuCtxSynchronize",
                    700,
                    "CUDA_ERROR_ILLEGAL_ADDRESS",
                    "an illegal memory access was encountered",
                ),
            },
        ),
        (
            ErrorKind::Peer,
            Operation::ImportMemory,
            Detail::Mismatch {
                what: "granularity",
                theirs: "2 MiB".to_owned(),
                ours: "here it is 64 KiB".to_owned(),
            },
        ),
        (
            ErrorKind::File,
            Operation::Suspend,
            Detail::File {
                path: "/scratch/weights".to_owned(),
                source: answer("write", 28, "ENOSPC", "No space left on device"),
            },
        ),
        (
            ErrorKind::Driver,
            Operation::SetAccess,
            Detail::Driver { source: invalid, context: "64 MiB at 0x7f0040000000".to_owned() },
        ),
        (
            ErrorKind::Driver,
            Operation::Map,
            Detail::DriverContractViolated {
                what: "hipMemMap returned success, but 64 MiB at 0x7f0040000000 is not known to be mapped (query access: \
                       hipMemGetAccess answered hipErrorInvalidValue (1): invalid argument (address 0x7f0040000000))"
                    .to_owned(),
            },
        ),
    ]
}

#[test]
fn page_has_all_messages() {
    let page = read("docs/guide/troubleshooting.md");
    let mut missing = Vec::new();
    for (kind, operation, detail) in examples() {
        let error = Error::new(operation, detail);
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        if !page.contains(&text) {
            missing.push(format!("{kind:?}: {text}"));
        }
    }
    assert!(
        missing.is_empty(),
        "docs/guide/troubleshooting.md lacks these messages:\n{}",
        missing.join("\n")
    );
}

/// The names that a source exports and its documentation shows: re-exports, modules and types.
fn exported(source: &str) -> Vec<String> {
    let items: Vec<_> = source.split("pub ").collect();
    let shown = items.windows(2).filter(|pair| !pair[0].trim_end().ends_with("#[doc(hidden)]"));
    let lists = shown.filter_map(|pair| match pair[1].split_once(' ')? {
        ("use", paths) => paths.split(';').next(),
        ("mod" | "struct" | "enum" | "trait", name) => name.split([' ', ';', '<', '(']).next(),
        _ => None,
    });
    let names = lists.flat_map(|list| list.split([',', '{', '}']).map(|path| path.trim().rsplit([':', ' '])));
    names.filter_map(|mut path| path.next().map(str::to_owned)).collect()
}

#[test]
fn names_page_has_every_name() {
    let page = read("docs/guide/names.md");
    let rows = page.lines().filter_map(|line| Some(line.strip_prefix("| ")?.split('|').collect::<Vec<_>>()));
    let cells = rows.filter(|row| row.len() > 3).flat_map(|row| [row[1], row[2]]);
    let names: BTreeSet<_> =
        cells.flat_map(|cell| cell.split('`')).flat_map(|code| code.split("::")).collect();
    let sources = "backend-cuda/src/lib backend-hip/src/lib backend-host/src/lib src/lib vmm-core/src/extend \
                   vmm-core/src/lib vmm-core/src/multicast/mod vmm-core/src/region/dlpack/mod vmm-pool/src/lib \
                   vmm-premap/src/lib vmm-serve/src/lib vmm-share/src/lib vmm-share/src/manifest vmm-share/src/win32 vmm-snapshot/src/lib";
    let sources = sources.split(' ').map(|file| read(&format!("{file}.rs")));
    let mut missing: BTreeSet<_> = sources.flat_map(|source| exported(&source)).collect();
    assert!(missing.len() > 200, "only {} names were found", missing.len());
    missing.extend(read("plugins/c/abi.txt").lines().map(str::to_owned));
    missing.retain(|name| !["", "*"].contains(&name.as_str()) && !names.contains(name.as_str()));
    assert!(missing.is_empty(), "docs/guide/names.md lacks these names: {missing:?}");
}

/// Returns the lines of a block of Rust, with those that the page hides.
fn unhidden(block: &str) -> String {
    block
        .lines()
        .map(|line| {
            format!(
                "{}\n",
                line.strip_prefix("# ")
                    .or_else(|| line.strip_prefix('#').filter(|rest| rest.is_empty()))
                    .unwrap_or(line)
            )
        })
        .collect()
}

#[test]
fn porting_page_has_the_tested_backend() {
    let whole = section(&read("docs/guide/porting.md"), "## A whole backend");
    let block = whole.split_once("```rust\n").expect("a block").1.split_once("\n```").expect("its end").0;
    let expected = read("tests/porting/src/tiny.rs") + "\nfn main() -> Result<()> { try_it() }\n";
    assert_eq!(unhidden(block), expected, "docs/guide/porting.md and tests/porting/src/tiny.rs");
}
