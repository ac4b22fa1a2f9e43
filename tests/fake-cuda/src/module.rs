//! Modules of PTX text, and launches of their kernels.
//!
//! The text is parsed only for its entries and their parameters. A kernel's name determines its action (see `kernels`); its
//! instructions are ignored. Images other than text are refused.
#![allow(unsafe_code)] // exported to C
#![allow(clippy::too_many_arguments)] // as in the header

use crate::c::{Out, given};
use crate::code::{Answer, Code};
use crate::kernels;
use crate::objects::{Entry, Function, Module};
use crate::violation::refuse;
use crate::work::{Work, queue, work};
use crate::{context, stream};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::Arc;

/// The newest target that the devices can run: compute capability 9.0.
const NEWEST_TARGET: u32 = 90;
/// `CU_JIT_ERROR_LOG_BUFFER` and `_SIZE_BYTES`.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
/// The last known option of the compiler.
const LAST_OPTION: u32 = 35;

/// Returns the kernels of a text, or the fault in it.
fn read(text: &str) -> Result<Vec<Entry>, String> {
    let code: Vec<&str> =
        text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
    let directive = |name: &str| code.iter().find_map(|line| line.strip_prefix(name).map(str::trim));
    directive(".version").ok_or("no .version")?;
    let target = directive(".target").and_then(|target| target.strip_prefix("sm_")).ok_or("no .target")?;
    let digits = target.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(target.len());
    if target[..digits].parse::<u32>().is_ok_and(|number| number > NEWEST_TARGET) {
        return Err(format!("target sm_{target} is newer than the device"));
    }
    if directive(".address_size") != Some("64") {
        return Err("no .address_size 64".to_owned());
    }
    let code = code.join(" ");
    if code.matches('{').count() != code.matches('}').count() {
        return Err("braces do not match".to_owned());
    }
    code.split(".entry ").skip(1).map(entry).collect()
}

/// `NAME(.param .u64 A, .param .u64 B) { ...`
fn entry(text: &str) -> Result<Entry, String> {
    let (name, rest) = text.split_once('(').ok_or("an entry without parameters")?;
    let (parameters, _) = rest.split_once(')').ok_or("an entry whose parameters do not end")?;
    let parameters: Vec<&str> = parameters.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
    if let Some(other) = parameters.iter().find(|one| !one.starts_with(".param .u64 ")) {
        return Err(format!("{}: {other} is not .u64, the only supported type", name.trim()));
    }
    Ok(Entry { name: name.trim().to_owned(), parameters: parameters.len() })
}

fn load(image: *const c_char) -> Result<Vec<Entry>, (Code, String)> {
    // SAFETY: an image has at least four bytes, which identify its format.
    let magic = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    if magic == *b"\x7fELF" || magic == 0xba55_ed50_u32.to_le_bytes() {
        return Err((Code::NO_BINARY_FOR_GPU, "compiled code cannot be run here".to_owned()));
    }
    // SAFETY: text ends with a zero, as the documentation requires.
    let text = unsafe { CStr::from_ptr(image) }.to_str();
    let text = text.map_err(|error| (Code::INVALID_PTX, error.to_string()))?;
    read(text).map_err(|wrong| (Code::INVALID_PTX, wrong))
}

/// Checks the options, and writes the compiler's message into the buffer that they name.
///
/// # Safety
///
/// There must be `count` options with one value each, as documented.
unsafe fn log(count: u32, options: *const u32, values: *const *mut c_void, said: &str) -> Answer {
    let (mut buffer, mut size) = (null::<u8>().cast_mut(), 0);
    for place in 0..count as usize {
        // SAFETY: the caller guarantees `count` of each.
        let (option, value) = unsafe { (*options.add(place), *values.add(place)) };
        match option {
            ERROR_LOG => buffer = value.cast(),
            ERROR_LOG_SIZE => size = value.addr(),
            0..=LAST_OPTION => {}
            _ => return Err(refuse(Code::INVALID_VALUE, format_args!("option {option}"))),
        }
    }
    if !buffer.is_null() && size > 0 {
        let length = said.len().min(size - 1);
        // SAFETY: the buffer has `size` bytes, more than the message and its zero.
        unsafe {
            buffer.copy_from(said.as_ptr(), length);
            buffer.add(length).write(0);
        }
    }
    Ok(())
}

fn add(entries: Vec<Entry>) -> Answer<usize> {
    let mut work = work();
    let (context, _) = context::usable(&work)?;
    let name = work.new_name();
    work.modules.insert(name, Module { context, entries });
    Ok(name)
}

impl Work {
    fn function(&mut self, module: usize, name: &CStr) -> Answer<usize> {
        let Some(found) = self.modules.get(&module) else {
            return Err(refuse(Code::INVALID_HANDLE, format_args!("module {module:#x} does not exist")));
        };
        let context = found.context;
        let entry = found.entries.iter().find(|entry| entry.name.as_bytes() == name.to_bytes()).cloned();
        let entry = entry.ok_or(Code::NOT_FOUND)?;
        let known = self.functions.iter().find(|(_, one)| one.module == module && one.entry == entry);
        if let Some((function, _)) = known {
            return Ok(*function);
        }
        let function = self.new_name();
        self.functions.insert(function, Function { context, module, entry });
        Ok(function)
    }
}

