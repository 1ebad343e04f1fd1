//! Debug information that other calls do not return, for bug reports.

use std::sync::Arc;

use offload_proto::{Failure, Reason, v1};
use tokio::task::spawn_blocking;

use crate::{kernel_state, scrape, shared::Shared};

/// Returns the configuration without secrets, the kernel's state and the metrics.
///
/// # Errors
/// [`Reason::Internal`]: the metrics cannot be encoded.
pub(super) async fn debug_info(shared: &Arc<Shared>) -> Result<v1::DebugInfo, Failure> {
    let programmer = shared.engine.programmer().clone();
    let kernel = spawn_blocking(move || kernel_state::text(&programmer)).await;
    let kernel = kernel.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    let metrics = scrape::page_of(shared).await.text();
    Ok(v1::DebugInfo {
        configuration: shared.configuration_without_secrets(),
        kernel,
        metrics: metrics.map_err(|error| {
            Failure::new(Reason::Internal, format!("the metrics can't be written: {error}"))
        })?,
    })
}
