//! Memory that grows here, used by a kernel that cudarc launches: both work in one context.
//!
//! The kernel is PTX text, which the driver compiles; no toolkit is needed. Without an NVIDIA driver the example says
//! so and ends.
//!
//! ```text
//! cargo run --example with_cudarc
//! ```
#![allow(unsafe_code)] // launching a kernel is the one thing that cannot be checked

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{DeviceId, DevicePtr, DeviceVec, WaitFor};
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
    // cudarc panics where there is no driver; gpu-vmm gives an error that says where it looked. So it goes first.
    if let Err(error) = CudaBackend::open() {
        println!("this example needs an NVIDIA GPU and its driver: {error}");
        return Ok(());
    }

    // The program's own context, stream and kernel, as in any program with cudarc.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let squares = context.load_module(Ptx::from_src(SQUARES))?.load_function("squares")?;

    // gpu-vmm works in that context too.
    let backend = CudaBackend::with_cudarc(&context)?;
    let mut numbers = DeviceVec::<u64, _>::new(&backend, DeviceId(0))?;
    numbers.resize(1_000, 0)?;
    let pointer = numbers.as_device_ptr();
    launch(&stream, &squares, pointer, numbers.len())?;
    println!("{} squares at {} in {}", numbers.len(), pointer.address(), numbers.region().mapped());

    // The vector grows under the running kernel: what is there is not touched, and the pointer stays good.
    numbers.resize(4_000_000, 0)?;
    assert_eq!(numbers.as_device_ptr(), pointer);
    launch(&stream, &squares, pointer, numbers.len())?;
    println!("{} squares at {} in {}", numbers.len(), pointer.address(), numbers.region().mapped());

    // Reading does not wait for streams.
    stream.synchronize()?;
    let wrong =
        numbers.to_vec()?.iter().zip(0u64..).filter(|(number, index)| **number != index * index).count();
    println!("{wrong} of them are wrong");
    assert_eq!(wrong, 0);

    // Memory is given back once the streams that used it are done.
    numbers.truncate(1_000);
    let streams = [backend.stream(&stream)?];
    // SAFETY: no other stream has used the numbers.
    let done = unsafe { WaitFor::streams(&streams) };
    numbers.shrink_to_fit(done)?;
    println!("{} squares are left, in {}", numbers.len(), numbers.region().mapped());
    Ok(())
}

fn launch(
    stream: &Arc<CudaStream>,
    squares: &CudaFunction,
    numbers: DevicePtr<u64>,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let (address, count) = (numbers.address().0, count as u64);
    let mut launch = stream.launch_builder(squares);
    launch.arg(&address).arg(&count);
    // SAFETY: the kernel takes an address and a count, and writes that many numbers from the address on, which is
    // memory of the stream's device that lives until the stream has been waited for.
    unsafe { launch.launch(LaunchConfig::for_num_elems(u32::try_from(count)?)) }?;
    Ok(())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    main()
}
