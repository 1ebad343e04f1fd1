//! Notifications to systemd (`Type=notify`). Without systemd they do nothing.

use std::{convert::Infallible, future::pending, io};

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::time::{MissedTickBehavior, interval};

/// Reports that the program serves, also after a reload.
pub fn notify_ready() {
    send(&[NotifyState::Ready]);
}

/// Reports that the program reloads its configuration. [`notify_ready`] must follow.
pub fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => complain(&error),
    }
}

/// Reports that the program is stopping.
pub fn notify_stopping() {
    send(&[NotifyState::Stopping]);
}

/// Feeds systemd's watchdog at half its period while `healthy` returns true. Never returns.
pub async fn feed_watchdog(healthy: impl Fn() -> bool) -> Infallible {
    let Some(period) = watchdog_enabled() else { return pending().await };
    let mut ticks = interval(period / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if healthy() {
            send(&[NotifyState::Watchdog]);
        }
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        complain(&error);
    }
}

fn complain(error: &io::Error) {
    tracing::warn!(%error, "cannot notify systemd");
}
