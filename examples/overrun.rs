//! A kernel that writes past the end of a pool's block, which NVIDIA's compute-sanitizer finds: the pool tells it where blocks are.
//!
//! The kernel is PTX text, which the driver compiles; no toolkit is needed to build this. Without an NVIDIA driver the example
//! prints why and ends.
//!
//! ```text
//! cargo build --features profiler --example overrun
//! compute-sanitizer target/debug/examples/overrun       # ERROR SUMMARY: 0 errors
//! compute-sanitizer target/debug/examples/overrun 1     # an invalid write of 8 bytes, right behind the block
//! ```
//!
//! Without the feature `profiler`, both runs report 0 errors: the memory behind the block belongs to the pool.
#![allow(unsafe_code)] // the compiler cannot check a kernel launch

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpu_vmm::Bytes;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::pool::Pool;
use std::error::Error;

/// Writes i * i to each of the 64-bit numbers.
const SQUARES: &str = include_str!("squares.ptx");

/// The numbers in the block. The pool rounds the block up to a size with room for more.
const NUMBERS: u64 = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let past = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 0,
    };
    run(past)
}

/// Writes the block's numbers, and `past` numbers more.
fn run(past: u64) -> Result<(), Box<dyn Error>> {
    if let Err(error) = CudaBackend::open() {
        println!("this example needs an NVIDIA GPU and its driver: {error}");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let squares = context.load_module(Ptx::from_src(SQUARES))?.load_function("squares")?;

    let backend = CudaBackend::with_cudarc(&context)?;
    let pool = Pool::builder(&backend).build()?;
    let block = pool.alloc(Bytes(NUMBERS * 8))?;
    let room = (block.capacity().0 - block.size().0) / 8;
    if past > room {
        return Err(
            format!("{past} numbers past the end would be in another block; up to {room} are not").into()
        );
    }

    let (address, count) = (block.address().0, NUMBERS + past);
    let mut launch = stream.launch_builder(&squares);
    launch.arg(&address).arg(&count);
    // SAFETY: the kernel writes `count` numbers from the address on. They are in the block, or behind it in memory that the pool
    // has rounded it up to, where nothing else is.
    unsafe { launch.launch(LaunchConfig::for_num_elems(u32::try_from(count)?)) }?;
    stream.synchronize()?;
    println!("wrote {count} numbers to a block of {NUMBERS} at {}", block.address());
    Ok(())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    run(0)
}
