//! 64-bit numbers in JSON.

use serde::{Serialize, Serializer};

/// The largest number that every JSON reader keeps exact: many read numbers as doubles (RFC 8259, section 6).
const LARGEST_EXACT: u64 = (1 << 53) - 1;

/// A count or a size. It becomes a JSON number, or a string if readers would round it.
pub(crate) struct Number(pub(crate) u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 <= LARGEST_EXACT {
            serializer.serialize_u64(self.0)
        } else {
            serializer.collect_str(&self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;
    use crate::v1::{Event, SubnetUsage};

    #[test]
    fn counts_are_json_numbers() {
        let usage = SubnetUsage { capacity: 65_533, held: 2, ..SubnetUsage::default() };
        let expected = json!({ "cidr": "", "capacity": 65_533, "held": 2, "cooling": 0 });
        assert_eq!(to_value(usage).unwrap(), expected);
    }

    #[test]
    fn rounded_numbers_are_strings() {
        let capacity = |capacity| {
            to_value(SubnetUsage { capacity, ..SubnetUsage::default() }).unwrap()["capacity"]
                .clone()
        };
        assert_eq!(capacity(LARGEST_EXACT), LARGEST_EXACT);
        assert_eq!(capacity(LARGEST_EXACT + 1), (LARGEST_EXACT + 1).to_string());
        assert_eq!(capacity(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn numbers_and_strings_are_read() {
        for sequence in [json!(7), json!("7")] {
            let event: Event = serde_json::from_value(json!({ "sequence": sequence })).unwrap();
            assert_eq!(event.sequence, 7);
        }
    }
}
