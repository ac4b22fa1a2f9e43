//! One process writes a linked list whose nodes contain device addresses to a file. Another process restores it at the same
//! addresses, and a device follows the list.
//!
//! ```text
//! cargo run --release --example checkpoint
//! ```
//!
//! Both halves can run separately, with the same driver or with two (`cuda`, `hip`, `host`):
//!
//! ```text
//! cargo run --release --example checkpoint -- write list.snapshot hip
//! cargo run --release --example checkpoint -- read list.snapshot host
//! ```
#![allow(unsafe_code)] // the device follows addresses that it reads

use gpu_vmm::snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm::testkit::{TestKit, Walked};
use gpu_vmm::{
    AnyBackend, Backend, Bytes, Detail, DeviceId, Error, Operation, Placement, Region, Result, StagingRing,
    Vendor, WaitFor,
};
use std::path::Path;
use std::process::Command;

const DEVICE: DeviceId = DeviceId(0);
const NODES: u64 = 1 << 12;
/// The step from node to node, modulo [`NODES`]. It is odd, so the list visits each place once, in scattered order.
const STEP: u64 = 1531;
const SIZE: Bytes = Bytes::mib(4);
const TAG: &str = "list";

/// The environment variable that makes this program read a file, which it names.
const FILE: &str = "GPU_VMM_EXAMPLE_FILE";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        [] => match std::env::var_os(FILE) {
            Some(file) => read(file.as_ref(), None),
            None => both(),
        },
        ["write", file] => write(file.as_ref(), None),
        ["write", file, backend] => write(file.as_ref(), Some(backend)),
        ["read", file] => read(file.as_ref(), None),
        ["read", file, backend] => read(file.as_ref(), Some(backend)),
        _ => Err(failed("expected no argument, or write FILE [BACKEND], or read FILE [BACKEND]")),
    }
}

/// Writes the list, and starts a process that reads it.
fn both() -> Result<()> {
    let file = std::env::temp_dir().join(format!("gpu-vmm-checkpoint-{}", std::process::id()));
    let done = write(&file, None).and_then(|()| {
        let this = std::env::current_exe().map_err(failed)?;
        let status = Command::new(this).env(FILE, &file).status().map_err(failed)?;
        if status.success() { Ok(()) } else { Err(failed(format!("the new process: {status}"))) }
    });
    let _ = std::fs::remove_file(&file);
    done
}

fn write(file: &Path, backend: Option<&str>) -> Result<()> {
    let backend = open(backend)?;
    // At an address that other processes can also reserve, and in sizes that all drivers can map.
    let mut region = Region::builder(&backend)
        .on(DEVICE)
        .at(Placement::Restorable)
        .reserve(Bytes::mib(64))
        .tag(TAG)
        .build()?;
    region.grow_to(SIZE)?;
    write_list(&mut region)?;
    report("written", &backend, &region)?;

    // Contents go through the page-locked buffers of the ring, which a program creates once. Zeros take no space in the file, and
    // compressible contents take less.
    let ring = StagingRing::new(&backend, 2, Bytes::mib(1))?;
    let written = Snapshot::new(&ring).region(&region).compress(true).write(file, WaitFor::all_devices())?;
    println!("  {} of memory in {} bytes of {}", written.contents, written.file.0, file.display());
    Ok(())
}

fn read(file: &Path, backend: Option<&str>) -> Result<()> {
    let backend = open(backend)?;
    let ring = StagingRing::new(&backend, 2, Bytes::mib(1))?;
    // Restores all regions of the file, or none, on this device, whatever device they were on.
    let restored = Restore::new().all_on(DEVICE).regions(&SnapshotFile::open(file)?, &ring)?;
    let list = restored.iter().find(|restored| restored.region.tag() == TAG);
    let list = list.ok_or_else(|| failed("the snapshot has no list in it"))?;
    assert!(!list.has_moved(), "relocation is not allowed, so the region has its old address");
    report("restored", &backend, &list.region)
}

/// Writes nodes all over the region, each with the address of the next one and a value.
fn write_list(region: &mut Region<AnyBackend>) -> Result<()> {
    let far = SIZE.0 / NODES;
    let place = |number: u64| Bytes(number * STEP % NODES * far);
    for number in 0..NODES {
        let next = if number + 1 < NODES { (region.address() + place(number + 1)).0 } else { 0 };
        region.write(place(number), bytemuck::bytes_of(&[next, number]))?;
    }
    Ok(())
}

/// Makes the device follow the list, and fails if it does not visit every node.
fn report(what: &str, backend: &AnyBackend, region: &Region<AnyBackend>) -> Result<()> {
    let expected = Walked { nodes: NODES, sum: NODES * (NODES - 1) / 2 };
    // SAFETY: all nodes of the list are in the region, which is mapped and which the device may read.
    let walked = unsafe { backend.walk_list(DEVICE, region.address(), NODES + 1) }?;
    println!("{what} by process {} on {}, at {}:", std::process::id(), backend.vendor(), region.address());
    println!(
        "  the device followed the addresses to {} nodes, whose values add up to {}",
        walked.nodes, walked.sum
    );
    assert_eq!(walked, expected);
    Ok(())
}

fn open(name: Option<&str>) -> Result<AnyBackend> {
    match name {
        None => AnyBackend::open_best(),
        Some("cuda") => AnyBackend::open(Vendor::Cuda),
        Some("hip") => AnyBackend::open(Vendor::Hip),
        Some("host") => AnyBackend::open(Vendor::Host),
        Some(other) => Err(failed(format!("there is no backend {other}; expected cuda, hip or host"))),
    }
}

fn failed(reason: impl ToString) -> Error {
    Error::new(Operation::TakeSnapshot, Detail::Unsupported { reason: reason.to_string() })
}

#[test]
fn runs() -> Result<()> {
    run(&[])
}
