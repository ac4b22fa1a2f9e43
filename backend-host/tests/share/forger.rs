//! A peer of a channel, written by hand from the protocol description. It can send invalid messages too.
//!
//! The real ends must understand it, so a change of the message format fails here.

use gpu_vmm_core::Bytes;
use gpu_vmm_share::manifest::{Origin, SharedMapping, SharedPiece};
use gpu_vmm_share::{Allowed, Channel};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Say {
    Hello { nonce: [u8; 16] },
    Memory { origin: Origin, piece: SharedPiece },
    Begin(Begin),
    Removed(Vec<u64>),
    Pieces(Vec<SharedPiece>),
    Mappings(Vec<SharedMapping>),
    End,
    Applied { revision: u64 },
    Refused { revision: u64, why: String },
    ReleaseRequested,
    Released,
    Kept,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) origin: Origin,
    pub(crate) revision: u64,
    pub(crate) base: u64,
    pub(crate) end: u64,
    pub(crate) removed: u32,
    pub(crate) pieces: u32,
    pub(crate) mappings: u32,
}

/// Magic, version, number of descriptors, nonce, sequence number.
const HEADER: usize = 4 + 2 + 2 + 16 + 8;
const MAX_DESCRIPTORS: usize = 253;

#[derive(Debug)]
pub(crate) struct Forger {
    socket: OwnedFd,
    theirs: [u8; 16],
    sent: u64,
}

impl Forger {
    /// Creates a forger and the real end that it talks to.
    pub(crate) fn new() -> (Self, Channel) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let channel = Channel::from_socket(theirs, Allowed::same_user()).unwrap();
        let mut forger = Self { socket: ours, theirs: [0; 16], sent: 0 };
        let (Say::Hello { nonce }, _) = forger.hear() else { panic!("the channel begins with a greeting") };
        forger.say(&Say::Hello { nonce: [7; 16] }, &[]);
        forger.theirs = nonce;
        (forger, channel)
    }

    pub(crate) fn say(&mut self, what: &Say, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.say_raw(&postcard::to_allocvec(what).unwrap(), descriptors)
    }

    /// Sends any bytes after a valid header. Returns false if the other end has closed or has no room.
    pub(crate) fn say_raw(&mut self, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut packet = Vec::with_capacity(HEADER + body.len());
        packet.extend(b"gvmm");
        packet.extend(1u16.to_le_bytes());
        packet.extend((descriptors.len() as u16).to_le_bytes());
        packet.extend(self.theirs);
        packet.extend(self.sent.to_le_bytes());
        packet.extend(body);
        let sent = put(self.socket.as_fd(), &packet, descriptors);
        self.sent += u64::from(sent);
        sent
    }

    /// Receives a message of the real end, with its descriptors.
    pub(crate) fn hear(&mut self) -> (Say, Vec<OwnedFd>) {
        let (packet, descriptors) = get(self.socket.as_fd(), RecvFlags::DONTWAIT).unwrap();
        (postcard::from_bytes(&packet[HEADER..]).unwrap(), descriptors)
    }

    /// Receives a message that has arrived; `None` if there is none.
    pub(crate) fn heard(&mut self) -> Option<Say> {
        let (packet, _) = get(self.socket.as_fd(), RecvFlags::DONTWAIT)?;
        Some(postcard::from_bytes(&packet[HEADER..]).unwrap())
    }
}

/// Sends a packet. Returns false if the other end has closed or has no room.
pub(crate) fn put(socket: BorrowedFd<'_>, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags).is_ok()
}

/// Receives a packet; `None` if the other end has closed.
pub(crate) fn get(socket: BorrowedFd<'_>, flags: RecvFlags) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; 64 << 10];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    // If the other end has closed with unread packets, the kernel reports that once, before the packets that it has sent.
    let came = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        .or_else(|_| recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags))
        .ok()?;
    bytes.truncate(came.bytes);
    let descriptors = control.drain().flat_map(|beside| match beside {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    (!bytes.is_empty()).then_some((bytes, descriptors))
}

/// The description of a region, or of a change of it.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) begin: Begin,
    pub(crate) removed: Vec<u64>,
    pub(crate) pieces: Vec<SharedPiece>,
    pub(crate) mappings: Vec<SharedMapping>,
    /// One descriptor for each piece.
    pub(crate) descriptors: Vec<std::sync::Arc<OwnedFd>>,
}

impl Description {
    /// Receives the description that a real exporter sends.
    pub(crate) fn hear(forger: &mut Forger) -> Self {
        let (Say::Begin(begin), _) = forger.hear() else { panic!("a description has a beginning") };
        let (removed, pieces, mappings, descriptors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut heard = Self { begin, removed, pieces, mappings, descriptors };
        loop {
            let (said, descriptors) = forger.hear();
            match said {
                Say::Removed(list) => heard.removed.extend(list),
                Say::Pieces(list) => heard.pieces.extend(list),
                Say::Mappings(list) => heard.mappings.extend(list),
                Say::End => return heard,
                other => panic!("{other:?} in a description"),
            }
            heard.descriptors.extend(descriptors.into_iter().map(std::sync::Arc::new));
        }
    }

    /// Sets the counts in the beginning to match the rest.
    pub(crate) fn counted(mut self) -> Self {
        self.begin.removed = self.removed.len() as u32;
        self.begin.pieces = self.pieces.len() as u32;
        self.begin.mappings = self.mappings.len() as u32;
        self
    }

    /// Returns the messages, with the descriptors of each.
    pub(crate) fn messages(&self) -> Vec<(Say, Vec<BorrowedFd<'_>>)> {
        let mut messages = vec![(Say::Begin(self.begin.clone()), Vec::new())];
        if !self.removed.is_empty() {
            messages.push((Say::Removed(self.removed.clone()), Vec::new()));
        }
        if !self.pieces.is_empty() || !self.descriptors.is_empty() {
            let descriptors = self.descriptors.iter().map(|one| one.as_fd()).collect();
            messages.push((Say::Pieces(self.pieces.clone()), descriptors));
        }
        if !self.mappings.is_empty() {
            messages.push((Say::Mappings(self.mappings.clone()), Vec::new()));
        }
        messages.push((Say::End, Vec::new()));
        messages
    }

    pub(crate) fn say(&self, forger: &mut Forger) {
        for (message, descriptors) in self.messages() {
            forger.say(&message, &descriptors);
        }
    }

    /// Adds a mapping of a piece.
    pub(crate) fn map(&mut self, offset: Bytes, piece: u32) {
        self.mappings.push(SharedMapping { offset: offset.0, piece });
    }
}
