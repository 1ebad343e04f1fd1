//! Types whose serialised form is their text.

/// Implements serde's traits for types by their `Display` and `FromStr`.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
                output.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text: String = ::serde::Deserialize::deserialize(input)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    };
}
