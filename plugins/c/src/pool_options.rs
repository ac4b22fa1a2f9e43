//! The options of a pool.

use crate::status::{CallResult, Failure};
use gpu_vmm::pool::{Pool, PoolBuilder};
use gpu_vmm::{AnyBackend, Bytes, DeviceId};

/// For `keep` of gpu_vmm_pool_options: the pool returns free memory to the driver at once. (One byte is less than any page.)
pub const GPU_VMM_KEEP_NOTHING: u64 = 1;

/// The options of a pool. All zeros, as after `= {0}`, is the default: a pool of device 0 without limits that keeps its memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// The device that the pool allocates from.
    pub device: u32,
    /// The largest amount of physical memory that the pool may hold, in bytes; 0 for what GPU_VMM_BUDGET says, or no limit.
    pub budget: u64,
    /// The largest amount of free memory that the pool keeps, in bytes; 0 for all of it, GPU_VMM_KEEP_NOTHING for none.
    pub keep: u64,
    /// The size in which the pool creates and maps physical memory, in bytes, a power of two. 0 for 2 MiB (8 MiB on devices with
    /// 64 GiB and more) or the driver's granularity, whichever is larger, and for 16 MiB in PyTorch's pools. Larger pages take fewer
    /// driver calls, but leave more memory unused around blocks.
    pub page: u64,
    /// How far the memory held may exceed the largest amount ever needed at one time, in percent. Up to that the pool creates new
    /// memory; beyond it, the pool maps free memory from elsewhere, which is slow if sizes change all the time. 0 for 1 %, or 7 %
    /// once the pool serves several streams.
    pub slack: u32,
    /// Whether the pool overwrites memory with zeros when it passes from one tag to another.
    pub scrub: bool,
    /// Whether the pool records where each block was allocated.
    pub debug: bool,
    /// Whether the pool creates memory that other processes of the machine can map, if the driver has such memory.
    pub shareable: bool,
    /// Whether the pool reserves addresses that other processes can reserve as well, for gpu_vmm_pool_restore.
    pub restorable: bool,
    /// Must be zero. Later versions place their settings here, so the size of the struct does not change. A setting that this
    /// version does not know is an error.
    pub reserved: [u64; 4],
}

impl PoolOptions {
    /// All zeros.
    pub(crate) const DEFAULT: Self = Self {
        device: 0,
        budget: 0,
        keep: 0,
        page: 0,
        slack: 0,
        scrub: false,
        debug: false,
        shareable: false,
        restorable: false,
        reserved: [0; 4],
    };

    /// Reports an error for settings of a later version.
    pub(crate) fn check(&self) -> CallResult {
        if self.reserved != [0; 4] {
            return Err(Failure::invalid(
                "make a pool: options.reserved is not zero; set the whole struct to zero first (gpu_vmm_pool_options options = {0}), \
                 or load a library as new as the header",
            ));
        }
        Ok(())
    }

    /// Returns the builder that the options describe.
    pub(crate) fn builder<'a>(&self, backend: &'a AnyBackend) -> CallResult<PoolBuilder<'a, AnyBackend>> {
        self.check()?;
        let mut builder = Pool::builder(backend).device(DeviceId(self.device));
        match self.keep {
            0 => {}
            GPU_VMM_KEEP_NOTHING => builder = builder.keep(Bytes::ZERO),
            keep => builder = builder.keep(Bytes(keep)),
        }
        if self.budget > 0 {
            builder = builder.budget(Bytes(self.budget));
        }
        if self.page > 0 {
            builder = builder.page(Bytes(self.page));
        }
        if self.slack > 0 {
            builder = builder.slack(self.slack);
        }
        if self.scrub {
            builder = builder.scrub();
        }
        if self.shareable {
            builder = builder.shareable();
        }
        if self.restorable {
            builder = builder.restorable();
        }
        Ok(if self.debug { builder.debug() } else { builder })
    }
}
