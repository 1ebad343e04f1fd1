//! What is said of values in the configuration that can't be.

use std::fmt::Display;

/// That a value is out of its range.
pub(super) fn out_of_range(key: &str, value: impl Display, range: impl Display) -> String {
    format!("`{key}` is {value}, but must be {range}")
}
