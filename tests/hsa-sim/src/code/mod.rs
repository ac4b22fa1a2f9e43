//! Code objects: loads them, finds their symbols, and identifies a dispatched kernel by its name.

mod elf;
pub mod executable;
pub mod reader;
pub mod symbol;

use crate::abi::{Agent, Executable, Reader, Symbol};
use crate::memory::pages::Pages;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// All loaded code.
#[derive(Default)]
struct Code {
    readers: BTreeMap<Reader, Vec<u8>>,
    executables: BTreeMap<Executable, Loaded>,
    symbols: BTreeMap<Symbol, Named>,
    last: u64,
}

/// An executable: its code in memory, and its symbols by name.
#[derive(Default)]
struct Loaded {
    images: Vec<Pages>,
    symbols: BTreeMap<String, Symbol>,
}

/// A symbol.
#[derive(Clone)]
struct Named {
    name: String,
    agent: Agent,
    address: usize,
    size: usize,
    /// The kernel's descriptor, if it is a kernel.
    kernel: Option<Kernel>,
}

/// The numbers of a kernel's descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) group_segment: u32,
    pub(crate) private_segment: u32,
    pub(crate) arguments: u32,
}

fn code() -> MutexGuard<'static, Code> {
    static CODE: LazyLock<Mutex<Code>> = LazyLock::new(Mutex::default);
    CODE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Code {
    fn next(&mut self) -> u64 {
        self.last += 0x10;
        0xC0DE_0000 + self.last
    }
}

/// Returns the name and the numbers of the kernel whose descriptor is at an address.
pub(crate) fn kernel(object: u64) -> Option<(String, Kernel)> {
    let code = code();
    let found = code.symbols.values().find(|symbol| symbol.address as u64 == object)?;
    let name = found.name.strip_suffix(symbol::DESCRIPTOR)?;
    Some((name.to_owned(), found.kernel?))
}
