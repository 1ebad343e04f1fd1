//! Word to systemd (`Type=notify`). Without systemd all of this does nothing.

use std::{convert::Infallible, future::pending, io};

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::time::{MissedTickBehavior, interval};

/// Says that the program is ready to serve, or serves again after a reload.
pub fn notify_ready() {
    send(&[NotifyState::Ready]);
}

/// Says that the program reads its configuration again; [`notify_ready`] follows.
pub fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => complain(&error),
    }
}

/// Says that the program is stopping.
pub fn notify_stopping() {
    send(&[NotifyState::Stopping]);
}

/// Tells systemd's watchdog at half its period that the program is alive, as long as `healthy` says
/// so. Never returns; waits for ever if there is no watchdog.
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
