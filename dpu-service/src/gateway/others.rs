//! Finds other devices that answer a gateway's address: pods would reach one or the other. The DPU reports the
//! conflict, since it can't know which device is right.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::who_else_has;
use tokio::{
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval},
};

use super::gateways::Gateways;

/// How long to wait for answers.
const ANSWER_TIME: Duration = Duration::from_millis(600);

/// The interval for addresses that another device has answered.
const RETRY: Duration = Duration::from_secs(10);

/// The interval for all addresses: a device can join the network later.
const RETRY_ALL: Duration = Duration::from_secs(600);

/// Probes the addresses of each new gateway, answered addresses every 10 s, and all addresses every 10 minutes.
/// Never returns.
pub(crate) async fn watch_for_conflicts(gateways: Arc<Gateways>) {
    let (mut again, mut all_again) = (every(RETRY), every(RETRY_ALL));
    loop {
        let is_about_all = tokio::select! {
            _ = all_again.tick() => true,
            _ = again.tick() => false,
            () = gateways.are_new() => false,
        };
        gateways.look_for_others(is_about_all).await;
    }
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Gateways {
    async fn look_for_others(&self, is_about_all: bool) {
        let due = self.shown().due(is_about_all);
        if due.is_empty() {
            return;
        }
        let asked = due.clone();
        let found = spawn_blocking(move || who_else_has(&asked, ANSWER_TIME)).await;
        match found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Ok(found) => self.note_others(&due, &found),
            Err(error) => {
                tracing::warn!(reason = %Chain(&error), "cannot probe gateways' addresses");
            }
        }
    }
}
