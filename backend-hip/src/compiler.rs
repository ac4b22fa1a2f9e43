//! AMD's run-time compiler, hiprtc: a library next to HIP that not every machine has. Without it this backend works,
//! and the test kit uses copies instead of kernels.
//!
//! The library must have HIP's major version, so its name contains that version. It is searched for in the folder of
//! HIP's own file, then by its name in the loader's folders, then in the places where HIP is looked for. The compiler is always told the architecture. Otherwise it would ask
//! for the current device through a HIP of its own choice, `libamdhip64.so`, which can be another version or missing.
#![allow(unsafe_code)] // loading a library runs its code, and the types of symbols are not checked

use crate::ffi;
use crate::library::Library;
use crate::loader;
use gpu_vmm_core::DriverInfo;
use std::ffi::{CStr, CString, OsString};
use std::path::Path;
use std::ptr::{null, null_mut};

/// The file name that the compiler uses in its messages.
const NAME: &CStr = c"kernels.hip";

/// Why nothing could be compiled, as text for the user. Callers do not distinguish the causes.
pub(crate) type Reason = String;

macro_rules! functions {
    ($($name:ident)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: ffi::$name,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: hiprtc's function of this name has this type in every version since 5.0, and the library
                    // is never unloaded.
                    $($name: unsafe { *library.get(stringify!($name)).map_err(|_| stringify!($name))? },)*
                })
            }
        }
    };
}

functions! {
    hiprtcCompileProgram hiprtcCreateProgram hiprtcDestroyProgram hiprtcGetCode hiprtcGetCodeSize hiprtcGetErrorString
    hiprtcGetProgramLog hiprtcGetProgramLogSize
}

/// The compiler.
pub(crate) struct Compiler {
    functions: Functions,
}

impl Compiler {
    /// Loads the compiler that belongs to HIP, whose file is in `folder` if that is known.
    pub(crate) fn load(hip: &DriverInfo, folder: Option<&Path>) -> Result<Self, Reason> {
        let name = loader::compiler_name(hip.version_number);
        // A relative path would depend on the current folder.
        let named = Path::new(&hip.library).parent().filter(|folder| folder.is_absolute());
        let beside = folder.or(named).into_iter().map(|folder| folder.join(&name).into());
        let places = beside.chain([OsString::from(&name)]);
        let places = places.chain(loader::paths(&name).into_iter().map(OsString::from));
        let mut tried = Vec::new();
        let found = places.into_iter().find_map(|place| loader::attempt(place, &mut tried));
        let Some((library, name)) = found else {
            let answers: Vec<_> =
                tried.iter().map(|one| format!("{}: {}", one.library, one.answer)).collect();
            return Err(format!("hiprtc cannot be loaded: {}", answers.join("; ")));
        };
        let functions = Functions::find(&library);
        // The library is never unloaded, whether it is usable or not.
        std::mem::forget(library);
        let functions = functions.map_err(|missing| format!("{name} has no function {missing}"))?;
        Ok(Self { functions })
    }

    /// Compiles a source text for an architecture such as `gfx90a:sramecc+:xnack-`.
    pub(crate) fn compile(&self, text: &str, architecture: &str) -> Result<Vec<u8>, Reason> {
        let option =
            CString::new(format!("--offload-arch={architecture}")).map_err(|error| error.to_string())?;
        let text = CString::new(text).map_err(|error| error.to_string())?;
        let mut program = null_mut();
        // SAFETY: the texts end with a zero byte, there are no headers, and HIP writes one handle.
        self.check("hiprtcCreateProgram", unsafe {
            let (text, name) = (text.as_ptr(), NAME.as_ptr());
            (self.functions.hiprtcCreateProgram)(&raw mut program, text, name, 0, null(), null())
        })?;
        let program = Program { compiler: self, program };
        let options = [option.as_ptr()];
        // SAFETY: a live program, and one option that ends with a zero byte.
        let compiled = self.check("hiprtcCompileProgram", unsafe {
            (self.functions.hiprtcCompileProgram)(program.program, 1, options.as_ptr())
        });
        compiled.map_err(|reason| format!("{reason} for {architecture}; its log: {}", program.log()))?;
        program.code()
    }

    fn check(&self, call: &str, result: ffi::hiprtcResult) -> Result<(), Reason> {
        if result.0 == 0 {
            return Ok(());
        }
        // SAFETY: the function takes a number and returns a constant text, or null.
        let text = unsafe { (self.functions.hiprtcGetErrorString)(result) };
        // SAFETY: not null, and hiprtc's texts end with a zero byte.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        Err(format!("{call} returned {} ({})", text.unwrap_or_default(), result.0))
    }
}

/// A source text that is being compiled.
struct Program<'a> {
    compiler: &'a Compiler,
    program: ffi::hiprtcProgram,
}

impl Program<'_> {
    fn code(&self) -> Result<Vec<u8>, Reason> {
        let functions = &self.compiler.functions;
        let mut size = 0;
        // SAFETY: a live program; the function writes one size.
        let result = unsafe { (functions.hiprtcGetCodeSize)(self.program, &raw mut size) };
        self.compiler.check("hiprtcGetCodeSize", result)?;
        let mut code = vec![0u8; size];
        // SAFETY: a live program, and a buffer of the size that it reported.
        let result = unsafe { (functions.hiprtcGetCode)(self.program, code.as_mut_ptr().cast()) };
        self.compiler.check("hiprtcGetCode", result)?;
        Ok(code)
    }

    /// Returns the compiler's log, or an empty text if it is not available.
    fn log(&self) -> String {
        let functions = &self.compiler.functions;
        let mut size = 0;
        // SAFETY: a live program; the function writes one size.
        if unsafe { (functions.hiprtcGetProgramLogSize)(self.program, &raw mut size) }.0 != 0 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: a live program, and a buffer of the size that it reported.
        if unsafe { (functions.hiprtcGetProgramLog)(self.program, log.as_mut_ptr().cast()) }.0 != 0 {
            return String::new();
        }
        String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the compiler created the program, which is not used any more. A failure has no remedy.
        unsafe { (self.compiler.functions.hiprtcDestroyProgram)(&raw mut self.program) };
    }
}
