//! Scenarios for every kind of card: each function is a test that gets its settings.

pub mod capabilities;
pub mod clean;
pub mod crowd;
pub mod cuts;
pub mod delegates;
pub mod faults;
pub mod first_hop;
pub mod floods;
pub mod kills;
pub mod labels;
pub mod life;
pub mod load;
pub mod outages;
pub mod pods;
pub mod routing;
pub mod several;
pub mod wire;

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag on drop, so that background work also ends after a failure.
#[derive(Debug)]
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports how many cases were tried. Counts with the same name are added.
#[expect(clippy::print_stdout, reason = "what runs of tests are summed up by")]
pub fn figure(count: usize, what: &str) {
    println!("figure: {count} {what}");
}
