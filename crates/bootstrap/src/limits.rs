use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files as far as the system allows: each connection is one, and the
/// usual limit is there for programs that use `select`. Where that is refused, the log says so.
pub fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_highest_that_is_allowed() {
        raise_file_limit();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