/// Queues a kernel.
///
/// # Safety
///
/// There must be one pointer for each of the kernel's parameters, valid for reading eight bytes.
unsafe fn launch(function: usize, stream: usize, parameters: *const *const u64) -> Answer {
    let mut locked = work();
    let (name, device) = stream::for_work(&mut locked, stream)?;
    let context = locked.streams[&name].context;
    let known = locked.functions.get(&function).filter(|function| function.context == context);
    let Some(Function { entry, .. }) = known else {
        let what = format_args!("there is no function {function:#x} in the current context");
        return Err(refuse(Code::INVALID_HANDLE, what));
    };
    if parameters.is_null() && entry.parameters > 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("{} without its parameters", entry.name)));
    }
    // SAFETY: the caller's guarantee.
    let values = (0..entry.parameters).map(|place| unsafe { (*parameters.add(place)).read_unaligned() });
    let kernel = kernels::find(&entry.name, values.collect());
    queue(locked, name, Arc::new(move || kernel(device)));
    Ok(())
}

/// Refuses a grid that a device cannot run.
fn check_grid(grid: [u32; 3], block: [u32; 3], shared: u32) -> Answer {
    let threads = block.iter().map(|side| u64::from(*side)).product::<u64>();
    let is_right = grid[0] <= i32::MAX as u32
        && grid[1].max(grid[2]) <= 65_535
        && !grid.contains(&0)
        && (1..=1024).contains(&threads)
        && shared <= 49_152;
    if is_right {
        return Ok(());
    }
    Err(refuse(Code::INVALID_VALUE, format_args!("grid {grid:?}, block {block:?}, {shared} bytes shared")))
}

cuda! {
    /// Loads a module into the current context.
    fn cuModuleLoadData(out: Out<'_, usize>, image: *const c_char) {
        let (out, image) = (given(out, "module")?, given((!image.is_null()).then_some(image), "image")?);
        out.write(add(load(image).map_err(|(code, _)| code)?)?);
        Ok(())
    }

    /// Loads a module, with options for the compiler.
    fn cuModuleLoadDataEx(
        out: Out<'_, usize>,
        image: *const c_char,
        count: u32,
        options: *const u32,
        values: *const *mut c_void,
    ) {
        let (out, image) = (given(out, "module")?, given((!image.is_null()).then_some(image), "image")?);
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(refuse(Code::INVALID_VALUE, format_args!("{count} options, and a null pointer")));
        }
        let loaded = load(image);
        let said = loaded.as_ref().err().map_or("", |(_, said)| said);
        // SAFETY: not null if there are any, and the caller guarantees `count` of each.
        unsafe { log(count, options, values, said) }?;
        out.write(add(loaded.map_err(|(code, _)| code)?)?);
        Ok(())
    }

    /// Unloads a module.
    fn cuModuleUnload(module: usize) {
        let mut work = work();
        let (context, _) = context::usable(&work)?;
        if work.modules.get(&module).is_none_or(|module| module.context != context) {
            let what = format_args!("there is no module {module:#x} in the current context");
            return Err(refuse(Code::INVALID_HANDLE, what));
        }
        work.modules.remove(&module);
        work.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    /// Returns a kernel of a module.
    fn cuModuleGetFunction(out: Out<'_, usize>, module: usize, name: *const c_char) {
        let (out, name) = (given(out, "hfunc")?, given((!name.is_null()).then_some(name), "name")?);
        // SAFETY: not null, and a C string.
        let name = unsafe { CStr::from_ptr(name) };
        out.write(work().function(module, name)?);
        Ok(())
    }

    /// Queues a kernel on a stream.
    fn cuLaunchKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: usize,
        parameters: *const *const u64,
        extra: *const *const c_void,
    ) {
        check_grid([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared)?;
        if !extra.is_null() {
            return Err(refuse(Code::NOT_SUPPORTED, format_args!("parameters in `extra`")));
        }
        // SAFETY: the caller's guarantee.
        unsafe { launch(function, stream, parameters) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// a comment with .entry no(\n.version 6.0\n.target sm_50\n.address_size 64\n\
                        .visible .entry one(\n    .param .u64 a, // the first\n    .param .u64 b\n)\n{ ret; }\n\
                        .visible .entry two()\n{ ret; }\n";

    #[test]
    fn wrong_text_is_reported() {
        for (from, to, wrong) in [
            (".version 6.0", "", "no .version"),
            ("sm_50", "sm_100", "newer than the device"),
            (".address_size 64", ".address_size 32", "no .address_size 64"),
            ("{ ret; }", "{ ret;", "braces"),
            (".u64 b", ".u32 b", "is not .u64"),
        ] {
            let said = read(&TEXT.replace(from, to)).unwrap_err();
            assert!(said.contains(wrong), "{said}");
        }
    }
}
