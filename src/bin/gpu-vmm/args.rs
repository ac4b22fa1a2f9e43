//! The arguments, their help, and what can be said against them before any driver is asked.

use crate::steps::Increment;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use gpu_vmm::{Address, Bytes, Vendor};

const EXAMPLES: &str = "\
Examples:
  gpu-vmm info                            what works on this machine, and why the rest does not
  gpu-vmm grow                            grow from 2 MiB to 1 GiB on the best device there is
  gpu-vmm grow --to 64GiB --fixed         fail rather than move to another address
  gpu-vmm grow --by 64MiB --reserve 64MiB run out of addresses, to see memory extended and remapped
  gpu-vmm grow --backend host --json      on host memory, for a program to read";

/// Shows what GPU drivers can do with virtual memory, and grows memory in place.
#[derive(Parser, Debug)]
#[command(name = "gpu-vmm", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say which backends and devices there are, what each can do, and why not where it cannot
    Info(InfoArguments),
    /// Grow memory in steps, fill and check all of it, and compare with allocating, copying and freeing
    #[command(long_about = GROW)]
    Grow(GrowArguments),
}

const GROW: &str = "\
Grow memory in steps, fill and check all of it, and compare with allocating, copying and freeing.

Each step creates physical memory, maps it behind what is there and sets its access; that is the time which is \
shown. The step tells how it grew: `within` the addresses that were reserved, `extended` by addresses right behind \
them, or `remapped` to a larger range elsewhere, where the same physical memory is mapped and no byte is copied. The \
device fills the new part with a pattern after each step and checks all parts at the end.

Then the same sizes are gone through without virtual memory management: allocate, copy, free the old. On a GPU the \
times hold all that the driver does. On host memory the kernel gives pages when an address is first touched: for \
memory that is new or remapped that is counted on neither side, for the target of a copy it is part of copying.

Sizes are bytes, or have one of the units B, KiB, MiB, GiB and TiB, as in 1.5GiB (2M and 2MB mean 2MiB). They are \
rounded up to the device's granularity, which is 2 MiB on most.";

#[derive(Args, Debug)]
pub(crate) struct InfoArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GrowArguments {
    /// Whose driver; `any` is a GPU's where there is one, else host memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: BackendChoice,
    /// The device's ordinal in its backend [default: the first that is usable]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
    /// The size of the first step
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = some_bytes)]
    pub(crate) from: Bytes,
    /// The size of the last step
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = some_bytes)]
    pub(crate) to: Bytes,
    /// How much a step adds: `double` what is there, or a size
    #[arg(long, value_name = "double|SIZE", default_value = "double")]
    pub(crate) by: Increment,
    /// Fail rather than move to another address
    #[arg(long)]
    pub(crate) fixed: bool,
    /// How many addresses to reserve at first [default: as much as the device has memory]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    pub(crate) reserve: Option<Bytes>,
    /// The least size of a reservation that is added behind a full one [default: as much as there is]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    pub(crate) extend_by: Option<Bytes>,
    /// The first address, such as 0x100000000000; fail where it is taken [default: the driver's choice]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) at: Option<Address>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which backend is asked for.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum BackendChoice {
    #[default]
    Any,
    Cuda,
    Hip,
    Host,
}

impl BackendChoice {
    /// The vendor, where one is named.
    pub(crate) const fn vendor(self) -> Option<Vendor> {
        match self {
            Self::Any => None,
            Self::Cuda => Some(Vendor::Cuda),
            Self::Hip => Some(Vendor::Hip),
            Self::Host => Some(Vendor::Host),
        }
    }
}

impl Arguments {
    /// The arguments of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let arguments = Self::try_parse()?;
        if let Command::Grow(GrowArguments { from, to, .. }) = &arguments.command
            && from > to
        {
            let text = format!("--from {from} is more than --to {to}");
            let mut command = Self::command();
            command.build();
            let grow = command.find_subcommand_mut("grow");
            return Err(match grow {
                Some(grow) => grow.error(ErrorKind::ValueValidation, text),
                None => command.error(ErrorKind::ValueValidation, text),
            });
        }
        Ok(arguments)
    }
}

/// An amount that is not zero.
pub(crate) fn some_bytes(text: &str) -> Result<Bytes, String> {
    match text.parse() {
        Ok(Bytes::ZERO) => Err("it must be at least one byte".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn address(text: &str) -> Result<Address, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map(Address).map_err(|_| "an address is a number below 2^64, as in 0x100000000000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_nothing_wrong_with_the_arguments() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn addresses_are_read_in_both_notations() {
        assert_eq!(address("0x1000"), Ok(Address(0x1000)));
        assert_eq!(address("4096"), Ok(Address(0x1000)));
        for bad in ["", "0x", "1000h", "-1", "0x10000000000000000"] {
            assert!(address(bad).is_err(), "{bad:?}");
        }
    }
}
