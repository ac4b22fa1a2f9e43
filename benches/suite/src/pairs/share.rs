//! A region of 64 handles through a channel, compared with the driver's own calls: export, one socket message, import, map
//! and set access of 64 descriptors. Both sides free the received memory.

use super::pieces::{ByHand, grow_by};
use crate::raw::Raw;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Bytes, Properties, Region};
use gpu_vmm_share::{Channel, Exporter, ImportOptions};
use gpu_vmm_testkit::TestKit;
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

const HANDLES: usize = 64;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    for piece in [Bytes::mib(2), Bytes::mib(16)] {
        scene.needs(Bytes(2 * piece.0 * HANDLES as u64))?;
        share(scene, piece)?;
    }
    Ok(())
}

fn share<B: TestKit>(scene: &mut Scene<'_, B>, piece: Bytes) -> StepResult {
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let size = Bytes(piece.0 * HANDLES as u64);
    let memory = Properties::on(device).shareable();
    let mut region = Region::builder(backend).memory(memory).reserve(size).build()?;
    grow_by(&mut region, piece, size)?;
    let [mut from, mut to] = [ByHand::new(scene, size, piece)?, ByHand::new(scene, size, piece)?];
    from.create(Raw::create_shareable)?;
    scene.compare_whole(
        format!("{HANDLES} handles of {piece}"),
        "driver's own calls, one message",
        Plan::samples(100),
        || {
            let (ours, theirs) = Channel::pair()?;
            let exporter = Exporter::share(ours, &region)?;
            let imported = ImportOptions::new().receive(backend, theirs)?;
            drop(exporter);
            Ok(imported.detach().close(nothing_runs())?)
        },
        || {
            let exported =
                from.handles.iter().map(|handle| raw.export(*handle)).collect::<StepResult<Vec<_>>>()?;
            let received = through_a_socket(&exported).map_err(std::io::Error::from)?;
            drop(exported);
            if received.len() != HANDLES {
                return Err(Stop::Failed(format!("{} of {HANDLES} descriptors arrived", received.len())));
            }
            for fd in &received {
                to.handles.push(raw.import(fd.as_fd(), piece)?);
            }
            drop(received);
            to.map()?;
            to.unmap()?;
            to.release()
        },
    )?;
    Ok(region.close(nothing_runs())?)
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
