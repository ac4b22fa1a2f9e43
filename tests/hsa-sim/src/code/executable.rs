//! Executables: code objects that are loaded for an agent.
//!
//! Rules: `hsa_executable_*` in `hsa.h`. The segments are copied to memory that a GPU and the CPU can reach. The numbers in a
//! kernel's descriptor are read there, in the layout of `amd_hsa_kernel_code.h` and LLVM's AMDGPU documentation. Nothing is
//! relocated, since no code runs.
#![allow(unsafe_code)] // exported to C, and reads loaded code

use super::elf::Elf;
use super::symbol::DESCRIPTOR;
use super::{Code, Kernel, Loaded, Named, code};
use crate::abi::{Agent, Executable, LoadedCode, Reader, Status, Symbol};
use crate::agent;
use crate::memory::pages::Pages;
use crate::memory::{PAGE, state};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// Code objects may reach a little beyond their last segment.
const BEHIND: usize = 2 * PAGE;

/// Copies the segments of a code object to memory.
fn load(file: &[u8], elf: &Elf) -> Result<Pages, Status> {
    let ends = elf.segments.iter().map(|segment| segment.address.saturating_add(segment.size));
    let size =
        ends.max().unwrap_or(0).checked_add(BEHIND).and_then(|size| size.checked_next_multiple_of(PAGE));
    let image =
        Pages::anonymous(size.ok_or(Status::INVALID_CODE_OBJECT)?).map_err(|_| Status::OUT_OF_RESOURCES)?;
    for segment in &elf.segments {
        let bytes = &file[segment.in_file..segment.in_file + segment.size];
        // SAFETY: the image reaches to the end of the last segment, and is not shared yet.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), image.pointer().add(segment.address), bytes.len())
        };
    }
    Ok(image)
}

/// Returns the first three numbers of a kernel's descriptor.
fn descriptor(image: &Pages, offset: usize) -> Option<Kernel> {
    if offset.checked_add(64)? > image.size() {
        return None;
    }
    // SAFETY: within the initialized image.
    let [group_segment, private_segment, arguments] =
        unsafe { image.pointer().add(offset).cast::<[u32; 3]>().read_unaligned() };
    Some(Kernel { group_segment, private_segment, arguments })
}

impl Code {
    fn load(
        &mut self,
        executable: Executable,
        agent: Agent,
        reader: Reader,
    ) -> Result<(usize, usize), Status> {
        let file = self.readers.get(&reader).ok_or(Status::INVALID_CODE_OBJECT)?;
        let elf = Elf::parse(file).ok_or(Status::INVALID_CODE_OBJECT)?;
        if !self.executables.contains_key(&executable) {
            return Err(Status::INVALID_EXECUTABLE);
        }
        let image = load(file, &elf)?;
        trace!("load_agent_code_object: {} bytes, {} symbols", file.len(), elf.objects.len());
        let mut named = Vec::new();
        for object in elf.objects {
            let kernel = match object.name.strip_suffix(DESCRIPTOR) {
                Some(_) => Some(descriptor(&image, object.address).ok_or(Status::INVALID_CODE_OBJECT)?),
                None => None,
            };
            let address = image.start() + object.address;
            let symbol = Symbol(self.next());
            named.push((object.name.clone(), symbol));
            self.symbols
                .insert(symbol, Named { name: object.name, agent, address, size: object.size, kernel });
        }
        let place = (image.start(), image.size());
        if let Some(loaded) = self.executables.get_mut(&executable) {
            loaded.images.push(image);
            loaded.symbols.extend(named);
        }
        Ok(place)
    }
}

hsa! {
    /// Creates an executable.
    pub unsafe fn hsa_executable_create_alt(
        _profile: u32,
        _rounding: u32,
        _options: *const c_char,
        out: Option<&mut MaybeUninit<Executable>>,
    ) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        let mut code = code();
        let executable = Executable(code.next());
        code.executables.insert(executable, Loaded::default());
        out.write(executable);
        Status::SUCCESS
    }

    /// Unloads an executable.
    pub unsafe fn hsa_executable_destroy(executable: Executable) {
        let mut code = code();
        let Some(loaded) = code.executables.remove(&executable) else { return Status::INVALID_EXECUTABLE };
        for symbol in loaded.symbols.values() {
            code.symbols.remove(symbol);
        }
        let mut state = state();
        for image in &loaded.images {
            state.allocations.remove(&image.start());
        }
        Status::SUCCESS
    }

    /// Does nothing.
    pub unsafe fn hsa_executable_freeze(_executable: Executable, _options: *const c_char) {
        Status::SUCCESS
    }

    /// Loads a code object.
    pub unsafe fn hsa_executable_load_agent_code_object(
        executable: Executable,
        agent: Agent,
        reader: Reader,
        _options: *const c_char,
        out: Option<&mut MaybeUninit<LoadedCode>>,
    ) {
        let Some(owner) = agent::index(agent) else { return Status::INVALID_AGENT };
        let mut code = code();
        match code.load(executable, agent, reader) {
            Ok((at, size)) => {
                state().add_code(at, size, owner);
                let loaded = LoadedCode(code.next());
                out.map(|out| out.write(loaded));
                Status::SUCCESS
            }
            Err(status) => status,
        }
    }

    /// Does nothing: it would replace a variable in the code by one of the program's, but no code runs here.
    pub unsafe fn hsa_executable_agent_global_variable_define(
        _executable: Executable,
        _agent: Agent,
        _name: *const c_char,
        _address: *mut c_void,
    ) {
        Status::SUCCESS
    }
}
