//! Finds other devices that answer a gateway's address: pods would reach one or the other. The DPU reports the
//! conflict, since it can't know which device is right.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::who_else_has;

use super::gateways::Gateways;
use crate::tasks::{blocking, ticks};

/// How long to wait for answers.
const ANSWER_TIME: Duration = Duration::from_millis(600);

/// The interval for addresses that another device has answered.
const RETRY: Duration = Duration::from_secs(10);

/// The interval for all addresses: a device can join the network later.
const RETRY_ALL: Duration = Duration::from_secs(600);

/// Probes the addresses of each new gateway, answered addresses every 10 s, and all addresses every 10 minutes.
/// Never returns.
pub(crate) async fn watch_for_conflicts(gateways: Arc<Gateways>) {
    let (mut again, mut all_again) = (ticks(RETRY), ticks(RETRY_ALL));
    loop {
        let is_about_all = tokio::select! {
            _ = all_again.tick() => true,
            _ = again.tick() => false,
            () = gateways.news.notified() => false,
        };
        gateways.look_for_others(is_about_all).await;
    }
}

impl Gateways {
    async fn look_for_others(&self, is_about_all: bool) {
        let due = self.shown.lock().due(is_about_all);
        if due.is_empty() {
            return;
        }
        let asked = due.clone();
        match blocking(move || who_else_has(&asked, ANSWER_TIME)).await {
            Ok(found) => self.note_others(&due, &found),
            Err(error) => {
                tracing::warn!(reason = %Chain(&error), "cannot probe gateways' addresses");
            }
        }
    }
}
