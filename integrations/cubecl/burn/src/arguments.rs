//! The program's arguments.

use gpu_vmm::{Bytes, Vendor};

/// How to use the program.
pub const USAGE: &str = "\
usage: gpu-vmm-burn [OPTIONS] train|generate
  --vendor cuda|hip                 the device's vendor (cuda)
  --memory own|gpu-vmm              the device memory: cubecl's own pools, or a pool of gpu-vmm (gpu-vmm)
  --limit MiB                       leaves that much of the device's memory free before the first step
  --model transformer|conv          the model to train (transformer)
  --size small|full                 the size of the model and its inputs (full)
  --steps N                         training steps, or generated tokens (40)
  --cache joined|whole|growing      generation: the memory of the cache (joined)";

/// Where device memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// cubecl's own pools.
    Own,
    /// A pool of gpu-vmm.
    GpuVmm,
}

/// What the program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Trains a transformer.
    TrainTransformer,
    /// Trains a convolutional network.
    TrainConv,
    /// Generates tokens with a transformer.
    Generate,
}

/// How generation stores the keys and values of earlier tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Each token copies the cache to a tensor that is one token longer, as burn's own caches do.
    Joined,
    /// The tensor has the length of the longest sequence from the start.
    Whole,
    /// The tensor has the addresses of the longest sequence, and memory for the tokens so far.
    Growing,
}

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// The device's vendor.
    pub vendor: Vendor,
    /// Where device memory comes from.
    pub memory: Memory,
    /// The device memory that is left free.
    pub limit: Option<Bytes>,
    /// What the program does.
    pub task: Task,
    /// True for the small size.
    pub small: bool,
    /// Training steps, or generated tokens.
    pub steps: usize,
    /// How generation stores keys and values.
    pub cache: Cache,
}

impl Arguments {
    /// Parses the arguments, without the program's name.
    ///
    /// # Errors
    ///
    /// A text that names the argument.
    pub fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut all = Self {
            vendor: Vendor::Cuda,
            memory: Memory::GpuVmm,
            limit: None,
            task: Task::TrainTransformer,
            small: false,
            steps: 40,
            cache: Cache::Joined,
        };
        let (mut generate, mut named) = (false, false);
        while let Some(name) = given.next() {
            if name == "train" || name == "generate" {
                (generate, named) = (name == "generate", true);
                continue;
            }
            let value = given.next().ok_or_else(|| format!("{name} needs a value"))?;
            match (name.as_str(), value.as_str()) {
                ("--vendor", "cuda") => all.vendor = Vendor::Cuda,
                ("--vendor", "hip") => all.vendor = Vendor::Hip,
                ("--memory", "own") => all.memory = Memory::Own,
                ("--memory", "gpu-vmm") => all.memory = Memory::GpuVmm,
                ("--limit", _) => all.limit = Some(Bytes::mib(number(&name, &value)?)),
                ("--model", "transformer") => all.task = Task::TrainTransformer,
                ("--model", "conv") => all.task = Task::TrainConv,
                ("--size", "small") => all.small = true,
                ("--size", "full") => all.small = false,
                ("--steps", _) => all.steps = number(&name, &value)? as usize,
                ("--cache", "joined") => all.cache = Cache::Joined,
                ("--cache", "whole") => all.cache = Cache::Whole,
                ("--cache", "growing") => all.cache = Cache::Growing,
                _ => return Err(format!("unknown argument: {name} {value}")),
            }
        }
        if !named {
            return Err("name what to do: train or generate".into());
        }
        if generate {
            all.task = Task::Generate;
        }
        if all.cache == Cache::Growing && all.memory == Memory::Own {
            return Err(
                "--cache growing needs --memory gpu-vmm: cubecl's own pools cannot grow an allocation".into(),
            );
        }
        Ok(all)
    }
}

/// Parses a number of at least 1 and below 2^32.
fn number(name: &str, value: &str) -> Result<u64, String> {
    match value.parse::<u32>() {
        Ok(number) if number > 0 => Ok(number.into()),
        _ => Err(format!("{name} takes a number from 1 to {}, not {value}", u32::MAX)),
    }
}
