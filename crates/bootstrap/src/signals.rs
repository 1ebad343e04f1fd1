use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT since the value was made: one that comes while nothing waits is not lost.
#[derive(Debug)]
pub struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// What the system says, if it lets no handler be set.
    pub fn catch() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for a signal. May be cancelled and called again.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM received"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT received"),
        }
    }
}

/// The SIGHUPs from now on; `recv().await` waits for the next.
///
/// # Errors
/// What the system says, if it lets no handler be set.
pub fn reload_signals() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
