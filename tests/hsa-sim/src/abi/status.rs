//! The status codes of HSA's functions.

/// `hsa_status_t`: a number, since settings can make a call fail with any.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($(#[$meta:meta])* $name:ident $number:literal $text:literal)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// Returns a text for the code, which ends with a zero byte.
            pub(crate) const fn text(self) -> &'static std::ffi::CStr {
                match self.0 {
                    $($number => match std::ffi::CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                        Ok(text) => text,
                        Err(_) => c"",
                    },)*
                    _ => c"an error",
                }
            }
        }
    };
}

statuses! {
    SUCCESS 0 "success"
    INFO_BREAK 1 "iteration ended by the callback"
    INVALID_MEMORY_POOL 40 "invalid memory pool"
    MEMORY_FAULT 43 "memory fault"
    NOT_SUPPORTED 47 "not supported by this simulation"
    ERROR 0x1000 "error"
    INVALID_ARGUMENT 0x1001 "invalid argument"
    INVALID_ALLOCATION 0x1003 "invalid allocation"
    INVALID_AGENT 0x1004 "invalid agent"
    INVALID_SIGNAL 0x1006 "invalid signal"
    INVALID_QUEUE 0x1007 "invalid queue"
    OUT_OF_RESOURCES 0x1008 "out of resources"
    RESOURCE_FREE 0x100A "resource in use"
    INCOMPATIBLE_ARGUMENTS 0x100D "incompatible arguments"
    INVALID_ISA 0x100F "invalid instruction set"
    INVALID_CODE_OBJECT 0x1010 "invalid code object"
    INVALID_EXECUTABLE 0x1011 "invalid executable"
    INVALID_SYMBOL_NAME 0x1013 "invalid symbol name"
}
