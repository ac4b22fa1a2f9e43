//! Messages as bytes: a header that tells who is meant and what comes next, and the message in postcard's format.
//!
//! What is read here was written by another process. It is held against what is expected before any of it is used, and
//! what is not exactly that is refused with the reason.

use crate::message::{MAX_BYTES, MAX_DESCRIPTORS, Message};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The first bytes of every message.
const MAGIC: [u8; 4] = *b"gvmm";

/// The version of the exchange: goes up with every change of the header or of [`Message`].
const VERSION: u16 = 1;

/// What the receiver of a message wants to be addressed by, so that no message of another exchange is taken.
pub(crate) type Nonce = [u8; 16];

/// By which the first message of a side is addressed, which tells that side's own nonce.
pub(crate) const TO_ANYBODY: Nonce = [0; 16];

/// Another nonce than all before.
pub(crate) fn new_nonce() -> Result<Nonce, Errno> {
    let mut nonce = TO_ANYBODY;
    loop {
        match getrandom(&mut nonce, GetRandomFlags::empty()) {
            // The kernel gives so few bytes whole.
            Ok(_) => return Ok(nonce),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What stands before each message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// How many descriptors are beside it.
    pub(crate) descriptors: u16,
    /// For whom it is.
    pub(crate) nonce: Nonce,
    /// How many messages went before it in this direction.
    pub(crate) sequence: u64,
}

impl Header {
    /// Magic, version, number of descriptors, nonce, sequence number, without gaps.
    pub(crate) const BYTES: usize = 4 + 2 + 2 + 16 + 8;

    fn write(self, packet: &mut Vec<u8>) {
        packet.extend(MAGIC);
        packet.extend(VERSION.to_le_bytes());
        packet.extend(self.descriptors.to_le_bytes());
        packet.extend(self.nonce);
        packet.extend(self.sequence.to_le_bytes());
    }

    /// The header and what is behind it.
    fn read(packet: &[u8]) -> Result<(Self, &[u8]), String> {
        let mut rest = packet;
        let short = || format!("{} bytes, fewer than the {} of a header", packet.len(), Self::BYTES);
        let magic = take(&mut rest).ok_or_else(short)?;
        let version = u16::from_le_bytes(take(&mut rest).ok_or_else(short)?);
        let header = Self {
            descriptors: u16::from_le_bytes(take(&mut rest).ok_or_else(short)?),
            nonce: take(&mut rest).ok_or_else(short)?,
            sequence: u64::from_le_bytes(take(&mut rest).ok_or_else(short)?),
        };
        if magic != MAGIC {
            return Err(format!("it begins with {magic:x?} and a message of gpu-vmm with {MAGIC:x?}"));
        }
        if version != VERSION {
            return Err(format!(
                "it is of version {version} of the exchange; version {VERSION} is spoken here"
            ));
        }
        Ok((header, rest))
    }
}

/// The first bytes, taken off.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// A message as it is sent.
///
/// # Errors
///
/// Why it is not one that can be sent: it is too long, or has too many descriptors.
pub(crate) fn encode(
    message: &Message,
    nonce: Nonce,
    sequence: u64,
    descriptors: usize,
) -> Result<Vec<u8>, String> {
    let most = |what: &str, most: usize| format!("more than the {most} {what} of one message");
    let descriptors = u16::try_from(descriptors).ok().filter(|count| usize::from(*count) <= MAX_DESCRIPTORS);
    let descriptors = descriptors.ok_or_else(|| most("descriptors", MAX_DESCRIPTORS))?;
    let mut packet = Vec::new();
    Header { descriptors, nonce, sequence }.write(&mut packet);
    let packet = postcard::to_extend(message, packet).map_err(|error| error.to_string())?;
    if packet.len() > MAX_BYTES { Err(most("bytes", MAX_BYTES)) } else { Ok(packet) }
}

/// The message in a packet that came with so many descriptors as `expected` says.
///
/// # Errors
///
/// Why it is not the message that is expected.
pub(crate) fn decode(packet: &[u8], expected: Header) -> Result<Message, String> {
    let (header, body) = Header::read(packet)?;
    if header.nonce != expected.nonce {
        let [theirs, ours] = [header.nonce, expected.nonce].map(u128::from_be_bytes);
        return Err(format!(
            "it is addressed to {theirs:032x}, and {ours:032x} was expected: it is of another exchange"
        ));
    }
    if header.sequence != expected.sequence {
        let (theirs, ours) = (header.sequence, expected.sequence);
        return Err(format!(
            "it has number {theirs}, and {ours} was expected: it is repeated, or one was lost"
        ));
    }
    if header.descriptors != expected.descriptors {
        let (theirs, ours) = (header.descriptors, expected.descriptors);
        return Err(format!("it tells of {theirs} descriptors, and {ours} came with it"));
    }
    decode_body(body)
}

/// The message in what is behind the header.
///
/// A length that lies costs nothing: postcard has serde reserve nothing where fewer bytes are left than there are to be
/// elements, and serde reserves a MiB at most.
pub(crate) fn decode_body(body: &[u8]) -> Result<Message, String> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("{} bytes are behind its end", rest.len())),
        Err(error) => Err(format!("its content is no message: {error}")),
    }
}
