//! A vector of gpu-vmm that grows, used by a kernel that cudarc launches: both use one context.
//!
//! The kernel is PTX text, which the driver compiles; no toolkit is needed. Without an NVIDIA driver the example prints why and
//! ends.
//!
//! ```text
//! cargo run --example with_cudarc
//! ```
#![allow(unsafe_code)] // the compiler cannot check a kernel launch

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpu_vmm::cuda::{CudaBackend, MemoryView, MemoryViewMut};
use gpu_vmm::{DeviceId, DeviceVec, WaitFor};
use std::error::Error;
use std::sync::Arc;

/// Writes i * i to each of the 64-bit numbers.
const SQUARES: &str = "
.version 6.0
.target sm_52
.address_size 64

.visible .entry squares(.param .u64 numbers, .param .u64 count)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread;
    .reg .b64 %numbers, %count, %lane, %index, %square, %place;

    ld.param.u64 %numbers, [numbers];
    ld.param.u64 %count, [count];
    cvta.to.global.u64 %numbers, %numbers;

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %lane, %thread;
    mad.wide.u32 %index, %block, %threads, %lane;
    setp.ge.u64 %past, %index, %count;
    @%past bra finish;

    mul.lo.u64 %square, %index, %index;
    shl.b64 %place, %index, 3;
    add.u64 %place, %numbers, %place;
    st.global.u64 [%place], %square;

finish:
    ret;
}
";

fn main() -> Result<(), Box<dyn Error>> {
    // cudarc panics without a driver, while gpu-vmm returns an error that names where it looked. So gpu-vmm opens first.
    if let Err(error) = CudaBackend::open() {
        println!("this example needs an NVIDIA GPU and its driver: {error}");
        return Ok(());
    }

    // The program's own context, stream and kernel, as in any program with cudarc.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let squares = context.load_module(Ptx::from_src(SQUARES))?.load_function("squares")?;

    // gpu-vmm uses the same context.
    let backend = CudaBackend::with_cudarc(&context)?;
    let mut numbers = DeviceVec::<u64, _>::new(&backend, DeviceId(0))?;
    numbers.resize(1_000, 0)?;
    launch(&stream, &squares, &mut numbers)?;

    // The vector grows while the kernel runs: existing memory is not touched, and the pointer stays valid.
    let pointer = numbers.as_device_ptr();
    numbers.resize(4_000_000, 0)?;
    assert_eq!(numbers.as_device_ptr(), pointer);
    launch(&stream, &squares, &mut numbers)?;

    // cudarc's copies also take views and run after the kernels of their stream. A vector's own reads do not wait for streams.
    let read = stream.clone_dtoh(&MemoryView::of_vec(&stream, &numbers)?)?;
    let wrong = read.iter().zip(0u64..).filter(|(number, index)| **number != index * index).count();
    println!("{wrong} of {} are wrong", read.len());
    assert_eq!((wrong, read.len()), (0, 4_000_000));

    // Releases memory once the devices have finished with it.
    numbers.truncate(1_000);
    numbers.shrink_to_fit(WaitFor::all_devices())?;
    println!("{} squares are left, in {}", numbers.len(), numbers.region().mapped());
    Ok(())
}

/// Queues the kernel. The vector cannot be changed while the view exists, and its memory stays until the device has finished.
fn launch(
    stream: &Arc<CudaStream>,
    squares: &CudaFunction,
    numbers: &mut DeviceVec<u64, CudaBackend>,
) -> Result<(), Box<dyn Error>> {
    println!("{} squares at {} in {}", numbers.len(), numbers.region().address(), numbers.region().mapped());
    let mut view = MemoryViewMut::of_vec(stream, numbers)?;
    let count = view.len() as u64;
    let mut launch = stream.launch_builder(squares);
    launch.arg(&mut view).arg(&count);
    // SAFETY: the kernel takes an address and a count, and writes that many numbers, starting at the address.
    unsafe { launch.launch(LaunchConfig::for_num_elems(u32::try_from(count)?)) }?;
    Ok(())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    main()
}
