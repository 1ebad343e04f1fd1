//! Numbers of tcx programs. Unlike queueing disciplines and filters, they stay attached when the link moves to another
//! namespace.

use nix::libc::{SYS_bpf, syscall};

use super::aspects::Aspects;

/// `BPF_PROG_QUERY`
const QUERY: u32 = 16;

/// `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS`
const DIRECTIONS: [(u32, &str); 2] = [(46, "receiving"), (47, "sending")];

/// The part of `union bpf_attr` for `BPF_PROG_QUERY`.
#[repr(C)]
#[derive(Default)]
struct Query {
    link: u32,
    direction: u32,
    query_flags: u32,
    attach_flags: u32,
    /// Address for the program IDs. 0: only count.
    ids: u64,
    /// Result: number of programs.
    count: u32,
    padding: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

/// Counts the programs of a link in the calling thread's namespace. `None`: the kernel has no tcx, or this process may
/// not query it.
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
    // SAFETY: the kernel accesses at most the given size, which is that of `query`, and keeps no pointer.
    let outcome = unsafe { syscall(SYS_bpf, QUERY, &raw mut query, size_of::<Query>()) };
    (outcome == 0).then_some(query.count)
}
