//! Messages that must fit into a size limit.

use prost::Message;

/// Largest overhead of a list element: field number and length as varints, for field numbers below 16 and lengths below
/// 2^28.
const FRAME: usize = 5;

/// The first elements of a list that take at most `room` bytes together, and the number of elements left out.
#[must_use]
pub fn first_that_fit<M: Message>(mut all: Vec<M>, room: usize) -> (Vec<M>, usize) {
    let mut taken = 0_usize;
    let mut fits = |message: &M| {
        taken = taken.saturating_add(message.encoded_len()).saturating_add(FRAME);
        taken <= room
    };
    let fitting = all.iter().take_while(|message| fits(message)).count();
    let left_out = all.len() - fitting;
    all.truncate(fitting);
    (all, left_out)
}

/// The encoded length of a message in bytes.
#[must_use]
pub fn encoded_len(message: &impl Message) -> usize {
    message.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Examination, Repair};

    #[test]
    fn kept_elements_fit_and_rest_is_counted() {
        let repair = Repair { subject: "pf0vf3".into(), ..Repair::default() };
        for (room, expected) in [(0, 0), (12, 0), (13, 1), (129, 9), (130, 10), (9999, 10)] {
            let (repairs, left_out) = first_that_fit(vec![repair.clone(); 10], room);
            assert_eq!((repairs.len(), left_out), (expected, 10 - expected), "{room}");
            let message = Examination { repairs, ..Examination::default() };
            assert!(message.encoded_len() <= room);
        }
    }
}
