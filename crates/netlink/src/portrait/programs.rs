//! The programs of tcx that a link hands its frames to: unlike queues and filters, they go with it
//! from namespace to namespace.

use nix::libc::{SYS_bpf, syscall};

use super::aspects::Aspects;

/// `BPF_PROG_QUERY`
const QUERY: u32 = 16;

/// The attach types of tcx.
const DIRECTIONS: [(u32, &str); 2] = [(46, "receiving"), (47, "sending")];

/// The question for the programs of a link, as far as this asks.
#[repr(C)]
#[derive(Default)]
struct Query {
    link: u32,
    direction: u32,
    query_flags: u32,
    attach_flags: u32,
    /// Where to write the programs' ids: nowhere.
    ids: u64,
    /// The answer: how many programs there are.
    count: u32,
    padding: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

/// How many programs a link of the calling thread's namespace has. `None`: the kernel has none of
/// this kind, or does not tell this process.
pub(super) fn aspects(index: u32) -> Option<Aspects> {
    let count = |(direction, name): (u32, &str)| {
        let count = count(index, direction)?;
        Some((format!("number of tcx programs for {name}"), count.to_string()))
    };
    DIRECTIONS.into_iter().map(count).collect()
}

#[expect(unsafe_code, reason = "there is no safe wrapper of this system call")]
fn count(link: u32, direction: u32) -> Option<u32> {
    let mut query = Query { link, direction, ..Query::default() };
    // SAFETY: the kernel reads and writes no more than the size that it is told, which is the
    // question's own, and keeps no pointer to it.
    let outcome = unsafe { syscall(SYS_bpf, QUERY, &raw mut query, size_of::<Query>()) };
    (outcome == 0).then_some(query.count)
}
