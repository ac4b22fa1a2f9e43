//! Launches of the test kit's kernels. They are compiled when they are first needed, once per architecture, and loaded
//! once per device.
//!
//! If that fails, the reason is kept and the attempt is not repeated.
#![allow(unsafe_code)] // calls into HIP, and runs code on a device

use crate::compiler::{Compiler, Reason};
use crate::driver::Driver;
use crate::ffi::{hipDeviceProp_tR0600, hipError_t};
use crate::kernels::{Function, Grid, Kernels};
use gpu_vmm_core::{DeviceId, Operation, Result};
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{from_mut, null_mut};
use std::sync::PoisonError;

const TEXT: &str = include_str!("kernels.hip");

impl Driver {
    /// Returns the kernels of a device, or why there are none; an error if the device cannot be used at all.
    pub(crate) fn kernels(
        &self,
        operation: Operation,
        device: DeviceId,
    ) -> Result<&std::result::Result<Kernels, Reason>> {
        let _current = self.on(operation, device)?;
        let _relaxed = self.relax(operation)?;
        Ok(self.devices_state(device)?.kernels.get_or_init(|| self.load_kernels(device)))
    }

    /// Compiles the kernels for the current device `device`, and loads them there.
    fn load_kernels(&self, device: DeviceId) -> std::result::Result<Kernels, Reason> {
        let code = self.compile(&self.architecture(device)?)?;
        let hip = &self.hip;
        let (Some(load), Some(get_function), Some(launch)) =
            (hip.hipModuleLoadData, hip.hipModuleGetFunction, hip.hipModuleLaunchKernel)
        else {
            return Err(
                "this HIP lacks hipModuleLoadData, hipModuleGetFunction or hipModuleLaunchKernel".to_owned()
            );
        };
        let mut module = null_mut();
        // SAFETY: HIP writes one module; the code object contains its own length.
        let answer = unsafe { load(&raw mut module, code.as_ptr().cast()) };
        self.explain("hipModuleLoadData", answer)?;
        let function = |name: &CStr| {
            let mut function = null_mut();
            // SAFETY: HIP writes one function; the module was just loaded, and the name ends with a zero byte.
            let answer = unsafe { get_function(&raw mut function, module, name.as_ptr()) };
            self.explain("hipModuleGetFunction", answer).map(|()| Function(function))
        };
        Ok(Kernels {
            launch,
            write_pattern: function(c"gpu_vmm_write_pattern")?,
            count_wrong: function(c"gpu_vmm_count_wrong")?,
            walk_list: function(c"gpu_vmm_walk_list")?,
        })
    }

    fn compile(&self, architecture: &str) -> std::result::Result<Vec<u8>, Reason> {
        let mut compiled = self.compiled.by_architecture.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = compiled.get(architecture) {
            return known.clone();
        }
        let compiler = Compiler::load(&self.info(), self.folder.as_deref());
        let code = compiler.and_then(|compiler| compiler.compile(TEXT, architecture));
        compiled.insert(architecture.to_owned(), code.clone());
        code
    }

    /// Returns the compiler's name of a device's instruction set, such as `gfx90a:sramecc+:xnack-`.
    fn architecture(&self, device: DeviceId) -> std::result::Result<String, Reason> {
        let properties =
            self.hip.hipGetDevicePropertiesR0600.ok_or("this HIP has no hipGetDevicePropertiesR0600")?;
        let mut found = MaybeUninit::<hipDeviceProp_tR0600>::zeroed();
        // SAFETY: the function writes one structure of this layout, as R0600 in its name says.
        let answer = unsafe { properties(found.as_mut_ptr(), device.0 as c_int) };
        self.explain("hipGetDevicePropertiesR0600", answer)?;
        // SAFETY: integers, bytes and pointers, for which zero is a value, so they are initialized even if HIP did not
        // write them.
        let found = unsafe { found.assume_init() };
        let name: &[u8] = bytemuck::cast_slice(&found.gcnArchName);
        let name = CStr::from_bytes_until_nul(name).ok().and_then(|name| name.to_str().ok());
        let name = name.filter(|name| !name.is_empty());
        name.map(str::to_owned).ok_or_else(|| format!("{device} has no gcnArchName"))
    }

    fn explain(&self, call: &'static str, answer: hipError_t) -> std::result::Result<(), Reason> {
        self.answer(call, answer).map_err(|error| error.to_string())
    }

    /// Runs a kernel over `words` words on the null stream of the current device, and waits.
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch).
    pub(crate) unsafe fn run(
        &self,
        operation: Operation,
        kernels: &Kernels,
        function: Function,
        words: u64,
        parameters: &mut [u64],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(operation, kernels, function, Grid::wide(words), parameters) }?;
        self.wait_for_null(operation)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    ///
    /// The function is one of `kernels`, which, like the stream, belong to the current device. It takes these
    /// parameters and may access what they point to.
    pub(crate) unsafe fn launch(
        &self,
        operation: Operation,
        kernels: &Kernels,
        function: Function,
        Grid { blocks, threads, stream }: Grid,
        parameters: &mut [u64],
    ) -> Result<()> {
        let mut pointers = [null_mut::<c_void>(); 4];
        for (pointer, parameter) in pointers.iter_mut().zip(parameters) {
            *pointer = from_mut(parameter).cast();
        }
        // SAFETY: every device supports the grid; HIP reads the parameters before it returns; the rest is the caller's
        // promise.
        let answer = unsafe {
            let parameters = pointers.as_mut_ptr();
            (kernels.launch)(function.0, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, null_mut())
        };
        self.check(operation, "hipModuleLaunchKernel", answer, || {
            format!("{blocks} blocks of {threads} threads")
        })
    }
}
