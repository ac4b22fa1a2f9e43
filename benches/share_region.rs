//! A region of 64 handles from one end of a line to the other, beside the same by hand: the driver's own export, one socket
//! message, import, map and set access of 64 descriptors.
//!
//! `cargo bench --bench share_region` on a machine with an NVIDIA GPU; on another it says so.
#![allow(unsafe_code)]

mod measure;

use cudarc::driver::sys;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::share::{Exporter, Import, Line};
use gpu_vmm::{Bytes, DeviceId, Done, Error, Properties, Region, Result};
use measure::{check, in_turn, on_cuda};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const DEVICE: DeviceId = DeviceId(0);
const HANDLES: usize = 64;

const FILE_DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn main() {
    on_cuda(run);
}

fn run(cuda: &CudaBackend) -> Result<()> {
    println!("{HANDLES} handles through a socket and back into one range; µs, median [middle half]");
    println!("{:>8} {:>32} {:>32} {:>8} {:>8}", "handle", "by hand", "with the library", "median", "quarter");
    for size in [Bytes::mib(2), Bytes::mib(16)] {
        measure(cuda, size)?;
    }
    Ok(())
}

fn measure(cuda: &CudaBackend, size: Bytes) -> Result<()> {
    let whole = Bytes(size.0 * HANDLES as u64);
    let memory = Properties::on(DEVICE).shareable();
    let mut region = Region::builder(cuda).memory(memory).reserve(whole).build()?;
    for handle in 1..=HANDLES {
        region.grow_to(Bytes(size.0 * handle as u64))?;
    }
    region.fill(Bytes::ZERO, whole, 1)?; // makes the device's context
    let handles: Vec<u64> = (0..HANDLES).map(|_| create(size)).collect();
    let room = Region::builder(cuda).reserve(whole).build()?;
    let by_hand = || by_hand(&handles, size, room.address().0);
    let with_library = || {
        let (ours, theirs) = Line::pair()?;
        let exporter = Exporter::share(ours, &region)?;
        let imported = Import::new().receive(cuda, theirs)?;
        drop(exporter);
        // SAFETY: nothing was queued on the memory.
        imported.detach().close(unsafe { Done::promised() })
    };
    let [by_hand, with_library] = in_turn(100, by_hand, with_library)?;
    let [median, quarter] = with_library.over(&by_hand);
    println!("{size:>8} {by_hand:>32} {with_library:>32} {median:>8.3} {quarter:>8.3}");
    Ok(())
}

/// Memory that can be exported, by hand. It is not released: the benchmark ends soon.
fn create(size: Bytes) -> u64 {
    // SAFETY: zero is a value of every field of this C structure.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = FILE_DESCRIPTOR;
    let mut handle = 0;
    // SAFETY: both pointers are good for their types, and the size is a multiple of the granularity.
    check(unsafe {
        sys::cuMemCreate(&raw mut handle, size.to_usize().unwrap_or(0), &raw const properties, 0)
    });
    handle
}

/// What has to be done without the library, and no more, at addresses that are reserved already.
fn by_hand(handles: &[u64], size: Bytes, at: u64) -> Result<()> {
    let length = size.to_usize().unwrap_or(0);
    let export = |handle: &u64| {
        let mut fd: i32 = -1;
        // SAFETY: the handle is alive, and for this type the driver writes one int, a descriptor of the caller's.
        unsafe {
            check(sys::cuMemExportToShareableHandle((&raw mut fd).cast(), *handle, FILE_DESCRIPTOR, 0));
            OwnedFd::from_raw_fd(fd)
        }
    };
    let exported: Vec<OwnedFd> = handles.iter().map(export).collect();
    let received = through_a_socket(&exported)
        .map_err(|errno| Error::Unsupported { operation: "send descriptors", reason: errno.to_string() })?;
    drop(exported);
    let import = |fd: &OwnedFd| {
        let mut handle = 0;
        let number = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the descriptor is one that the driver has exported, passed as `cuda.h` says.
        check(unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, number, FILE_DESCRIPTOR) });
        handle
    };
    let imported: Vec<u64> = received.iter().map(import).collect();
    drop(received);
    // SAFETY: zero is a value of every field of this C structure.
    let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // SAFETY: the documented order of the calls, in a reservation that has room for all and in which nothing is mapped.
    unsafe {
        for (place, handle) in imported.iter().enumerate() {
            check(sys::cuMemMap(at + (place * length) as u64, length, 0, *handle, 0));
        }
        check(sys::cuMemSetAccess(at, length * handles.len(), &raw const access, 1));
        check(sys::cuMemUnmap(at, length * handles.len()));
        for handle in imported {
            check(sys::cuMemRelease(handle));
        }
    }
    Ok(())
}

/// Sends descriptors from one end of a pair of sockets and receives them at the other.
fn through_a_socket(fds: &[OwnedFd]) -> rustix::io::Result<Vec<OwnedFd>> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    sendmsg(&one, &[IoSlice::new(b"64")], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&other, &mut [IoSliceMut::new(&mut [0; 2])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let all = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    Ok(all.collect())
}
