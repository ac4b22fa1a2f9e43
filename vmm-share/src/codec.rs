//! Messages as bytes: a header with the receiver and the sequence number, then the message in postcard's format.
//!
//! The bytes come from another process. The header must be exactly as expected before any of the message is used.

use crate::message::{MAX_BYTES, MAX_DESCRIPTORS};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first bytes of every message.
const MAGIC: [u8; 4] = *b"gvmm";

/// The version of the protocol. Every change of the header or of [`Message`](crate::message::Message) increments it.
const VERSION: u16 = 1;

/// The random number by which a receiver is addressed, so that it accepts no message of another exchange.
pub(crate) type Nonce = [u8; 16];

/// The receiver's nonce in the first message of each side, which contains that side's own nonce.
pub(crate) const TO_ANYBODY: Nonce = [0; 16];

/// Returns a random nonce.
pub(crate) fn new_nonce() -> Result<Nonce, Errno> {
    let mut nonce = TO_ANYBODY;
    loop {
        match getrandom(&mut nonce, GetRandomFlags::empty()) {
            // The kernel never returns fewer than 16 bytes.
            Ok(_) => return Ok(nonce),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The header of each message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The number of its descriptors.
    pub(crate) descriptors: u16,
    /// The nonce of its receiver.
    pub(crate) nonce: Nonce,
    /// The number of earlier messages in this direction.
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

    /// Returns the header and the bytes behind it.
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
            return Err(format!(
                "it begins with {magic:x?}, and a message of gpu-vmm begins with {MAGIC:x?}"
            ));
        }
        if version != VERSION {
            return Err(format!("it has protocol version {version}, and {VERSION} was expected"));
        }
        Ok((header, rest))
    }
}

/// Removes the first `N` bytes and returns them.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Encodes a message with its header.
///
/// # Errors
///
/// The reason why it cannot be sent: it is too long, or has too many descriptors.
pub(crate) fn encode(
    message: &impl Serialize,
    nonce: Nonce,
    sequence: u64,
    descriptors: usize,
) -> Result<Vec<u8>, String> {
    let most = |what: &str, most: usize| format!("more than the limit of {most} {what} per message");
    let descriptors = u16::try_from(descriptors).ok().filter(|count| usize::from(*count) <= MAX_DESCRIPTORS);
    let descriptors = descriptors.ok_or_else(|| most("descriptors", MAX_DESCRIPTORS))?;
    let mut packet = Vec::new();
    Header { descriptors, nonce, sequence }.write(&mut packet);
    let packet = postcard::to_extend(message, packet).map_err(|error| error.to_string())?;
    if packet.len() > MAX_BYTES { Err(most("bytes", MAX_BYTES)) } else { Ok(packet) }
}

/// Decodes a packet, whose header must be `expected`.
///
/// # Errors
///
/// The reason why it is not the expected message.
pub(crate) fn decode<M: DeserializeOwned>(packet: &[u8], expected: Header) -> Result<M, String> {
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
        return Err(format!("its header announces {theirs} descriptors, and {ours} came with it"));
    }
    decode_body(body)
}

/// Decodes the bytes behind the header.
///
/// A false length allocates nothing: postcard makes serde reserve nothing if fewer bytes are left than elements announced, and
/// serde reserves at most 1 MiB.
pub(crate) fn decode_body<M: DeserializeOwned>(body: &[u8]) -> Result<M, String> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("{} bytes follow its end", rest.len())),
        Err(error) => Err(format!("its content is not a message: {error}")),
    }
}
