//! Fuzz target: hostile frames.

use super::packets::{ETHERNET_LEN, claimed};

#[test]
fn neighbour_frame() {
    fuzz::target("neighbour_frame", |frame| {
        if let Some((_, mac)) = claimed(frame) {
            assert!(mac.is_unicast() && frame.len() > ETHERNET_LEN);
        }
    });
}
