//! The message for configuration values out of range.

use std::fmt::Display;

pub(super) fn out_of_range(key: &str, value: impl Display, range: impl Display) -> String {
    format!("`{key}` is {value}, but must be {range}")
}
