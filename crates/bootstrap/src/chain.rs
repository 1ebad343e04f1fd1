use std::{error::Error, fmt};

/// Displays an error with all its causes on one line: `cannot read x: permission denied`.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(out, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read x")]
    struct Outer(#[source] io::Error);

    #[test]
    fn causes_follow_in_order() {
        let error = Outer(io::Error::other("disk on fire"));
        assert_eq!(Chain(&error).to_string(), "cannot read x: disk on fire");
    }
}
