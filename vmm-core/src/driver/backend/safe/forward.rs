use gpu_vmm_core::{Backend, CopyCalls, MemoryCalls, SyncCalls, extend::forward};

#[derive(Clone, Debug)]
struct Forward<B>(B);

