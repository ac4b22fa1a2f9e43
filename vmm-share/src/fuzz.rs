//! Where a fuzzer gets at the decoder.

use crate::codec::{Header, TO_ANYBODY, decode as decode_packet, decode_body, encode};

/// Decodes any bytes, as a whole packet and as what is behind a header. A message that is found is encoded and decoded
/// again, and has to be the same.
pub fn decode(bytes: &[u8]) {
    let expected = Header { descriptors: 0, nonce: TO_ANYBODY, sequence: 0 };
    let found = [decode_packet(bytes, expected), decode_body(bytes)];
    for message in found.into_iter().flatten() {
        // One can decode from fewer bytes than it is encoded to, and be too long for it.
        if let Ok(packet) = encode(&message, TO_ANYBODY, 0, 0) {
            assert_eq!(decode_packet(&packet, expected), Ok(message));
        }
    }
}
