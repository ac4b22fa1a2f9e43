//! The simulated kernels: each is a function here, found by the kernel's name in the code object that HIP has loaded. The
//! compiled code itself never runs.
//!
//! The dispatch packet names the address of the arguments, in the compiler's layout. Every access goes through the page walk
//! of the kernel's GPU. The kernels process all of their data with any grid. A kernel that faults has done either nothing, or
//! all words before the fault in order; a real one has no order.
//!
//! | kernel | parameters, 64 bits each | action |
//! |---|---|---|
//! | `gpu_vmm_write_pattern` | words, count, seed | writes the test kit's pattern |
//! | `gpu_vmm_count_wrong` | words, count, seed, counted | adds the number of checked words to `counted[0]`, and the number that differ to `counted[1]` |
//! | `gpu_vmm_walk_list` | node, most, walked | follows a list and writes the number of visited nodes and their sum to `walked` |
//!
//! HIP's own kernels serve `hipMemset` and copies on one device.

mod arguments;
mod hip;
mod memory;
mod pattern;

use crate::code;
use crate::memory::{Fault, copy, fault};
use crate::report::stop;
use crate::settings::settings;
use arguments::Arguments;

/// A known kernel.
struct Known {
    name: &'static str,
    /// The number of argument bytes that it reads.
    arguments: usize,
    run: fn(agent: usize, &Arguments) -> Result<(), Fault>,
}

/// HIP's own kernels, and the kernels of programs.
const KNOWN: [&[Known]; 2] = [hip::KERNELS, pattern::KERNELS];

/// Runs the kernel whose descriptor is at `object`, with the arguments at `arguments`.
pub(crate) fn dispatch(agent: usize, object: u64, arguments: u64) {
    let Some((name, kernel)) = code::kernel(object) else {
        stop(format_args!("a dispatch of {object:#x}, which is not a kernel"));
    };
    let Some(known) = KNOWN.into_iter().flatten().find(|known| known.name == name) else {
        return unknown(&name);
    };
    let is_hips = hip::KERNELS.iter().any(|known| known.name == name);
    if !settings().run_kernels && !is_hips {
        trace!("kernel {name} on agent {agent}: ignored");
        return;
    }
    trace!("kernel {name} on agent {agent}");
    if kernel.arguments < known.arguments as u32 {
        stop(format_args!(
            "kernel {name} has {} bytes of arguments, but the simulated one has {}: the declarations differ",
            kernel.arguments, known.arguments
        ));
    }
    let arguments = copy::read(agent, arguments as usize, known.arguments).map(Arguments);
    let result = arguments.and_then(|arguments| (known.run)(agent, &arguments));
    if let Err(wrong) = result {
        fault(agent, wrong, &name);
    }
}

fn unknown(name: &str) {
    if settings().abort_on_unknown_kernel {
        stop(format_args!(
            "kernel {name} is not simulated; HSA_SIM_ON_UNKNOWN_KERNEL=skip ignores such kernels"
        ));
    }
    eprintln!("hsa-sim: kernel {name} is not simulated and is ignored");
}
