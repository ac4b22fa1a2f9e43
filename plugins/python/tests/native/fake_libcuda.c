// The part of libcuda that the allocator class asks. Its current device is that of the fake libcudart.

int cudaGetDevice(int *out);

// Whether this thread has no current context yet.
_Thread_local int fake_has_no_context;
// The number of this thread's calls with an answer.
_Thread_local int fake_answers;

int cuCtxGetDevice(int *out) {
    enum { INVALID_CONTEXT = 201 };
    if (fake_has_no_context) {
        return INVALID_CONTEXT;
    }
    ++fake_answers;
    return cudaGetDevice(out);
}
