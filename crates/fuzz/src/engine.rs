//! libFuzzer, run from within a test. It ends the process when it is done.

use std::{
    env,
    ffi::{CString, c_char, c_int},
    panic, process, ptr, slice,
    sync::OnceLock,
};

// Its C++ is what is linked; its own entry, for programs without a `main`, is never called.
use libfuzzer_sys as _;

static CHECK: OnceLock<fn(&[u8])> = OnceLock::new();

/// Gives `check` input after input, if the environment asks for this target.
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
    // SAFETY: count and pointers are those of a C program's main, and live as long as the process:
    // the vector is never freed, because libFuzzer keeps what it points to.
    unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut pointers, check) }
}

#[allow(unsafe_code, reason = "libFuzzer is C++")]
extern "C" fn check(input: *const u8, length: usize) -> c_int {
    let input = match length {
        0 => &[],
        // SAFETY: libFuzzer passes as many readable bytes, which it leaves alone meanwhile.
        _ => unsafe { slice::from_raw_parts(input, length) },
    };
    CHECK.get().expect("set before the driver runs")(input);
    0
}

/// What libfuzzer-sys would call if it were the program's entry.
#[allow(unsafe_code, reason = "a symbol that its object file needs")]
#[unsafe(no_mangle)]
extern "C" fn rust_fuzzer_test_input(_input: *const u8, _length: usize) -> c_int {
    0
}
