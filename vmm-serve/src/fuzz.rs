//! The fuzzer's entry to everything that is read from another process or from a file.

use crate::client::file_contents;
use crate::layout::Layout;
use crate::protocol::{Reply, Request};
use std::io::Write;

/// Decodes any bytes as each kind of message, as a layout, and as a file of weights. What results must stay the same when encoded and
/// decoded again.
///
/// # Panics
///
/// If it does not.
#[allow(clippy::expect_used)] // a failure for the fuzzer
pub fn decode(bytes: &[u8]) {
    if let Ok(request) = postcard::from_bytes::<Request>(bytes) {
        let again = postcard::to_allocvec(&request).expect("a request can be encoded");
        assert_eq!(postcard::from_bytes::<Request>(&again), Ok(request));
    }
    if let Ok(reply) = postcard::from_bytes::<Reply>(bytes) {
        let again = postcard::to_allocvec(&reply).expect("a reply can be encoded");
        assert_eq!(postcard::from_bytes::<Reply>(&again), Ok(reply.clone()));
        if let Reply::Refused(error) = reply {
            assert!(!error.printable().to_string().contains('\u{1b}'));
        }
    }
    if let Ok(layout) = Layout::decode(bytes) {
        let again = layout.encode().expect("a layout that was decoded is small enough");
        assert_eq!(Layout::decode(&again), Ok(layout));
    }
    let header = [(bytes.len() as u64).to_le_bytes().as_slice(), bytes].concat();
    for content in [bytes, &header] {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(content).expect("room for a temporary file");
        let _ = file_contents(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_testkit::Random;

    #[test]
    fn any_bytes_are_decoded() {
        let mut random = Random(11);
        let json =
            br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"gpu_vmm":"{}"}}"#;
        for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
            decode(&random.bytes(120));
            let mut header = json.to_vec();
            for _ in 0..=random.below(3) {
                let at = random.below(header.len());
                header[at] = random.next() as u8;
            }
            decode(&header);
        }
    }
}
