//! The fuzzer's entry to the decoder.

use crate::codec::{Header, TO_ANYBODY, decode as decode_packet, decode_body, encode};
use crate::message::Message;

/// Decodes any bytes, as a whole packet and as the part behind a header. A message that results must stay the same when
/// encoded and decoded again.
pub fn decode(bytes: &[u8]) {
    let expected = Header { descriptors: 0, nonce: TO_ANYBODY, sequence: 0 };
    let found: [Result<Message, String>; 2] = [decode_packet(bytes, expected), decode_body(bytes)];
    for message in found.into_iter().flatten() {
        // A message can decode from fewer bytes than it encodes to, and be too long to encode.
        if let Ok(packet) = encode(&message, TO_ANYBODY, 0, 0) {
            assert_eq!(decode_packet(&packet, expected), Ok(message));
        }
    }
}
