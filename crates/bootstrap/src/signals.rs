use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Completes at the first SIGTERM or SIGINT.
///
/// # Errors
/// What the system says, if it lets no handler be set.
pub async fn shutdown_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM received"),
        _ = interrupt.recv() => tracing::info!("SIGINT received"),
    }
    Ok(())
}

/// The SIGHUPs from now on; `recv().await` waits for the next.
///
/// # Errors
/// What the system says, if it lets no handler be set.
pub fn reload_signals() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
