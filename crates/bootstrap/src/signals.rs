use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGTERM and SIGINT from its creation on: a signal is not lost if nothing waits for it.
#[derive(Debug)]
pub struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    /// Starts to catch the signals.
    ///
    /// # Errors
    /// The system's error if a handler cannot be set.
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

/// Catches SIGHUP from now on; `recv().await` waits for the next.
///
/// # Errors
/// The system's error if a handler cannot be set.
pub fn reload_signals() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
