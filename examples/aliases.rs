//! One memory at two addresses in one kernel: a kernel that is wrong, and the one with the fence that makes it right.
//!
//! A GPU's first cache knows addresses, not memory. A kernel that reads through one address, writes through the other and reads again
//! gets the old value, unless `fence.proxy.alias` is between the write and the read. Kernels and copies that run one after the
//! other need no fence.
//!
//! The kernels are PTX text, which the driver compiles; no toolkit is needed. Without an NVIDIA driver the example prints why and
//! ends.
//!
//! ```text
//! cargo run --example aliases
//! ```
#![allow(unsafe_code)] // the compiler cannot check a kernel launch

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{Access, Bytes, DeviceId, PhysicalMemory, Properties, Region};
use std::error::Error;

/// Each thread reads one number at `there`, writes another at the same place of `here`, and reads `there` again. Counts the threads
/// that read the old number.
const KERNEL: &str = "
.version 7.5
.target sm_70
.address_size 64

.visible .entry NAME(.param .u64 here, .param .u64 there, .param .u32 next, .param .u64 stale)
{
    .reg .pred %old;
    .reg .b32 %block, %threads, %thread, %index, %first, %new, %again;
    .reg .b64 %here, %there, %stale, %offset;

    ld.param.u64 %here, [here];
    ld.param.u64 %there, [there];
    ld.param.u32 %new, [next];
    ld.param.u64 %stale, [stale];

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %here, %here, %offset;
    add.u64 %there, %there, %offset;

    ld.global.ca.u32 %first, [%there];
    add.u32 %new, %new, %first;
    st.global.u32 [%here], %new;
    FENCE
    ld.global.ca.u32 %again, [%there];
    setp.eq.u32 %old, %again, %new;
    @%old bra finish;
    red.global.add.u32 [%stale], 1;

finish:
    ret;
}
";

/// The number of threads, one for each number.
const COUNT: u32 = 1 << 18;

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(error) = CudaBackend::open() {
        println!("this example needs an NVIDIA GPU and its driver: {error}");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let backend = CudaBackend::with_cudarc(&context)?;

    // The same memory at two addresses of one region.
    let device = DeviceId(0);
    let memory = PhysicalMemory::create(&backend, Bytes::mib(2), Properties::on(device))?;
    let size = memory.size();
    let mut region = Region::builder(&backend).reserve(size + size).build()?;
    region.map_with_access(Bytes(0), &[memory.clone(), memory], device, Access::ReadWrite)?;
    region.fill(Bytes(0), size, 0)?;
    let (here, there) = (region.address().0, (region.address() + size).0);

    for (name, fence) in [("wrong", ""), ("right", "fence.proxy.alias;")] {
        let text = KERNEL.replace("NAME", name).replace("FENCE", fence);
        let kernel = context.load_module(Ptx::from_src(text))?.load_function(name)?;
        let mut stale = stream.alloc_zeros::<u32>(1)?;
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&here).arg(&there).arg(&1_u32).arg(&mut stale);
        // SAFETY: the kernel reads and writes COUNT numbers of 32 bits at both addresses, which are 2 MiB of the mapped memory at
        // most, and one at the third. The region lives until the stream has finished, below.
        unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT)) }?;
        let stale = stream.clone_dtoh(&stale)?[0];
        stream.synchronize()?;
        println!("{name}: {stale} of {COUNT} threads read the old number");
        if name == "right" {
            assert_eq!(stale, 0);
        }
    }

    // Both kernels have added 1, and a copy after them sees that at both addresses.
    let mut bytes = [0; 4];
    for offset in [Bytes(0), size] {
        region.read(offset, &mut bytes)?;
        println!("at {}: {}", region.address() + offset, u32::from_ne_bytes(bytes));
        assert_eq!(u32::from_ne_bytes(bytes), 2);
    }
    Ok(())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    main()
}
