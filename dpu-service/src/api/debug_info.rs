//! Debug information that other calls do not return, for bug reports.

use std::sync::Arc;

use offload_proto::{Failure, Reason, v1};

use crate::{kernel_state, scrape, shared::Shared, tasks::blocking};

/// Returns the configuration without secrets, the kernel's state and the metrics.
///
/// # Errors
/// [`Reason::Internal`]: the metrics cannot be encoded.
pub(super) async fn debug_info(shared: &Arc<Shared>) -> Result<v1::DebugInfo, Failure> {
    let programmer = shared.engine.programmer().clone();
    let kernel = blocking(move || kernel_state::text(&programmer)).await;
    let (credentials, warning) = (Some(&shared.credentials), shared.certificate_warning);
    let page = scrape::page_of(credentials, warning, &shared.calls, Some(shared)).await;
    let configuration = shared.configuration.lock().in_force.without_secrets();
    Ok(v1::DebugInfo {
        configuration,
        kernel,
        metrics: page.text().map_err(|error| {
            Failure::new(Reason::Internal, format!("the metrics can't be written: {error}"))
        })?,
    })
}
