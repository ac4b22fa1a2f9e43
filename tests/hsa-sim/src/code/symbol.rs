//! The symbols of executables, by which HIP finds kernels and variables.
//!
//! Rules: `hsa_executable_get_symbol_by_name`, `hsa_executable_symbol_info_t` in `hsa.h`.
#![allow(unsafe_code)] // exported to C

use super::{Named, code};
use crate::abi::{Agent, Executable, Status, Symbol};
use crate::system::Answer;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

/// The suffix of the name of a kernel's descriptor.
pub(super) const DESCRIPTOR: &str = ".kd";

fn answer(symbol: &Named, attribute: u32) -> Option<Answer> {
    let kernel = |number: fn(super::Kernel) -> u32| symbol.kernel.map_or(0, number);
    Some(match attribute {
        0 => u32::from(symbol.kernel.is_some()).into(), // TYPE: variable, kernel
        1 => (symbol.name.len() as u32).into(),         // NAME_LENGTH
        2 => Answer::bytes(symbol.name.as_bytes()),     // NAME, without a zero byte
        3 | 5 => 0u32.into(),                           // MODULE_NAME_LENGTH, LINKAGE
        6..=8 => 0u32.into(), // VARIABLE_ALLOCATION, VARIABLE_SEGMENT, VARIABLE_ALIGNMENT
        9 => (symbol.size as u32).into(), // VARIABLE_SIZE
        10 => false.into(),   // VARIABLE_IS_CONST
        11 => kernel(|kernel| kernel.arguments).into(), // KERNEL_KERNARG_SEGMENT_SIZE
        12 => 16u32.into(),   // KERNEL_KERNARG_SEGMENT_ALIGNMENT
        13 => kernel(|kernel| kernel.group_segment).into(),
        14 => kernel(|kernel| kernel.private_segment).into(),
        15 => false.into(),                        // KERNEL_DYNAMIC_CALLSTACK
        17 => true.into(),                         // IS_DEFINITION
        20 => symbol.agent.0.into(),               // AGENT
        21 | 22 => (symbol.address as u64).into(), // VARIABLE_ADDRESS, KERNEL_OBJECT
        _ => return None,
    })
}

hsa! {
    /// Finds a symbol.
    pub unsafe fn hsa_executable_get_symbol_by_name(
        executable: Executable,
        name: *const c_char,
        _agent: *const Agent,
        out: Option<&mut MaybeUninit<Symbol>>,
    ) {
        let Some(out) = out.filter(|_| !name.is_null()) else { return Status::INVALID_ARGUMENT };
        // SAFETY: not null, and names end with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let code = code();
        let Some(loaded) = code.executables.get(&executable) else { return Status::INVALID_EXECUTABLE };
        match loaded.symbols.get(&*name) {
            Some(symbol) => {
                out.write(*symbol);
                Status::SUCCESS
            }
            None => Status::INVALID_SYMBOL_NAME,
        }
    }

    /// Calls a function for each symbol.
    pub unsafe fn hsa_executable_iterate_symbols(
        executable: Executable,
        callback: extern "C" fn(Executable, Symbol, *mut c_void) -> Status,
        data: *mut c_void,
    ) {
        let symbols: Option<Vec<Symbol>> =
            code().executables.get(&executable).map(|loaded| loaded.symbols.values().copied().collect());
        let Some(symbols) = symbols else { return Status::INVALID_EXECUTABLE };
        symbols.into_iter().map(|symbol| callback(executable, symbol, data))
            .find(|status| *status != Status::SUCCESS).unwrap_or(Status::SUCCESS)
    }

    /// Returns an attribute of a symbol.
    pub unsafe fn hsa_executable_symbol_get_info(symbol: Symbol, attribute: u32, value: *mut u8) {
        let answer = code().symbols.get(&symbol).and_then(|symbol| answer(symbol, attribute));
        match answer {
            // SAFETY: the caller guarantees space for the attribute.
            Some(answer) => unsafe { answer.write(value) },
            None => Status::INVALID_ARGUMENT,
        }
    }
}
