//! HIP's own kernels, which it compiles in the process at their first use: for `hipMemset`, and for copies without a copy
//! engine. Their parameters are those that HIP's binaries pass.

use super::Known;
use super::arguments::Arguments;
use crate::memory::{Fault, copy};

pub(super) const KERNELS: &[Known] = &[
    Known { name: "__amd_rocclr_copyBuffer", arguments: 24, run: copy_buffer },
    Known { name: "__amd_rocclr_fillBufferAligned", arguments: 32, run: fill_buffer },
    Known { name: "__amd_rocclr_initHeap", arguments: 0, run: nothing },
    Known { name: "__amd_rocclr_gwsInit", arguments: 0, run: nothing },
];

/// Parameters: source, target, size in bytes, and the division of the work.
fn copy_buffer(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let [source, target, size] = [0, 1, 2].map(|number| arguments.nth(number) as usize);
    copy::copy(agent, target, source, size)
}

/// Parameters: buffer, pattern, the number and size of the pattern's units, and the buffer's end.
fn fill_buffer(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let (buffer, end) = (arguments.long(0) as usize, arguments.long(24) as usize);
    let pattern_size = arguments.int(16) as usize * arguments.int(20) as usize;
    let pattern = copy::read(agent, arguments.long(8) as usize, pattern_size)?;
    copy::fill(agent, buffer, end.saturating_sub(buffer), &pattern)
}

/// Does nothing: HIP's kernel prepares data that no simulated kernel uses.
#[allow(clippy::unnecessary_wraps)]
fn nothing(_: usize, _: &Arguments) -> Result<(), Fault> {
    Ok(())
}
