//! A linked list whose nodes hold device addresses is written to a file by one process, and walked by a device in another
//! one, at the same addresses.
//!
//! ```text
//! cargo run --release --example checkpoint
//! ```
//!
//! The two halves can be run by themselves, with the same driver or with two (`cuda`, `hip`, `host`):
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
/// A step that leads to and fro, and once to each place.
const STEP: u64 = 1531;
const SIZE: Bytes = Bytes::mib(4);
const TAG: &str = "list";

/// What tells a new process that it is to read this file.
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
        _ => Err(failed("give nothing, or write FILE [BACKEND], or read FILE [BACKEND]")),
    }
}

/// Writes the list, and has a new process read it.
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
    // At an address that can be had in other processes too, and with other drivers. Memory and addresses in such amounts
    // can be mapped by all of them.
    let mut region = Region::builder(&backend)
        .on(DEVICE)
        .at(Placement::Restorable)
        .reserve(Bytes::mib(64))
        .tag(TAG)
        .build()?;
    region.grow_to(SIZE)?;
    write_list(&mut region)?;
    report("written", &backend, &region)?;

    // The ring has the page-locked buffers that contents go through; programs make it once. Zeros take no room in the
    // file, and what can be compressed less.
    let ring = StagingRing::new(&backend, 2, Bytes::mib(1))?;
    let written = Snapshot::new(&ring).region(&region).compress(true).write(file, WaitFor::all_devices())?;
    println!("  {} of memory in {} bytes of {}", written.contents, written.file.0, file.display());
    Ok(())
}

fn read(file: &Path, backend: Option<&str>) -> Result<()> {
    let backend = open(backend)?;
    let ring = StagingRing::new(&backend, 2, Bytes::mib(1))?;
    // All regions of the file, or none of them. Whose memory the list is in there, on this device it is here.
    let restored = Restore::new().all_on(DEVICE).regions(&SnapshotFile::open(file)?, &ring)?;
    let list = restored.iter().find(|restored| restored.region.tag() == TAG);
    let list = list.ok_or_else(|| failed("the snapshot has no list in it"))?;
    assert!(!list.has_moved(), "it may not be relocated, so it is where it was");
    report("restored", &backend, &list.region)
}

/// Nodes all over the region, each with the address of the next one and a value.
fn write_list(region: &mut Region<AnyBackend>) -> Result<()> {
    let far = SIZE.0 / NODES;
    let place = |number: u64| Bytes(number * STEP % NODES * far);
    for number in 0..NODES {
        let next = if number + 1 < NODES { (region.address() + place(number + 1)).0 } else { 0 };
        region.write(place(number), bytemuck::bytes_of(&[next, number]))?;
    }
    Ok(())
}

/// Has the device walk along the list, and fails where it does not meet every node.
fn report(what: &str, backend: &AnyBackend, region: &Region<AnyBackend>) -> Result<()> {
    let expected = Walked { nodes: NODES, sum: NODES * (NODES - 1) / 2 };
    // SAFETY: the list lies in the region, which is mapped and which the device may read, and leads nowhere else.
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
        Some(other) => Err(failed(format!("{other} is no backend; there are cuda, hip and host"))),
    }
}

fn failed(reason: impl ToString) -> Error {
    Error::new(Operation::TakeSnapshot, Detail::Unsupported { reason: reason.to_string() })
}

#[test]
fn runs() -> Result<()> {
    run(&[])
}
