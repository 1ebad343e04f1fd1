//! A macro for sections of the file: it defines a key's type, default and range in one place.

use std::{fmt::Display, ops::RangeInclusive};

/// Defines a section: `key: type = default, range;`. The range is for numbers only.
macro_rules! section {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$key_meta:meta])* pub $key:ident: $type:ty = $default:expr $(, $range:expr)?;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$key_meta])* pub $key: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $name {
            /// The ranges of the keys that have one.
            #[cfg(test)]
            pub(super) const RANGES: &[(&str, std::ops::RangeInclusive<u64>)] =
                &[$($((stringify!($key), $range),)?)+];

            /// Checks the ranges of this `section`: one sentence for each key outside of its range.
            pub(super) fn check(&self, section: &str) -> Vec<String> {
                let problems = [$($(out_of_range(section, stringify!($key), self.$key, $range),)?)+];
                problems.into_iter().flatten().collect()
            }
        }
    };
}

pub(super) use section;

/// Checks one number against its range.
pub(super) fn out_of_range(
    section: &str,
    key: &str,
    value: impl TryInto<u64> + Copy + Display,
    range: RangeInclusive<u64>,
) -> Option<String> {
    let is_within = value.try_into().is_ok_and(|value| range.contains(&value));
    let (least, most) = range.into_inner();
    (!is_within).then(|| format!("{section}.{key} = {value} must be {least} to {most}"))
}
