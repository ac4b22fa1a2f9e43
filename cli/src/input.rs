//! Files that the command reads as a whole: reports and pool snapshots.

use crate::CliResult;
use gpu_vmm::Bytes;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The maximum file size. A device such as `/dev/zero` has no end, and no report is nearly as large.
const MAX_SIZE: Bytes = Bytes::mib(256);

/// Reads a file of at most [`MAX_SIZE`].
pub(crate) fn read(file: &Path) -> CliResult<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|opened| opened.take(MAX_SIZE.0 + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(format!("{} cannot be read: {error}", file.display()).into()),
        Ok(length) if length as u64 > MAX_SIZE.0 => {
            Err(format!("{} cannot be read: it is larger than {MAX_SIZE}", file.display()).into())
        }
        Ok(_) => Ok(bytes),
    }
}
