//! Runs libFuzzer from within a test. libFuzzer ends the process.

use std::{
    env,
    ffi::{CString, c_char, c_int},
    panic, process, ptr, slice,
    sync::OnceLock,
};

// Links libFuzzer's C++ code. Its own entry, for programs without a `main`, is not used.
use libfuzzer_sys as _;

static CHECK: OnceLock<fn(&[u8])> = OnceLock::new();

/// Starts libFuzzer with `check` if the environment selects this target.
#[allow(clippy::disallowed_methods, reason = "libFuzzer's end is the process's")]
pub(crate) fn seek(name: &str, check: fn(&[u8])) {
    if env::var("FUZZ_TARGET").as_deref() != Ok(name) {
        return;
    }
    CHECK.set(check).expect("one target in a process");
    panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        process::abort();
    }));
    let arguments = env::var("FUZZ_ARGUMENTS").unwrap_or_default();
    let arguments = [name].into_iter().chain(arguments.lines());
    process::exit(run(arguments.map(|text| CString::new(text).unwrap()).collect()));
}

#[allow(unsafe_code, reason = "libFuzzer is C++")]
fn run(arguments: Vec<CString>) -> c_int {
    unsafe extern "C" {
        /// See compiler-rt's FuzzerInterface.h.
        fn LLVMFuzzerRunDriver(
            count: *mut c_int,
            arguments: *mut *mut *mut c_char,
            callback: extern "C" fn(*const u8, usize) -> c_int,
        ) -> c_int;
    }
    let mut count = c_int::try_from(arguments.len()).unwrap();
    let mut pointers: Vec<_> = arguments.into_iter().map(CString::into_raw).collect();
    pointers.push(ptr::null_mut());
    let mut pointers = pointers.as_mut_ptr();
    // SAFETY: count and pointers have the form of a C program's main arguments. They live as long as the process: the
    // vector is never freed, because libFuzzer keeps pointers into it.
    unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut pointers, check) }
}

#[allow(unsafe_code, reason = "libFuzzer is C++")]
extern "C" fn check(input: *const u8, length: usize) -> c_int {
    let input = match length {
        0 => &[],
        // SAFETY: libFuzzer passes this number of readable bytes and does not change them during the call.
        _ => unsafe { slice::from_raw_parts(input, length) },
    };
    CHECK.get().expect("set before the driver runs")(input);
    0
}

/// The entry that libfuzzer-sys would call.
#[allow(unsafe_code, reason = "a symbol that its object file needs")]
#[unsafe(no_mangle)]
extern "C" fn rust_fuzzer_test_input(_input: *const u8, _length: usize) -> c_int {
    0
}
