//! The metrics page.

use std::{collections::BTreeMap, sync::Arc};

use metrics::{Calls, Page, label};
use offload_proto::v1::VfCondition;

use super::{
    config::Config,
    dpu::{Dpu, SessionState},
    verbs::Doors,
    vfs::{Phase, Vfs},
};
use crate::{cni::environment::Verb, protocol::Request};

const VERBS: [Verb; 5] = [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status];

pub(super) fn calls() -> Arc<Calls> {
    Arc::new(Calls::new("verb", VERBS.map(Verb::as_str)))
}

pub(super) const fn verb(request: &Request) -> Verb {
    match request {
        Request::Add(_) => Verb::Add,
        Request::Del(_) => Verb::Del,
        Request::Check(_) => Verb::Check,
        Request::Gc(_) => Verb::Gc,
        Request::Status(_) => Verb::Status,
    }
}

/// Builds the page. It uses only memory: a scrape never waits for the kernel.
pub(super) fn page(config: &Config, doors: &Doors, calls: &Arc<Calls>) -> Page {
    let Doors { vfs, dpu, phases, .. } = doors;
    let mut page = Page::of("host-shim-agent", env!("CARGO_PKG_VERSION"));
    if let Some(credentials) = dpu.session().credentials() {
        page.certificates(&credentials.current(), config.certificate_warning.ahead());
    }
    let is_connected = matches!(dpu.session().state(), SessionState::Up(_));
    let help = "Whether there is a session with the DPU";
    page.gauge("agent_session_connected", help, is_connected.into());
    add_records(&mut page, vfs, dpu);
    add_vfs(&mut page, vfs, dpu);
    let (right, wrong) = vfs.ahead().counts();
    let series = [("right", right), ("wrong", wrong)];
    let series = series.map(|(outcome, number)| ([label("outcome", outcome)], number));
    page.counters(
        "agent_speculative_moves",
        "Speculative moves: VFs moved before the DPU answered, by whether it gave that VF",
        series,
    );
    let help = "Repairs of VFs, pods and records";
    page.counter("agent_repairs", help, vfs.repairs().count());
    page.calls("agent", "Answered calls of the CNI plugin", calls);
    let help = "Duration of the phases of attaches";
    page.phases("agent_attach", help, &phases.attach);
    let help = "Duration of the phases of detaches";
    page.phases("agent_detach", help, &phases.detach);
    page
}

fn add_records(page: &mut Page, vfs: &Vfs, dpu: &Dpu) {
    let (mut attaching, mut live, mut releasing) = (0, 0, 0);
    for record in vfs.records().all() {
        match record.phase {
            Phase::Attaching => attaching += 1,
            Phase::Live => live += 1,
            Phase::Releasing => releasing += 1,
        }
    }
    let phases = [("attaching", attaching), ("live", live), ("releasing", releasing)];
    let series = phases.map(|(phase, number)| ([label("phase", phase)], number));
    page.gauges("agent_records", "Records of attachments, by phase", series);
    let pending = releasing + dpu.calls().pending_detach_keys().len() as u64;
    let help = "Detaches that the DPU has not confirmed yet";
    page.gauge("agent_pending_detaches", help, pending);
    let help = "Attachments whose pods have lost their VF";
    page.gauge("agent_broken_attachments", help, vfs.records().broken() as u64);
}

fn add_vfs(page: &mut Page, vfs: &Vfs, dpu: &Dpu) {
    let states = [VfCondition::Clean, VfCondition::InUse, VfCondition::Missing];
    let mut numbers = BTreeMap::from(states.map(|state| (state as i32, 0)));
    for vf in dpu.reports().reported_pfs().iter().flat_map(|pf| &pf.vfs) {
        let is_held = vf.condition() == VfCondition::Held
            || vfs.records().by_device(&vf.device.as_str().into()).is_some();
        let state = if is_held { VfCondition::InUse as i32 } else { vf.condition };
        *numbers.entry(state).or_default() += 1;
    }
    let series = states.map(|state| {
        let number = numbers.get(&(state as i32)).copied().unwrap_or_default();
        ([label("state", name(state))], number)
    });
    page.gauges(
        "agent_vfs",
        "VFs by state: in use with a record, else as last reported to the DPU",
        series,
    );
}

const fn name(condition: VfCondition) -> &'static str {
    match condition {
        VfCondition::Unspecified => "unspecified",
        VfCondition::Clean => "free",
        VfCondition::InUse | VfCondition::Held => "in_use",
        VfCondition::Missing => "absent",
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{PhysicalFunction, VirtualFunction};

    use super::*;
    use crate::agent::{dpu::tests::config, verbs::tests::doors};

    #[tokio::test]
    async fn vfs_are_counted_before_the_next_report() {
        let (doors, _folder) = doors();
        let vf = VirtualFunction { condition: VfCondition::Clean.into(), ..Default::default() };
        doors.dpu.reports().know(vec![PhysicalFunction { vfs: vec![vf], ..Default::default() }]);
        doors.dpu.reports().inventory_wanted();
        let page = page(&config(), &doors, &calls()).text().unwrap();
        assert!(page.contains(r#"agent_vfs{state="free"} 1"#), "{page}");
    }
}
