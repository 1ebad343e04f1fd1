//! `dpuctl bundle`: an archive for a bug report.

mod archive;
mod scrub;

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use offload_proto::v1::{
    Dpu, EventFilter, GetDebugInfoRequest, ListAttachmentsRequest, ListAuditRequest,
    ListEventsRequest, ListNetworksRequest, ListPhasesRequest, ListPoolsRequest,
    ListTrafficRequest, ListVfsRequest, operator_client::OperatorClient,
};
use serde::Serialize;

use crate::{
    client::Client, console::Console, doctor::diagnosis, error::CallError, format::json,
    status::dpu,
};
use archive::write_archive;
use scrub::scrub;

const FAILURES: &str = "failures.txt";

/// Writes the archive. It notes calls that failed; the command itself fails only if the DPU answers none.
pub(crate) async fn bundle(
    client: &mut Client,
    output: Option<PathBuf>,
    host_timeout: Duration,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let dpu = dpu(client).await?;
    let path = output.unwrap_or_else(|| default_path(&dpu));
    let mut parts = Parts::default();
    parts.add("versions.txt", &versions(&dpu));
    parts.add_json("status.json", Ok(dpu));
    parts.add_json("doctor.json", diagnosis(client, None, host_timeout).await);
    parts.ask(client).await;
    write_archive(&path, &parts.finish())
        .map_err(|source| CallError::Archive { path: path.clone(), source })?;
    console.line(&format!("{}: read it before you send it on", path.display()))
}

fn default_path(dpu: &Dpu) -> PathBuf {
    let time = Timestamp::now().strftime("%Y%m%d-%H%M%S");
    format!("dpu-offload-{}-{time}.tar.gz", dpu.name).into()
}

fn versions(dpu: &Dpu) -> String {
    let mut text = format!("dpuctl {}\ndpu-service {}\n", env!("CARGO_PKG_VERSION"), dpu.version);
    for host in &dpu.hosts {
        text.push_str(&format!("host-shim-agent of {} {}\n", host.name, host.agent_version));
    }
    text
}

/// The files of the archive.
#[derive(Debug, Default)]
struct Parts {
    files: Vec<(&'static str, String)>,
    failures: String,
}

impl Parts {
    fn add(&mut self, name: &'static str, text: &str) {
        self.files.push((name, scrub(text)));
    }

    fn add_json<M: Serialize>(&mut self, name: &'static str, answer: Result<M, CallError>) {
        match answer.and_then(|answer| json(&answer)) {
            Ok(text) => self.add(name, &text),
            Err(error) => self.note(name, &error),
        }
    }

    fn note(&mut self, name: &str, error: &CallError) {
        self.failures.push_str(&format!("{name}: {}\n", bootstrap::Chain(error)));
    }

    /// Adds the answers of the service that are stored as they are.
    async fn ask(&mut self, client: &mut Client) {
        let networks = client.call(OperatorClient::list_networks, ListNetworksRequest {}).await;
        self.add_json("networks.json", networks);
        let pools = client.call(OperatorClient::list_pools, ListPoolsRequest {}).await;
        self.add_json("pools.json", pools);
        let vfs = client.call(OperatorClient::list_vfs, ListVfsRequest {}).await;
        self.add_json("vfs.json", vfs);
        let all = ListAttachmentsRequest::default();
        let attachments = client.call(OperatorClient::list_attachments, all).await;
        self.add_json("attachments.json", attachments);
        let all = ListTrafficRequest::default();
        self.add_json("traffic.json", client.call(OperatorClient::list_traffic, all).await);
        let phases = client.call(OperatorClient::list_phases, ListPhasesRequest {}).await;
        self.add_json("phases.json", phases);
        // The whole history.
        let within_s = u64::MAX;
        let filter = Some(EventFilter { within_s, ..EventFilter::default() });
        let events = client.call(OperatorClient::list_events, ListEventsRequest { filter }).await;
        self.add_json("events.json", events);
        let all = ListAuditRequest { within_s, ..ListAuditRequest::default() };
        self.add_json("audit.json", client.call(OperatorClient::list_audit, all).await);
        match client.call(OperatorClient::get_debug_info, GetDebugInfoRequest {}).await {
            Ok(info) => {
                self.add("configuration.toml", &info.configuration);
                self.add("kernel.txt", &info.kernel);
                self.add("metrics.txt", &info.metrics);
            }
            Err(error) => self.note("configuration.toml, kernel.txt and metrics.txt", &error),
        }
    }

    fn finish(mut self) -> Vec<(&'static str, String)> {
        if !self.failures.is_empty() {
            let failures = std::mem::take(&mut self.failures);
            self.add(FAILURES, &failures);
        }
        self.files
    }
}
